"""pFID: the perturbation of tokens, and FID of what a tokenizer decodes from them."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcvq.data import InMemoryImages, load_images, to_unit
from arcvq.errors import ArcvqError
from arcvq.metrics import Evaluation, Perturbation, evaluate, evaluate_perturbed, nearest_codes, perturb_tokens
from arcvq.metrics.perturbation import PerturbedReconstructor
from arcvq.nets import SmallConfig
from arcvq.quantizers import ContinuousConfig, FSQConfig, QuantizerConfig, ResidualVQConfig, VQConfig
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.build import build_tokenizer


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Inception network by a small one, with small inputs."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten())
    monkeypatch.setattr("arcvq.metrics.paired.fid_network", lambda device, download: network)
    monkeypatch.setattr("arcvq.metrics.fid.INPUT_SIZE", 16)


def toy_images(count: int = 40) -> InMemoryImages:
    generator = torch.Generator().manual_seed(0)
    return InMemoryImages("toy", torch.randint(0, 256, (count, 1, 16, 16), generator=generator).byte())


def tokenizer(quantizer: QuantizerConfig) -> Tokenizer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        autoencoder = SmallConfig(width=8, residual_width=4, latent_dim=8)
        return build_tokenizer(1, autoencoder, quantizer).eval()


def pfid(model: Tokenizer, perturbation: Perturbation, **options: Any) -> float:
    (evaluation,) = evaluate_perturbed(["exact"], model, toy_images(), perturbation, **options)
    assert evaluation.missing == {}
    return evaluation.metrics["pfid"]


def test_hash_depends_on_every_field() -> None:
    default = Perturbation()
    changed = {"share": 0.25, "neighbours": 4, "seed": 1, "revision": 2}
    assert changed.keys() == {field.name for field in fields(default)}
    hashes = {replace(default, **{name: value}).hash for name, value in changed.items()} | {default.hash}  # type: ignore[arg-type]
    assert len(hashes) == len(changed) + 1
    assert Perturbation(share=1).hash == Perturbation(share=1.0).hash
    # Saved with results: an unchanged perturbation must keep its hash.
    assert default.hash == "3da033d705e5"
    assert default.to_json()["hash"] == default.hash


def test_nearest_codes_are_sorted_by_distance() -> None:
    codes = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    codes[7] = codes[3]
    found = nearest_codes(codes, 6)
    distances = (codes.double()[:, None] - codes.double()[None]).norm(dim=2)
    assert torch.equal(found[:, 0], torch.arange(30))  # also of two equal codes
    assert torch.allclose(distances.gather(1, found), distances.sort(dim=1).values[:, :6], atol=1e-6)
    assert (int(found[3, 1]), int(found[7, 1])) == (7, 3)


def test_large_codebooks_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    whole = nearest_codes(codes, 4)
    monkeypatch.setattr("arcvq.metrics.perturbation.BLOCK_ROWS", 7)
    assert torch.equal(nearest_codes(codes, 4), whole)


def perturbed(tokens: Tensor, share: float, seed: int = 0) -> Tensor:
    nearest = (torch.arange(50)[:, None] + torch.arange(5)) % 50  # itself and the next four
    return perturb_tokens(tokens, nearest, share, torch.Generator().manual_seed(seed))


def test_share_of_tokens_moves_to_each_neighbour_alike() -> None:
    tokens = torch.randint(0, 50, (200, 10, 10), generator=torch.Generator().manual_seed(1))
    steps = (perturbed(tokens, 0.5) - tokens) % 50
    shares = torch.bincount(steps.flatten(), minlength=5) / steps.numel()
    # Half of all tokens are drawn, a fifth of these its own code.
    assert shares.tolist() == pytest.approx([0.5 + 0.1, 0.1, 0.1, 0.1, 0.1], abs=0.01)
    assert torch.equal(perturbed(tokens, 0.0), tokens)
    assert int(((perturbed(tokens, 1.0) - tokens) % 50).max()) == 4


def test_padding_stays_and_batches_do_not_matter() -> None:
    tokens = torch.randint(-1, 50, (12, 4, 4), generator=torch.Generator().manual_seed(1))
    whole = perturbed(tokens, 0.7)
    assert torch.equal(whole == -1, tokens == -1)
    assert torch.equal(whole, perturbed(tokens, 0.7))
    assert not torch.equal(whole, perturbed(tokens, 0.7, seed=1))
    nearest = (torch.arange(50)[:, None] + torch.arange(5)) % 50
    generator = torch.Generator().manual_seed(0)
    parts = [perturb_tokens(part, nearest, 0.7, generator) for part in tokens.split(5)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    "config",
    [
        VQConfig(codebook_size=32),
        FSQConfig(codebook_size=64),
        ResidualVQConfig(codebook_size=32, depth=2, shared=False),
    ],
    ids=["vq", "fsq", "residual"],
)
def test_reconstructor_decodes_the_perturbed_tokens(config: QuantizerConfig) -> None:
    model, images = tokenizer(config), to_unit(toy_images().pixels)
    same, tokens = PerturbedReconstructor(model, Perturbation(share=0.0))(images)
    assert tokens is None
    assert torch.equal(same, model.reconstruct(images))
    assert torch.equal(PerturbedReconstructor(model, Perturbation(share=1.0, neighbours=1))(images)[0], same)
    changed = PerturbedReconstructor(model, Perturbation(share=1.0, neighbours=8))(images)[0]
    assert not torch.allclose(changed, same)


def test_neighbours_stay_in_their_own_codebook() -> None:
    model = tokenizer(ResidualVQConfig(codebook_size=32, depth=2, shared=False))
    nearest = PerturbedReconstructor(model, Perturbation(neighbours=32)).nearest
    assert nearest.shape == (64, 32)
    assert torch.equal(nearest // 32, torch.arange(64)[:, None] // 32 * torch.ones(1, 32, dtype=torch.int64))


def test_pfid_without_changes_is_rfid_and_grows_with_them() -> None:
    model, images = Tokenizer.from_pretrained("tiny"), load_images("sample", split="test", limit=100)
    (rfid,) = evaluate(lambda x: (model.reconstruct(x), None), images, metrics=["rfid"]).metrics.values()
    stronger = [Perturbation(share=0.0), Perturbation(share=0.3), Perturbation(share=1.0)]
    values = [evaluate_perturbed(["exact"], model, images, each)[0].metrics["pfid"] for each in stronger]
    assert values[0] == rfid
    assert values[0] < values[1] < values[2]


def test_pfid_repeats_and_does_not_depend_on_the_batch_size() -> None:
    model = tokenizer(VQConfig(codebook_size=32))
    first = pfid(model, Perturbation())
    assert pfid(model, Perturbation()) == first
    assert pfid(model, Perturbation(), batch_size=7) == pytest.approx(first, rel=1e-6)
    assert pfid(model, Perturbation(seed=1)) != first


def test_pfid_is_measured_under_several_protocols() -> None:
    evaluations = evaluate_perturbed(["exact", "paper"], tokenizer(VQConfig(codebook_size=32)), toy_images())
    assert [each.protocol for each in evaluations] == ["exact", "paper"]
    assert all(each.metrics.keys() == {"pfid"} and each.images == 40 for each in evaluations)


def reason(model: Tokenizer) -> str:
    (evaluation,) = evaluate_perturbed(["exact"], model, toy_images())
    assert evaluation.metrics == {}
    return evaluation.missing["pfid"]


def test_pfid_that_cannot_be_measured_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason(tokenizer(ContinuousConfig())) == "not applicable: the model gives no tokens"
    assert "16 nearest codes, but the codebook has 8" in reason(tokenizer(VQConfig(codebook_size=8)))
    monkeypatch.undo()
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert "inception-2015-12-05.safetensors" in reason(tokenizer(VQConfig(codebook_size=32)))


def test_evaluate_without_a_tokenizer_reports_pfid_as_missing() -> None:
    result: Evaluation = evaluate(lambda x: (x, None), toy_images(), metrics=["l1", "pfid"])
    assert result.metrics == {"l1": 0.0}
    assert "evaluate_perturbed" in result.missing["pfid"]


def test_wrong_perturbations_are_refused() -> None:
    with pytest.raises(ArcvqError, match=r"share is 1\.5; it must be from 0 to 1"):
        Perturbation(share=1.5)
    with pytest.raises(ArcvqError, match="neighbours is 0"):
        Perturbation(neighbours=0)
    with pytest.raises(ArcvqError, match="the codebook has 4"):
        nearest_codes(torch.zeros(4, 2), 5)
    with pytest.raises(ArcvqError, match="token 50 is out of range: there are neighbours of 50 codes"):
        perturbed(torch.tensor([[50]]), 0.5)
    with pytest.raises(ArcvqError, match=r"whole numbers, got torch\.float32"):
        perturbed(torch.zeros(2, 2), 0.5)
