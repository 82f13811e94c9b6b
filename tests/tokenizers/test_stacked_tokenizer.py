"""The stacked tokenizer: training of each level, decoding through all levels, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import to_unit
from arcvq.nets import SmallAutoencoder, SmallConfig, StackedAutoencoder, StackedConfig
from arcvq.nets.resampling import Upsample2x
from arcvq.quantizers import HVQ
from arcvq.tokenizers import StackedTokenizer
from arcvq.tokenizers.saving import to_config
from arcvq.tokenizers.stacked import Level, Standardize, moments

TOP = ("autoencoder", "quantizer")


def make_tokenizer(levels: int = 2, channels: int = 1, heads: int = 1) -> StackedTokenizer:
    torch.manual_seed(3)
    config = StackedConfig(width=16, residual_width=8, latent_dim=8, layers=levels)
    return StackedTokenizer(StackedAutoencoder(channels, config), HVQ(8, 32, heads=heads), system="hvq-vae")


def level_modules(tokenizer: StackedTokenizer, level: int) -> tuple[nn.Module, HVQ, nn.Module]:
    """Encoder, quantizer and decoder of one level."""
    each: Any = tokenizer.autoencoder if level == len(tokenizer.lower) else tokenizer.levels_below[level]
    return each.encoder, tokenizer.quantizers[level], each.decoder


@pytest.fixture
def images(sample_pixels: Tensor) -> Tensor:
    return to_unit(sample_pixels)


@pytest.mark.parametrize(("levels", "side", "grid"), [(2, 28, 7), (2, 32, 8), (3, 32, 4)])
def test_tokens_and_widths_have_expected_shapes(levels: int, side: int, grid: int) -> None:
    tokenizer = make_tokenizer(levels, channels=3).eval()
    images = torch.rand(2, 3, side, side) * 2 - 1
    tokens = tokenizer.encode(images)
    assert tokens.shape == (2, grid, grid)
    assert tokenizer.downsampling == 2**levels
    assert tokenizer.decode(tokens).shape == images.shape
    assert torch.equal(tokenizer.decode(tokens), tokenizer.reconstruct(images))
    widths = [level_modules(tokenizer, level)[0][2].out_channels for level in range(levels)]  # type: ignore[index]
    assert widths == [16 >> (levels - 1 - level) for level in range(levels)]


def test_lowest_level_trains_only_itself(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    reconstruction, out, below = tokenizer(images, level=0)
    assert out.tokens.shape == (12, 14, 14)
    assert below is None
    assert set(out.losses) == {"kl", "commitment"}
    assert reconstruction.abs().max() <= 1
    (out.loss + (reconstruction - images).square().mean()).backward()
    trained = {name.split(".")[0] for name, p in tokenizer.named_parameters() if p.grad is not None}
    assert trained == {"lower"}


def test_upper_level_reconstructs_standardized_latents_without_gradient_below(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    for _ in range(3):
        tokenizer.after_level_step(1, [tokenizer(images, level=1)])
    reconstruction, out, _ = tokenizer(images, level=1)
    assert out.tokens.shape == (12, 7, 7)
    assert set(out.losses) == {"kl", "commitment", "latents"}
    assert not reconstruction.requires_grad
    assert reconstruction.shape == images.shape
    torch.testing.assert_close(out.loss, sum(out.losses.values()))
    out.loss.backward()
    assert all(p.grad is not None for name, p in tokenizer.named_parameters() if name.startswith(TOP))
    assert all(p.grad is None for p in tokenizer.lower.parameters())
    # It saw the same batch thrice, so the standardized target has mean 0 and variance 1.
    target, _ = tokenizer._encode_to(images, 1)
    _, mean, variance = moments(target)
    torch.testing.assert_close(mean, torch.zeros(8), rtol=0, atol=1e-4)
    torch.testing.assert_close(variance, torch.ones(8), rtol=1e-3, atol=0)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("level", "positions", "elements"),
    [(0, 14 * 14, 3 * 28 * 28), (1, 7 * 7, 8 * 14 * 14)],  # of pixels; of latents
    ids=["lowest", "top"],
)
def test_quantizer_losses_are_per_element_of_target(
    level: int, positions: int, elements: int, heads: int, images: Tensor
) -> None:
    tokenizer, images = make_tokenizer(channels=3, heads=heads).train(), images.expand(-1, 3, -1, -1)
    encoder, quantizer, _ = level_modules(tokenizer, level)
    alone = quantizer(encoder(tokenizer._encode_to(images, level)[0])).losses
    ours = tokenizer(images, level=level).quantized.losses
    assert alone.keys() == {"kl", "commitment"}
    for name, term in alone.items():
        torch.testing.assert_close(ours[name], term * heads * positions / elements)  # a mean over tokens


def with_random_moments(tokenizer: StackedTokenizer) -> StackedTokenizer:
    """Set moments far from mean 0 and variance 1, different in each level."""
    for scale, level in enumerate(tokenizer.levels_below, 1):
        level.standardize.mean.copy_(scale * torch.randn(8))
        level.standardize.variance.copy_(scale * (0.5 + 3 * torch.rand(8)))
    return tokenizer


def decode_through_levels(levels: list[Level], decoded: Tensor) -> Tensor:
    """The top level's decoder output → images: at each level below, undo the standardization, take the nearest codes, decode."""
    for level in reversed(levels):
        mean, deviation = (x.view(-1, 1, 1) for x in (level.standardize.mean, level.standardize.variance.sqrt()))
        rows, codebook = (decoded * deviation + mean).movedim(1, -1), level.quantizer.codebook
        nearest = (rows.unsqueeze(-2) - codebook).square().sum(dim=-1).argmin(dim=-1)
        decoded = level.decoder(codebook[nearest].movedim(-1, 1))
    return 2 * torch.sigmoid(decoded) - 1


@pytest.mark.parametrize("levels", [2, 3])
def test_decode_goes_through_all_levels_at_their_scales(levels: int) -> None:
    tokenizer = with_random_moments(make_tokenizer(levels).eval())
    with torch.no_grad():
        tokenizer.levels_below[0].decoder[-1].weight.mul_(20)  # pixels that are not all grey
        tokens = torch.randint(32, (2, 4, 4))
        decoder = level_modules(tokenizer, levels - 1)[2]
        expected = decode_through_levels(
            tokenizer.levels_below, decoder(tokenizer.quantizer.codebook[tokens].movedim(-1, 1))
        )
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(tokenizer.decode(tokens), expected)


def test_training_reconstruction_of_each_level_is_an_image(images: Tensor) -> None:
    tokenizer = with_random_moments(make_tokenizer().train())
    target = (images, tokenizer._encode_to(images, 1)[0].detach())
    for level in range(2):
        encoder, quantizer, decoder = level_modules(tokenizer, level)
        torch.manual_seed(7)
        decoded = decoder(quantizer(encoder(target[level])).quantized)
        torch.manual_seed(7)
        reconstruction, out, _ = tokenizer(images, level=level)
        torch.testing.assert_close(reconstruction, decode_through_levels(tokenizer.levels_below[:level], decoded))
    torch.testing.assert_close(out.losses["latents"], (decoded - target[1]).square().mean())


def test_after_level_step_updates_level_and_moments_below(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    tokenizer.after_level_step(0, [tokenizer(images, level=0)])
    below = tokenizer.levels_below[0]
    assert (below.quantizer.step.item(), tokenizer.quantizer.step.item(), below.standardize.count.item()) == (1, 0, 0)
    tokenizer.after_level_step(1, [tokenizer(images[:8], level=1), tokenizer(images[8:], level=1)])
    assert (below.quantizer.step.item(), tokenizer.quantizer.step.item()) == (1, 1)
    assert below.standardize.count.item() == 12 * 14 * 14


def test_after_step_without_level_is_refused(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    with pytest.raises(ArcvqError, match="level by level: call after_level_step"):
        tokenizer.after_step(tokenizer(images)[1])


def test_moments_of_frozen_levels_stay_unchanged() -> None:
    tokenizer, images = make_tokenizer(3).train(), torch.rand(2, 1, 32, 32)
    for level, counts in ((1, [2 * 16 * 16, 0]), (2, [2 * 16 * 16, 2 * 8 * 8])):
        tokenizer.after_level_step(level, [tokenizer(images, level=level)])
        assert [each.standardize.count.item() for each in tokenizer.levels_below] == counts


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_forward_changes_no_state(mode: bool, images: Tensor) -> None:
    tokenizer = make_tokenizer().train(mode)
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    for level, tokens in ((0, (12, 14, 14)), (1, (12, 7, 7))):
        assert tokenizer(images, level=level).quantized.tokens.shape == tokens
    assert tokenizer(images)[1].tokens.shape == (12, 7, 7)
    assert all(torch.equal(value, before[name]) for name, value in tokenizer.state_dict().items())


@pytest.mark.parametrize("sizes", [[5], [1, 4], [3, 0, 7, 2]])
def test_running_moments_equal_moments_of_all_batches(sizes: list[int]) -> None:
    standardize, batches = Standardize(3), [3 * torch.randn(size, 3, 2, 2) + 7 for size in sizes]
    latents = torch.cat(batches)
    assert torch.equal(standardize(latents), latents)  # nothing seen yet
    for batch in batches:
        standardize.update_(*moments(batch))
    values = latents.movedim(1, 0).flatten(1)
    torch.testing.assert_close(standardize.mean, values.mean(dim=1))
    torch.testing.assert_close(standardize.variance, values.var(dim=1, unbiased=False))
    assert standardize.count.item() == 4 * sum(sizes)
    torch.testing.assert_close(standardize.invert(standardize(latents)), latents)


def test_stacked_tokenizer_saves_and_loads(tmp_path: Path, images: Tensor) -> None:
    tokenizer = make_tokenizer(3).train()
    tokenizer.after_level_step(1, [tokenizer(torch.rand(2, 1, 32, 32), level=1)])
    loaded = Tokenizer.from_pretrained(tokenizer.eval().save_pretrained(tmp_path / "model"))
    assert type(loaded) is StackedTokenizer
    assert to_config(loaded) == to_config(tokenizer)
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(loaded.encode(images), tokenizer.encode(images))
    assert torch.equal(loaded.reconstruct(images), tokenizer.reconstruct(images))


def test_wrong_autoencoder_or_quantizer_is_refused() -> None:
    small, stacked = SmallConfig(latent_dim=8), StackedConfig(latent_dim=8)
    for autoencoder, quantizer in (
        (SmallAutoencoder(1, small), HVQ(8, 32)),
        (StackedAutoencoder(1, stacked), VQ(8)),
    ):
        with pytest.raises(ArcvqError, match="needs the autoencoder stacked and the quantizer hvq"):
            StackedTokenizer(autoencoder, quantizer)


def test_half_precision_keeps_code_search_in_float32(images: Tensor) -> None:
    tokenizer = make_tokenizer().eval()
    exact, half = tokenizer.encode(images), tokenizer.encode(images, precision="bf16")
    assert 0.8 < (exact == half).double().mean() <= 1
    copies = tokenizer.decode(exact, precision="bf16", batch_size=5)
    assert copies.dtype == torch.float32
    assert not torch.equal(copies, tokenizer.decode(exact))
    assert (copies - tokenizer.decode(exact)).abs().mean() < 0.05
    assert torch.equal(tokenizer.encode(images, batch_size=5), exact)
    select, latents = tokenizer.levels_below[0].quantizer.quantize_as_in_evaluation, torch.randn(3, 8, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        inside = select(latents)
    assert torch.equal(inside, select(latents))


def test_speed_up_compiles_all_levels_but_no_quantizer() -> None:
    tokenizer = make_tokenizer(3).speed_up(compile=True)
    compiled = {name for name, part in tokenizer.named_modules() if part._compiled_call_impl is not None}
    levels = ["autoencoder.", "lower.0.", "lower.1."]
    assert compiled == {f"{level}{part}" for level in levels for part in ("encoder", "decoder")}


def test_compiled_upsampling_is_nearest() -> None:
    operators = set()

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        operators.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, decompositions=select_decomp_table())
    upsample, given = (
        torch.compile(Upsample2x(), backend=backend, dynamic=False),
        torch.randn(2, 3, 5, 4, requires_grad=True),
    )
    weights = torch.randn(2, 3, 10, 8)
    gradients = []
    for module in (upsample, Upsample2x(), nn.Upsample(scale_factor=2, mode="nearest")):
        made = module(given)
        assert torch.equal(made, given.repeat_interleave(2, 2).repeat_interleave(2, 3))
        gradients += torch.autograd.grad((made * weights).sum(), given)
    torch.testing.assert_close(gradients[0], gradients[2])
    assert torch.equal(gradients[1], gradients[2])
    assert "aten.sum.dim_IntList" in operators
    assert not any("index" in operator for operator in operators)
