"""The layers GroupNorm and SelfAttention: their parameters, their results, their memory layout."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from arcvq import ArcvqError
from arcvq.functional import Activation
from arcvq.nets import GroupNorm, SelfAttention

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


def test_group_norm_takes_weights_of_torchs() -> None:
    plain, module = nn.GroupNorm(4, 8, eps=1e-6), GroupNorm(8, groups=4, activation="silu")
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    module.load_state_dict(plain.state_dict(), strict=True)
    x = torch.randn(2, 8, 3, 5)
    torch.testing.assert_close(module(x), F.silu(plain(x)))


def test_new_group_norm_only_normalises() -> None:
    y = GroupNorm(64)(torch.randn(2, 64, 6, 6) * 3 + 5).view(2, 32, -1)
    torch.testing.assert_close(y.mean(2), torch.zeros(2, 32), rtol=0, atol=1e-5)
    torch.testing.assert_close(y.var(2, correction=0), torch.ones(2, 32), rtol=1e-4, atol=0)


def test_group_norm_says_what_it_is() -> None:
    assert "64, groups=32, eps=1e-06, activation='silu'" in repr(GroupNorm(64, activation="silu"))


@pytest.mark.parametrize(
    ("channels", "activation", "fact"), [(48, "none", "48 channels"), (64, "gelu", "activation 'gelu'")]
)
def test_group_norm_with_wrong_option_raises(channels: int, activation: Activation, fact: str) -> None:
    with pytest.raises(ArcvqError, match=fact):
        GroupNorm(channels, activation=activation)


@LAYOUTS
@pytest.mark.parametrize("masked", [False, True])
def test_self_attention_equals_torchs_in_float64(masked: bool, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(8, GroupNorm(8, groups=4)).double()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64).contiguous(memory_format=layout)
    mask = torch.eye(12, dtype=torch.bool) | (torch.rand(2, 12, 12) > 0.5) if masked else None
    normal = layer.norm(x)
    q, k, v = (each(normal).flatten(2).mT for each in (layer.q, layer.k, layer.v))
    attended = F.scaled_dot_product_attention(q, k, v, mask).mT.reshape(x.shape)
    y = layer(x, mask)
    torch.testing.assert_close(y, x + layer.proj_out(attended), check_stride=False)
    assert y.is_contiguous(memory_format=layout)


@LAYOUTS
def test_self_attention_gives_gradients_to_all_parameters(layout: torch.memory_format) -> None:
    layer = SelfAttention(8, GroupNorm(8, groups=4))
    x = torch.randn(2, 8, 3, 4).contiguous(memory_format=layout).requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad is not None
    # The softmax does not see what all keys have in common, so the bias of k has none.
    assert [n for n, p in layer.named_parameters() if not p.grad.abs().max() > 1e-4] == ["k.bias"]


def test_self_attention_has_names_of_published_weights() -> None:
    names = {name: tuple(value.shape) for name, value in SelfAttention(8, GroupNorm(8, 4)).state_dict().items()}
    convolutions = {f"{name}.weight": (8, 8, 1, 1) for name in ("q", "k", "v", "proj_out")}
    assert names == {**convolutions, **{f"{name}.bias": (8,) for name in ("norm", "q", "k", "v", "proj_out")}} | {
        "norm.weight": (8,)
    }


@LAYOUTS
def test_self_attention_under_autocast_keeps_layout_and_residual(layout: torch.memory_format) -> None:
    layer = SelfAttention(8, GroupNorm(8, groups=4))
    x = torch.randn(2, 8, 3, 4).contiguous(memory_format=layout)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.float32
    assert y.is_contiguous(memory_format=layout)
    torch.testing.assert_close(y, layer(x), rtol=0.02, atol=0.02)
