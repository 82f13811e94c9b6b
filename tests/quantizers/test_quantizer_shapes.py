"""Layouts: image maps of any rank, sequences, heads, projection, masks. decode(tokens) is quantized, to the bit."""

import copy
from itertools import product
from typing import Any

import pytest
import torch
from every_quantizer import ANY_NUMBER, CONTINUOUS, ONE_OF_EACH, SEARCHED, STOCHASTIC, accepts, build

from arcvq import VQ, ArcVQ, Quantized

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads": {"heads": 2},
    "projected": {"code_dim": 5},
    "heads and projected": {"heads": 3, "code_dim": 4},
}
# Kinds, each with the options that it accepts.
VARIANTS = {
    f"{kind}, {name}": (kind, options)
    for kind in ANY_NUMBER
    for name, options in OPTIONS.items()
    if accepts(kind, options)
}
SPATIAL = {"vectors": (), "sequence": (7,), "image": (3, 5), "video": (2, 3, 4)}


@pytest.mark.parametrize("channel_last", [False, True], ids=["channel first", "channel last"])
@pytest.mark.parametrize("spatial", SPATIAL.values(), ids=SPATIAL.keys())
@pytest.mark.parametrize("variant", [name for name, (kind, _) in VARIANTS.items() if kind in ONE_OF_EACH])
def test_every_layout_has_right_shapes_and_decodes(variant: str, spatial: tuple[int, ...], channel_last: bool) -> None:
    kind, options = VARIANTS[variant]
    for training, masked in product((True, False), repeat=2):
        quantizer = build(kind, 12, 16, channel_last=channel_last, **options).train(training)
        latents = torch.randn(6, *spatial, 12) if channel_last else torch.randn(6, 12, *spatial)
        mask = torch.rand(6, *spatial) > 0.4 if masked else None
        out = quantizer(latents, mask)
        width = quantizer.tokens_per_position
        assert out.quantized.shape == latents.shape
        assert out.quantized.dtype == latents.dtype
        assert out.loss.shape == ()
        assert (out.update_inputs.valid is None) == (mask is None)
        if kind not in CONTINUOUS:
            assert out.tokens.shape == ((6, *spatial, width) if width > 1 else (6, *spatial))
            assert out.tokens.dtype == torch.int64
            assert quantizer.codebook.shape == (16 * quantizer.codebooks, quantizer.code_dim)
            if not (training and kind in STOCHASTIC):
                assert torch.equal(quantizer.decode(out.tokens), out.quantized)
            grid = out.tokens if width == 1 else out.tokens.amax(dim=-1)
            assert torch.equal(grid >= 0, torch.ones_like(grid, dtype=torch.bool) if mask is None else mask)
        if mask is not None:
            rows = out.quantized if channel_last else out.quantized.movedim(1, -1)
            assert torch.equal(rows[~mask], torch.zeros_like(rows[~mask]))
            assert (rows[mask] != 0).any()


def test_output_unpacks_as_quantized_tokens_loss() -> None:
    out = ArcVQ(4, 6)(torch.randn(2, 4, 3, 3))
    quantized, tokens, loss = out
    assert isinstance(out, Quantized)
    assert quantized is out.quantized
    assert tokens is out.tokens
    assert loss is out.loss


def test_loss_is_sum_of_named_losses() -> None:
    out = ArcVQ(4, 6)(torch.randn(2, 4, 3, 3))
    assert set(out.losses) == {"codebook", "commitment", "arc"}
    torch.testing.assert_close(out.loss, sum(out.losses.values()))


def test_channel_last_equals_channel_first() -> None:
    torch.manual_seed(1)
    first = ArcVQ(4, 6)
    torch.manual_seed(1)
    last = ArcVQ(4, 6, channel_last=True)
    latents = torch.randn(2, 4, 3, 5)
    a, b = first(latents), last(latents.movedim(1, -1))
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.quantized.movedim(1, -1), b.quantized)
    assert torch.equal(a.loss, b.loss)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_quantized_keeps_memory_format_of_latents(options: dict[str, Any], masked: bool) -> None:
    quantizer = ArcVQ(12, 11, **options)
    latents, mask = torch.randn(6, 12, 3, 5), torch.rand(6, 3, 5) > 0.4 if masked else None
    outputs = []
    for layout in (torch.contiguous_format, torch.channels_last):
        leaf = latents.clone(memory_format=layout).requires_grad_()
        out = quantizer(leaf, mask)
        (out.quantized.square().sum() + out.loss).backward()
        assert out.quantized.is_contiguous(memory_format=layout)
        outputs.append((out.quantized, out.tokens, out.loss, leaf.grad))
    for one, other in zip(*outputs):
        torch.testing.assert_close(one, other)
    if not options:  # rows are a view: the latents are not copied
        assert out.update_inputs.latents.data_ptr() == leaf.data_ptr() or masked


def test_heads_share_one_codebook() -> None:
    quantizer = VQ(6, 9, heads=3, init="normal")
    plain = VQ(2, 9, init="normal")
    plain.load_state_dict(quantizer.state_dict())
    latents = torch.randn(5, 6)
    parts = plain(latents.reshape(15, 2))
    out = quantizer(latents)
    assert torch.equal(out.tokens.reshape(-1), parts.tokens)
    assert torch.equal(out.quantized.reshape(15, 2), parts.quantized)


def test_quantized_is_raw_code() -> None:
    quantizer = ArcVQ(4, 6)
    with torch.no_grad():
        quantizer.codebook.mul_(torch.arange(1.0, 7.0).unsqueeze(1))
    out = quantizer(torch.randn(50, 4))
    assert torch.equal(out.quantized, quantizer.codebook.detach()[out.tokens])


@pytest.mark.parametrize("kind", ANY_NUMBER)
def test_padding_changes_no_loss_and_no_statistic(kind: str) -> None:
    options = {"entropy": {"weight": 0.1, "temperature": 0.5}} if kind in SEARCHED else {}
    quantizer = build(kind, 4, 8, channel_last=True, **options).train(kind not in STOCHASTIC)
    latents, mask = torch.randn(3, 10, 4), torch.rand(3, 10) > 0.5
    masked = quantizer(latents, mask)
    kept = quantizer(latents[mask])
    assert kind in CONTINUOUS or torch.equal(masked.tokens[mask], kept.tokens)
    for name, term in kept.losses.items():
        torch.testing.assert_close(masked.losses[name], term, rtol=1e-6, atol=1e-7)
    for name, value in kept.stats.items():
        torch.testing.assert_close(masked.stats[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ANY_NUMBER)
def test_nan_at_padding_changes_nothing(kind: str) -> None:
    quantizer = build(kind, 4, 8, channel_last=True, **({"code_dim": 3} if accepts(kind, {"code_dim": 3}) else {}))
    latents, mask = torch.randn(3, 10, 4), torch.rand(3, 10) > 0.5
    spoilt = torch.where(mask.unsqueeze(-1), latents, float("nan")).requires_grad_()
    random = torch.get_rng_state()
    out = quantizer(spoilt, mask)
    torch.set_rng_state(random)
    assert torch.equal(out.loss, quantizer(latents, mask).loss)
    (out.loss + out.quantized.sum()).backward()
    assert torch.equal(spoilt.grad[~mask], torch.zeros_like(spoilt.grad[~mask]))
    assert torch.isfinite(spoilt.grad).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_tokens_of_any_integer_dtype_decode(dtype: torch.dtype) -> None:
    quantizer = VQ(4, 6)
    tokens = torch.randint(0, 6, (2, 3, 3))
    assert torch.equal(quantizer.decode(tokens.to(dtype)), quantizer.decode(tokens))


def test_padding_decodes_to_zeros_with_projection() -> None:
    decoded = VQ(4, 6, code_dim=3).decode(torch.tensor([[0, -1], [-1, 5]]))
    rows = decoded.movedim(1, -1)
    assert torch.equal(rows[0, 1], torch.zeros(4))
    assert torch.equal(rows[1, 0], torch.zeros(4))
    assert (rows[0, 0] != 0).all()


def test_single_code_has_every_token() -> None:
    out = ArcVQ(4, 1)(torch.randn(9, 4))
    assert torch.equal(out.tokens, torch.zeros(9, dtype=torch.int64))
    assert out.stats["perplexity"].item() == 1.0


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "arc" not in name and "samp" not in name])
@pytest.mark.parametrize("shape", [(0, 12, 3, 5), (2, 12, 0)])
def test_empty_batch_works_and_moves_no_code(shape: tuple[int, ...], variant: str) -> None:
    kind, options = VARIANTS[variant]
    quantizer = build(kind, 12, 16, **options)
    before = copy.deepcopy(quantizer.state_dict())
    out = quantizer(torch.zeros(shape))
    assert out.quantized.shape == shape
    assert out.loss.item() == 0.0
    quantizer.after_step(out)
    after = quantizer.state_dict()
    if kind not in CONTINUOUS:
        assert torch.equal(quantizer.decode(out.tokens), out.quantized)
    assert all(torch.equal(after[name], before[name]) for name in before.keys() & {"codebook", "basis", "projection"})


@pytest.mark.parametrize("variant", [name for name, (kind, _) in VARIANTS.items() if kind in ONE_OF_EACH])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_quantized_has_dtype_of_latents(dtype: torch.dtype, variant: str) -> None:
    kind, options = VARIANTS[variant]
    quantizer = build(kind, 12, 16, **options)
    out = quantizer(torch.randn(2, 12, 3, dtype=dtype))
    assert out.quantized.dtype == dtype
    if kind not in STOCHASTIC:
        assert torch.equal(quantizer.decode(out.tokens).to(dtype), out.quantized)
    quantizer.after_step(out)
    assert all(torch.isfinite(value).all() for value in quantizer.state_dict().values())
