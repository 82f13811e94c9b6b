"""encode, indexing of an output, and the dtype of the loss."""

import pytest
import torch

from arcvq.errors import ArcvqError
from arcvq.quantizers import FSQ, HVQ, VQ, Gaussian


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", [VQ, HVQ])
def test_encode_gives_evaluation_tokens(kind, heads):
    layer, latents = kind(8, 16, heads=heads), torch.randn(2, 8, 4, 4, requires_grad=True)
    mask = torch.rand(2, 4, 4) > 0.3
    tokens = layer.encode(latents, mask)
    assert layer.training
    assert torch.equal(tokens, layer.eval()(latents, mask).tokens)
    assert torch.equal(layer.decode(tokens), layer(latents, mask).quantized)


def test_encode_raises_for_continuous_layer():
    with pytest.raises(ArcvqError, match="continuous"):
        Gaussian(8).encode(torch.randn(2, 8, 4, 4))


def test_output_indexing_equals_unpacking():
    output = VQ(8, 16)(torch.randn(2, 8, 4, 4))
    assert all(output[i] is part for i, part in enumerate(output))
    with pytest.raises(IndexError):
        output[3]


@pytest.mark.parametrize("kind", [VQ, FSQ])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_is_float64_only_for_float64_layer(kind, dtype):
    layer = kind(8, 16).to(dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert layer(torch.randn(2, 8, 4, 4, dtype=dtype)).loss.dtype == expected
