"""A stack of autoencoders: which layer learns, from what, and how images come back down."""

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
from arcvq.quantizers import HVQ
from arcvq.tokenizers import HierarchicalTokenizer, HierarchicalTrunkConfig, SmallTrunkConfig
from arcvq.tokenizers.hierarchical import Double, Standardize, moments

TOP = ("encoder", "quantizer", "decoder")


def make(layers: int = 2, channels: int = 1, heads: int = 1) -> HierarchicalTokenizer:
    torch.manual_seed(3)
    trunk = HierarchicalTrunkConfig(width=16, residual_width=8, latent_dim=8, layers=layers)
    return HierarchicalTokenizer(channels, trunk, HVQ(8, 32, heads=heads), system="hvq-vae")


def train_only(tokenizer: HierarchicalTokenizer, *parts: str) -> None:
    for name, parameter in tokenizer.named_parameters():
        parameter.requires_grad_(name.startswith(parts))


def inputs_of(tokenizer: HierarchicalTokenizer, images: Tensor, index: int) -> Tensor:
    """What layer `index`, counted from the lowest, encodes."""
    for layer in tokenizer.layers_below[:index]:
        images = layer.standardize(layer.encoder(images))
    return images


@pytest.fixture
def images(sample_pixels: Tensor) -> Tensor:
    return to_unit(sample_pixels)


@pytest.mark.parametrize(("layers", "side", "grid"), [(2, 28, 7), (2, 32, 8), (3, 32, 4)])
def test_shapes_and_widths(layers: int, side: int, grid: int) -> None:
    tokenizer = make(layers, channels=3).eval()
    images = torch.rand(2, 3, side, side) * 2 - 1
    tokens = tokenizer.encode(images)
    assert tokens.shape == (2, grid, grid)
    assert tokenizer.downsampling == 2**layers
    assert tokenizer.decode(tokens).shape == images.shape
    assert torch.equal(tokenizer.decode(tokens), tokenizer.reconstruct(images))
    assert [layer.encoder[2].out_channels for layer in [*tokenizer.layers_below, tokenizer]] == [
        16 >> (layers - 1 - i) for i in range(layers)
    ]


def test_the_lowest_layer_learns_first_and_alone(images: Tensor) -> None:
    tokenizer = make().train()
    train_only(tokenizer, "lower.0")
    reconstruction, out = tokenizer(images)
    assert (tokenizer.learning, out.tokens.shape) == (0, (12, 14, 14))
    assert set(out.losses) == {"kl", "commitment"}
    assert reconstruction.abs().max() <= 1
    (out.loss + (reconstruction - images).square().mean()).backward()
    grown = {name.split(".")[0] for name, p in tokenizer.named_parameters() if p.grad is not None}
    assert grown == {"lower"}


def test_the_upper_layer_reconstructs_standardized_latents_and_the_lower_gets_no_gradient(images: Tensor) -> None:
    tokenizer = make().train()
    train_only(tokenizer, *TOP)
    for _ in range(3):
        tokenizer.after_step(tokenizer(images)[1])
    reconstruction, out = tokenizer(images)
    assert (tokenizer.learning, out.tokens.shape) == (1, (12, 7, 7))
    assert set(out.losses) == {"kl", "commitment", "latents"}
    assert not reconstruction.requires_grad
    assert reconstruction.shape == images.shape
    torch.testing.assert_close(out.loss, sum(out.losses.values()))
    out.loss.backward()
    assert all(p.grad is not None for name, p in tokenizer.named_parameters() if name.startswith(TOP))
    assert all(p.grad is None for p in tokenizer.lower.parameters())
    # It saw the same batch thrice, so the standardized target has mean 0 and variance 1.
    target = inputs_of(tokenizer, images, 1)
    _, mean, variance = moments(target)
    torch.testing.assert_close(mean, torch.zeros(8), rtol=0, atol=1e-4)
    torch.testing.assert_close(variance, torch.ones(8), rtol=1e-3, atol=0)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("index", "parts", "positions", "elements"),
    [(0, ("lower.0",), 14 * 14, 3 * 28 * 28), (1, TOP, 7 * 7, 8 * 14 * 14)],  # of pixels; of latents
    ids=["lowest", "top"],
)
def test_the_quantizers_losses_are_per_element_of_what_is_reconstructed(
    index: int, parts: tuple[str, ...], positions: int, elements: int, heads: int, images: Tensor
) -> None:
    tokenizer, images = make(channels=3, heads=heads).train(), images.expand(-1, 3, -1, -1)
    train_only(tokenizer, *parts)
    layer = [*tokenizer.layers_below, tokenizer][index]
    alone = layer.quantizer(layer.encoder(inputs_of(tokenizer, images, index))).losses
    ours = tokenizer(images)[1].losses
    assert alone.keys() == {"kl", "commitment"}
    for name, term in alone.items():
        torch.testing.assert_close(ours[name], term * heads * positions / elements)  # a mean over tokens


def standardized(tokenizer: HierarchicalTokenizer) -> HierarchicalTokenizer:
    """With moments that are far from 0 and 1, and other ones in each layer."""
    for scale, layer in enumerate(tokenizer.layers_below, 1):
        layer.standardize.mean.copy_(scale * torch.randn(8))
        layer.standardize.variance.copy_(scale * (0.5 + 3 * torch.rand(8)))
    return tokenizer


def down(tokenizer: HierarchicalTokenizer, made: Tensor) -> Tensor:
    """What the top layer decoded → images: to the scale of the layer below, onto its nearest codes, through its decoder."""
    for layer in reversed(tokenizer.layers_below):
        mean, deviation = (x.view(-1, 1, 1) for x in (layer.standardize.mean, layer.standardize.variance.sqrt()))
        rows, codebook = (made * deviation + mean).movedim(1, -1), layer.quantizer.codebook
        nearest = (rows.unsqueeze(-2) - codebook).square().sum(dim=-1).argmin(dim=-1)
        made = layer.decoder(codebook[nearest].movedim(-1, 1))
    return 2 * torch.sigmoid(made) - 1


@pytest.mark.parametrize("layers", [2, 3])
def test_tokens_come_down_layer_by_layer_each_at_its_own_scale(layers: int) -> None:
    tokenizer = standardized(make(layers).eval())
    with torch.no_grad():
        tokenizer.layers_below[0].decoder[-1].weight.mul_(20)  # pixels that are not all grey
        tokens = torch.randint(32, (2, 4, 4))
        expected = down(tokenizer, tokenizer.decoder(tokenizer.quantizer.codebook[tokens].movedim(-1, 1)))
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(tokenizer.decode(tokens), expected)


def test_what_each_layer_made_in_training_is_shown_as_pixels(images: Tensor) -> None:
    tokenizer = standardized(make().train())
    target = (images, inputs_of(tokenizer, images, 1).detach())
    for index, (parts, layer) in enumerate(((("lower.0",), tokenizer.layers_below[0]), (TOP, tokenizer))):
        train_only(tokenizer, *parts)
        torch.manual_seed(7)
        made = layer.decoder(layer.quantizer(layer.encoder(target[index])).quantized)
        torch.manual_seed(7)
        reconstruction, out = tokenizer(images)
        torch.testing.assert_close(reconstruction, down(tokenizer, made) if index else 2 * torch.sigmoid(made) - 1)
    torch.testing.assert_close(out.losses["latents"], (made - target[1]).square().mean())


def test_upkeep_goes_to_the_layer_that_learns_and_to_the_moments_below_it(images: Tensor) -> None:
    tokenizer = make().train()
    train_only(tokenizer, "lower.0")
    tokenizer.after_step(tokenizer(images)[1])
    below = tokenizer.layers_below[0]
    assert (below.quantizer.step.item(), tokenizer.quantizer.step.item(), below.standardize.count.item()) == (1, 0, 0)
    train_only(tokenizer, *TOP)
    tokenizer.after_step(tokenizer(images[:8])[1], tokenizer(images[8:])[1])
    assert (below.quantizer.step.item(), tokenizer.quantizer.step.item()) == (1, 1)
    assert below.standardize.count.item() == 12 * 14 * 14


def test_the_moments_of_a_finished_layer_stay_as_they_are() -> None:
    tokenizer, images = make(3).train(), torch.rand(2, 1, 32, 32)
    for parts, counts in ((("lower.1",), [2 * 16 * 16, 0]), (TOP, [2 * 16 * 16, 2 * 8 * 8])):
        train_only(tokenizer, *parts)
        tokenizer.after_step(tokenizer(images)[1])
        assert [layer.standardize.count.item() for layer in tokenizer.layers_below] == counts


def test_a_forward_pass_changes_nothing_and_evaluation_takes_the_top_tokens(images: Tensor) -> None:
    tokenizer = make()
    for parts in (("lower.0",), TOP):
        train_only(tokenizer, *parts)
        before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
        for mode in (True, False):
            _, out = tokenizer.train(mode)(images)
        assert out.tokens.shape == (12, 7, 7)
        assert all(torch.equal(value, before[name]) for name, value in tokenizer.state_dict().items())


@pytest.mark.parametrize("sizes", [[5], [1, 4], [3, 0, 7, 2]])
def test_running_moments_are_those_of_everything_seen(sizes: list[int]) -> None:
    standardize, batches = Standardize(3), [3 * torch.randn(size, 3, 2, 2) + 7 for size in sizes]
    latents = torch.cat(batches)
    assert torch.equal(standardize(latents), latents)  # nothing seen yet
    for batch in batches:
        standardize.update_(*moments(batch))
    values = latents.movedim(1, 0).flatten(1)
    torch.testing.assert_close(standardize.mean, values.mean(dim=1))
    torch.testing.assert_close(standardize.variance, values.var(dim=1, unbiased=False))
    assert standardize.count.item() == 4 * sum(sizes)
    torch.testing.assert_close(standardize.restore(standardize(latents)), latents)


def test_a_saved_stack_loads_as_one(tmp_path: Path, images: Tensor) -> None:
    tokenizer = make(3).train()
    train_only(tokenizer, "lower.1")
    tokenizer.after_step(tokenizer(torch.rand(2, 1, 32, 32))[1])
    loaded = Tokenizer.from_pretrained(tokenizer.eval().save_pretrained(tmp_path / "model"))
    assert type(loaded) is HierarchicalTokenizer
    assert loaded.to_config() == tokenizer.to_config()
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(loaded.encode(images), tokenizer.encode(images))
    assert torch.equal(loaded.reconstruct(images), tokenizer.reconstruct(images))


def test_another_trunk_or_quantizer_is_refused() -> None:
    for trunk, quantizer in (
        (SmallTrunkConfig(latent_dim=8), HVQ(8, 32)),
        (HierarchicalTrunkConfig(latent_dim=8), VQ(8)),
    ):
        with pytest.raises(ArcvqError, match="its own kind of trunk and the quantizer hvq"):
            HierarchicalTokenizer(1, trunk, quantizer)


def test_in_half_precision_every_layers_search_stays_in_float32(images: Tensor) -> None:
    tokenizer = make().eval()
    exact, half = tokenizer.encode(images), tokenizer.encode(images, precision="bf16")
    assert 0.8 < (exact == half).double().mean() <= 1
    copies = tokenizer.decode(exact, precision="bf16", batch_size=5)
    assert copies.dtype == torch.float32
    assert not torch.equal(copies, tokenizer.decode(exact))
    assert (copies - tokenizer.decode(exact)).abs().mean() < 0.05
    assert torch.equal(tokenizer.encode(images, batch_size=5), exact)
    choose, latents = tokenizer.layers_below[0].quantizer.choose, torch.randn(3, 8, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        inside = choose(latents)
    assert torch.equal(inside, choose(latents))


def test_speed_up_compiles_the_trunk_of_every_layer_and_no_quantizer(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **_: compiled.append(module))
    tokenizer = make(3).speed_up(compile=True)
    names = {name for name, part in tokenizer.named_modules() if any(part is each for each in compiled)}
    layers = ["", "lower.0.", "lower.1."]
    assert names == {f"{layer}{part}" for layer in layers for part in ("encoder", "decoder")}


def test_doubling_is_nearest_upsampling_compiled_too() -> None:
    operators = set()

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        operators.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, decompositions=select_decomp_table())
    double, given = torch.compile(Double(), backend=backend, dynamic=False), torch.randn(2, 3, 5, 4, requires_grad=True)
    weights = torch.randn(2, 3, 10, 8)
    gradients = []
    for module in (double, Double(), nn.Upsample(scale_factor=2, mode="nearest")):
        made = module(given)
        assert torch.equal(made, given.repeat_interleave(2, 2).repeat_interleave(2, 3))
        gradients += torch.autograd.grad((made * weights).sum(), given)
    torch.testing.assert_close(gradients[0], gradients[2])
    assert torch.equal(gradients[1], gradients[2])
    assert "aten.sum.dim_IntList" in operators
    assert not any("index" in operator for operator in operators)
