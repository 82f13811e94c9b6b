"""Attention as plain products: against torch's own in float64, its precision, and its masks."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from arcvq import ArcvqError
from arcvq.functional import attend


def random_inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q (2, 5, 8), k (2, 7, 8), v (2, 7, 6), and a mask in which each query may attend to something."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 5, 8), (2, 7, 8), (2, 7, 6)))
    mask = torch.rand(2, 5, 7, generator=generator) > 0.6
    mask[:, :, 2] = True
    return q, k, v, mask


class DtypesOf(TorchDispatchMode):
    """Notes the dtype of each result of these operators."""

    def __init__(self, *operators: str) -> None:
        super().__init__()
        self.operators, self.found = operators, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in self.operators:
            self.found[name] = result.dtype
        return result


@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_torchs_in_float64(masked: bool) -> None:
    q, k, v, mask = random_inputs()
    leaves = [each.requires_grad_() for each in (q, k, v)]
    chosen = mask if masked else None
    found, expected = attend(q, k, v, chosen), scaled_dot_product_attention(q, k, v, chosen)
    torch.testing.assert_close(found, expected)
    grad = torch.randn(found.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad(each, leaves, grad) for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_attention_passes_gradcheck() -> None:
    *leaves, mask = random_inputs()
    leaves = [each[:1, :3].requires_grad_() for each in leaves]
    mask = mask[:1, :3, :3]
    assert torch.autograd.gradcheck(lambda *inputs: attend(*inputs, mask), leaves)
    assert torch.autograd.gradgradcheck(lambda *inputs: attend(*inputs, mask), leaves)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_products_run_in_bfloat16_and_softmax_in_float32(autocast: bool, masked: bool) -> None:
    q, k, v, mask = random_inputs(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), DtypesOf("baddbmm", "bmm", "_softmax") as dtypes:
        found = attend(q, k, v, mask if masked else None)
    assert dtypes.found == {"baddbmm": torch.bfloat16, "bmm": torch.bfloat16, "_softmax": torch.float32}
    assert found.dtype == torch.bfloat16
    expected = attend(*(each.double() for each in (q, k, v)), mask if masked else None)
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)


def test_float16_products_beyond_its_range_do_not_overflow() -> None:
    q = torch.full((1, 2, 512), 16.0, dtype=torch.float16)  # q·q is 131,072, and 5,793 when scaled
    assert torch.equal(attend(q, q, q), q)


def test_masked_positions_have_no_influence() -> None:
    q, k, v, mask = random_inputs()
    mask[:, :, 4:] = False
    expected = attend(q, k[:, :4], v[:, :4], mask[:, :, :4])
    k[:, 4:], v[:, 4:] = 1e3, 1e3
    torch.testing.assert_close(attend(q, k, v, mask), expected)


def test_query_that_may_attend_to_nothing_gets_zeros() -> None:
    q, k, v, mask = random_inputs()
    mask[1, 3] = False
    leaves = [each.requires_grad_() for each in (q, k, v)]
    found = attend(q, k, v, mask)
    assert not found[1, 3].any()
    gradients = torch.autograd.grad(found.square().sum(), leaves)
    assert not gradients[0][1, 3].any()
    assert all(torch.isfinite(each).all() for each in gradients)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_inputs_that_do_not_fit_raise(place: int) -> None:
    inputs = list(random_inputs())
    inputs[place] = inputs[place][:, :-1, :-1]
    with pytest.raises(ArcvqError, match=r"attention takes|mask must be bool"):
        attend(*inputs)


def test_mask_of_numbers_raises() -> None:
    q, k, v, mask = random_inputs()
    with pytest.raises(ArcvqError, match="must be bool"):
        attend(q, k, v, mask.float())
