"""The RQ-Transformer: what a token's logits depend on, one token per position, and a tokenizer with several."""

from pathlib import Path
from typing import Any

import pytest
import torch
from every_prior import small_generator
from torch import nn

from arcvq.data import load_images, to_unit
from arcvq.errors import ArcvqError
from arcvq.nets import SmallConfig
from arcvq.priors import Generator, Grid, Noise, RqTransformer, RqTransformerConfig, SamplingOptions, make_grid
from arcvq.priors import rq_transformer as module
from arcvq.quantizers import GroupedVQConfig, MultichannelVQConfig, QuantizerConfig, ResidualVQConfig
from arcvq.systems import load_config, train
from arcvq.tasks.prior import PriorTask
from arcvq.tokenizers import build_tokenizer

CONFIG = RqTransformerConfig(width=16, layers=1, depth_layers=1, heads=2, dropout=0.0)
TOKENIZERS: dict[str, QuantizerConfig] = {
    "residual": ResidualVQConfig(codebook_size=11, depth=3),
    "residual, a codebook each": ResidualVQConfig(codebook_size=11, depth=3, shared=False),
    "grouped": GroupedVQConfig(codebook_size=11, groups=2),
    "multichannel": MultichannelVQConfig(codebook_size=11, channels=4),
}


def random_prior(grid: Grid) -> RqTransformer:
    torch.manual_seed(0)
    prior = RqTransformer(grid, CONFIG).eval()
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return prior


def test_logits_depend_on_earlier_positions_and_on_earlier_tokens_of_their_own() -> None:
    grid = Grid(height=2, width=3, codebook_size=7, depth=3, classes=2)
    prior = random_prior(grid)
    tokens, labels = torch.randint(7, (2, 2, 3, 3)), torch.tensor([0, 1])
    before = prior.logits(tokens, labels).view(2, 6, 3, 7)
    for position in range(6):
        for depth in range(3):
            changed = tokens.clone()
            changed.view(2, 6, 3)[:, position, depth] += 1
            changed %= 7
            moved = (prior.logits(changed, labels).view(2, 6, 3, 7) != before).any(-1).all(0)  # (P, depth)
            expected = torch.zeros(6, 3, dtype=torch.bool)
            expected[position, depth + 1 :] = True
            expected[position + 1 :] = True
            assert torch.equal(moved, expected)


def test_equal_tokens_at_different_depths_have_embeddings_of_their_own() -> None:
    """As the codes of separate codebooks have; exchanging two tokens of a position must change what follows."""
    prior = random_prior(Grid(height=1, width=2, codebook_size=7, depth=2))
    tokens, labels = torch.tensor([[[[1, 4], [0, 0]]], [[[4, 1], [0, 0]]]]), torch.zeros(2, dtype=torch.int64)
    one, other = prior.logits(tokens, labels)[:, 2]
    assert not torch.allclose(one, other)


def test_one_token_per_position_is_an_ordinary_autoregressive_transformer() -> None:
    grid = Grid(height=2, width=3, codebook_size=7, classes=2)
    prior = random_prior(grid)
    tokens, labels = torch.randint(7, (4, 2, 3)), torch.tensor([0, 1, 0, 1])
    inputs = torch.cat([prior.classes(labels)[:, None], prior.tokens(tokens.flatten(1)[:, :-1])], dim=1)
    found = prior.over_positions(inputs + prior.places.weight, causal=True)
    rows = (found + prior.levels.weight[0]).reshape(-1, 1, 16)  # each token is a sequence of one
    expected = prior.head(prior.over_depths(rows, causal=True)).view(4, 6, 7)
    torch.testing.assert_close(prior.logits(tokens, labels), expected)


def test_logits_of_the_second_position_follow_from_their_definition() -> None:
    """The context, then the sum of the position's earlier embeddings, each with its depth's embedding."""
    prior = random_prior(Grid(height=1, width=2, codebook_size=7, depth=3))
    tokens, labels = torch.tensor([[[[3, 5, 2], [6, 1, 0]]]]), torch.zeros(1, dtype=torch.int64)
    table = prior.tokens.weight.view(3, 7, 16)
    first = table[0, 3] + table[1, 5] + table[2, 2]
    body = torch.stack([prior.classes.weight[0], first]) + prior.places.weight
    context = prior.over_positions(body[None], causal=True)[0, 1]
    inputs = torch.stack([context, table[0, 6], table[0, 6] + table[1, 1]]) + prior.levels.weight
    expected = prior.head(prior.over_depths(inputs[None], causal=True))[0]
    torch.testing.assert_close(prior.logits(tokens, labels)[0, 3:], expected)


def test_many_positions_are_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = random_prior(Grid(height=2, width=3, codebook_size=7, depth=2))
    tokens, labels = torch.randint(7, (3, 2, 3, 2)), torch.zeros(3, dtype=torch.int64)
    whole = prior.logits(tokens, labels)
    monkeypatch.setattr(module, "MAX_SEQUENCES", 4)  # 18 positions: parts of 4, the last of 2
    torch.testing.assert_close(prior.logits(tokens, labels), whole)


def test_step_repeated_at_one_token_gives_the_same_logits() -> None:
    """A recording of a step calls it several times before its result counts."""
    prior = random_prior(Grid(height=2, width=2, codebook_size=7, depth=2))
    tokens, state = torch.randint(7, (2, 8)), prior.begin(torch.zeros(2, dtype=torch.int64))
    for index in range(8):
        position = torch.tensor([index])
        first, second = (prior.next_logits(state, position, index % 2) for _ in range(2))
        assert torch.equal(first, second)
        state.tokens[:, index] = tokens[:, index]


def test_known_tokens_of_a_position_are_kept_beside_drawn_ones() -> None:
    prior = random_prior(Grid(height=2, width=2, codebook_size=7, depth=3))
    known = torch.randint(7, (2, 2, 2, 3))
    known[..., 1] = -1
    found = prior.sample(None, Noise(0, range(2)), SamplingOptions(), batch=2, known=known)
    assert torch.equal(found[..., [0, 2]], known[..., [0, 2]])
    assert found.min() >= 0


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_with_several_tokens_per_position_makes_images(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    autoencoder = SmallConfig(width=16, residual_width=8, latent_dim=8)
    tokenizer = build_tokenizer(1, autoencoder, TOKENIZERS[name], image_size=(12, 16)).eval()
    grid = make_grid(tokenizer, (12, 16), classes=0)
    assert tokenizer.encode(torch.zeros(1, 1, 12, 16)).shape[1:] == grid.token_shape == (3, 4, grid.depth)
    generator = Generator(random_prior(grid), tokenizer)
    images = generator(3, chunk=2, top_k=5)
    assert images.shape == (3, 1, 12, 16)
    mask = torch.zeros(3, 1, 12, 16, dtype=torch.bool)
    mask[..., 8:] = True
    completed = generator.complete(images, mask, seed=1)
    assert torch.equal(completed[..., :8], images[..., :8])
    assert not torch.equal(completed[..., 8:], images[..., 8:])
    assert generator.extend(images, rows=1).shape == (3, 1, 16, 16)
    loaded = Generator.from_pretrained(generator.save_pretrained(tmp_path / "model"))
    assert torch.equal(loaded(3, chunk=2, top_k=5), images)


def test_soft_targets_at_the_token_are_the_ordinary_loss() -> None:
    prior = random_prior(Grid(height=2, width=3, codebook_size=7, depth=3))
    tokens = torch.randint(7, (2, 2, 3, 3))
    hard = prior(tokens)["cross_entropy"]
    torch.testing.assert_close(
        prior(tokens, targets=torch.nn.functional.one_hot(tokens, 7).float())["cross_entropy"], hard
    )
    uniform = prior(tokens, targets=torch.full((2, 2, 3, 3, 7), 1 / 7))["cross_entropy"]
    expected = -prior.logits(tokens, torch.zeros(2, dtype=torch.int64)).log_softmax(-1).mean()
    torch.testing.assert_close(uniform, expected)


SMALL = {
    "data.name": "sample",
    "data.image_size": "null",
    "data.limit": 24,
    "data.batch_size": 8,
    "prior.width": 16,
    "prior.layers": 1,
    "prior.depth_layers": 1,
    "prior.heads": 2,
    "training.steps": 4,
    "training.precision": "fp32",
    "training.evaluations": 1,
    "training.evaluation_images": 8,
}


@pytest.mark.parametrize("depth", [1, 3])
def test_prior_trains_with_soft_targets(depth: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    quantizer = ResidualVQConfig(codebook_size=11, depth=depth)
    tokenizer = build_tokenizer(
        1, SmallConfig(width=16, residual_width=8, latent_dim=8), quantizer, image_size=(28, 28)
    )
    settings = {**SMALL, "tokenizer": tokenizer.save_pretrained(tmp_path / "tokenizer"), "prior.soft_targets": 0.5}
    config = load_config("photos-128/rq-transformer", [f"--{key}={value}" for key, value in settings.items()])
    train(config, tmp_path / "run", quiet=True)
    generator = Generator.from_pretrained(tmp_path / "run")
    assert generator(2, chunk=2).shape == (2, 1, 28, 28)
    images = load_images("sample", split="train", limit=24)
    tokens = tokenizer.eval().encode(to_unit(images.gather(torch.arange(24))))
    counted = tokens.reshape(-1, depth).T
    # The frequencies are those of the nearest codes; mirrored images count as well.
    mirrored = tokenizer.encode(to_unit(images.gather(torch.arange(24)).flip(-1))).reshape(-1, depth).T
    expected = torch.stack([torch.cat(pair).bincount(minlength=11) for pair in zip(counted, mirrored)])
    found = generator.prior.frequencies / generator.prior.frequencies.sum(1, keepdim=True)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), atol=0.02, rtol=0)


def test_loss_with_soft_targets_is_the_cross_entropy_with_the_drawn_probabilities(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(
        1,
        SmallConfig(width=16, residual_width=8, latent_dim=8),
        ResidualVQConfig(codebook_size=11, depth=2),
        image_size=(28, 28),
    )
    grid = Grid(height=2, width=3, codebook_size=11, depth=2, latent_dim=8)
    config = RqTransformerConfig(width=16, layers=1, depth_layers=1, heads=2, dropout=0.0, soft_targets=0.5)
    prior = RqTransformer(grid, config).eval()
    nn.init.normal_(prior.head.weight)
    task = PriorTask(prior, tokenizer)
    batch = {"values": torch.randn(4, 8, 2, 3)}
    with torch.random.fork_rng():
        found = task.loss("prior", prior, batch, {}, None).loss
    tokens, targets = tokenizer.quantizer.draw(batch["values"], 0.5)
    scores = prior.logits(tokens, torch.zeros(4, dtype=torch.int64)).log_softmax(-1)
    torch.testing.assert_close(found, -(targets.flatten(1, 3) * scores).sum(-1).mean())
    assert not torch.allclose(found, prior(tokens)["cross_entropy"])


def test_soft_targets_need_residual_codes(tmp_path: Path) -> None:
    config = load_config("sample/rq-transformer", ["--tokenizer=tiny", "--prior.soft_targets=0.5"])
    with pytest.raises(ArcvqError, match="soft_targets needs a tokenizer with residual codes"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_preset_trains_on_the_tokens_of_a_residual_quantizer(tmp_path: Path) -> None:
    tokenizer = small_generator("rq-transformer depth 3").tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = {**SMALL, "tokenizer": tokenizer}
    config = load_config("photos-128/rq-transformer", [f"--{key}={value}" for key, value in settings.items()])
    train(config, tmp_path / "run", quiet=True)
    generator = Generator.from_pretrained(tmp_path / "run")
    assert (generator.prior.grid.token_shape, generator.prior.grid.classes) == ((7, 7, 3), 10)
    assert generator(2, chunk=2).shape == (2, 1, 28, 28)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth_layers": 0}, "prior.depth_layers"),
        ({"width": 12, "heads": 8}, "prior.width must be a multiple of prior.heads"),
        ({"dropout": -0.1}, "prior.dropout"),
        ({"soft_targets": 0.0}, "prior.soft_targets"),
        ({"soft_targets": float("nan")}, "prior.soft_targets"),
        ({"soft_targets": 1e-40}, "prior.soft_targets must be finite and at least 1e-06, got 1e-40"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        RqTransformerConfig(**settings)
