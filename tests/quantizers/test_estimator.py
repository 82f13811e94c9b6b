"""The estimator is an option of every codebook: it changes the latents' gradient and nothing else."""

from typing import Any

import pytest
import torch

from arcvq import VQ, ArcVQ, ArcvqError
from arcvq.functional import rotate
from arcvq.quantizers import CVQ, EMAVQ, SimVQ


@pytest.mark.parametrize("cls", [VQ, ArcVQ, EMAVQ, CVQ, SimVQ])
def test_rotation_changes_only_the_gradient_of_quantized(cls: type[VQ]) -> None:
    outputs, gradients = [], []
    latents, upstream = torch.randn(3, 4, 5, 5, requires_grad=True), torch.randn(3, 4, 5, 5)
    for options in ({}, {"estimator": "rotation"}):
        torch.manual_seed(7)
        quantizer = cls(4, 8, **options)
        outputs.append(quantizer(latents))
        gradients.append(torch.autograd.grad(outputs[-1].quantized, latents, upstream)[0])
    straight, turned = outputs
    assert torch.equal(turned.tokens, straight.tokens)
    assert torch.equal(turned.quantized, straight.quantized)
    assert {name: term.item() for name, term in turned.losses.items()} == {
        name: term.item() for name, term in straight.losses.items()
    }
    assert torch.equal(gradients[0], upstream)
    rows = latents.detach().movedim(1, -1).reshape(-1, 4).requires_grad_()
    codes = straight.quantized.detach().movedim(1, -1).reshape(-1, 4)
    rotate(codes, rows).backward(upstream.movedim(1, -1).reshape(-1, 4))
    torch.testing.assert_close(gradients[1].movedim(1, -1).reshape(-1, 4), rows.grad)


def test_unknown_estimator_raises() -> None:
    options: dict[str, Any] = {"estimator": "reinforce"}
    with pytest.raises(ArcvqError, match="estimator"):
        VQ(4, 8, **options)
