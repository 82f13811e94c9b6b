"""Mixed precision: the search and every loss run in float32 in any precision of the latents."""

from typing import Any

import pytest
import torch
from every_quantizer import CONTINUOUS, IMAGE, KINDS, SEARCHED, build

from arcvq import ArcVQ
from arcvq.quantizers import Entropy

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_output_equals_float32_of_rounded_latents(kind: str, dtype: torch.dtype) -> None:
    space = "raw" if dtype == torch.bfloat16 else "unit"
    quantizer = build(kind, 16, 32, **({"entropy": Entropy(), "loss_space": space} if kind in SEARCHED else {}))
    half = torch.randn(4, 16, *IMAGE).to(dtype)
    random = torch.get_rng_state()
    with torch.autocast("cpu", dtype):
        inside = quantizer(half)
    torch.set_rng_state(random)
    outside = quantizer(half.float())
    assert inside.quantized.dtype == dtype
    assert all(term.dtype == torch.float32 for term in inside.losses.values())
    if kind in (*CONTINUOUS, "fsq", "lfq"):
        return  # their linear layer runs first, in autocast's precision
    assert torch.equal(inside.tokens, outside.tokens)
    assert torch.equal(inside.quantized, outside.quantized.to(dtype))
    for name, term in outside.losses.items():
        assert torch.equal(inside.losses[name], term), name
    assert torch.equal(inside.loss, outside.loss)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_quantized_has_latents_dtype_and_equals_decoded_tokens(dtype: torch.dtype) -> None:
    quantizer = ArcVQ(4, 8)
    out = quantizer(torch.randn(2, 4, 3, 3).to(dtype))
    assert out.quantized.dtype == dtype
    assert torch.equal(out.quantized, quantizer.decode(out.tokens).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("options", [{"code_dim": 3}, {"heads": 2, "code_dim": 3}], ids=["projected", "heads"])
def test_projected_layer_decodes_to_same_bits_under_autocast(dtype: torch.dtype, options: dict[str, Any]) -> None:
    quantizer = ArcVQ(4, 8, **options)
    with torch.autocast("cpu", dtype):
        out = quantizer(torch.randn(2, 4, 3, 3))
        decoded = quantizer.decode(out.tokens)
    assert out.quantized.dtype == torch.float32
    assert torch.equal(decoded.float(), out.quantized)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_reach_half_precision_latents_and_float32_codebook(dtype: torch.dtype) -> None:
    quantizer = ArcVQ(4, 8)
    latents = torch.randn(30, 4).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype):
        out = quantizer(latents)
        loss = out.loss + out.quantized.float().sum()
    loss.backward()
    assert latents.grad.dtype == dtype
    assert torch.isfinite(latents.grad).all()
    assert quantizer.codebook.grad.dtype == torch.float32


def test_matmul_precision_switch_changes_no_token_and_no_loss() -> None:
    quantizer = ArcVQ(64, 256, entropy=Entropy())
    latents = torch.randn(8, 64, 8, 8)
    before = torch.get_float32_matmul_precision()
    expected = quantizer(latents)
    torch.set_float32_matmul_precision("medium")
    try:
        out = quantizer(latents)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(out.tokens, expected.tokens)
    assert torch.equal(out.loss, expected.loss)
