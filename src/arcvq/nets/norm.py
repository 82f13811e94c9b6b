"""GroupNorm with an optional SiLU, in one pass of a kernel where there is one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcvq.functional.group_norm import Activation, check_activation, check_groups, group_norm


class GroupNorm(nn.Module):
    """GroupNorm of (B, C, H, W), then SiLU if that is the activation. Its parameters are those of nn.GroupNorm."""

    def __init__(self, channels: int, groups: int = 32, eps: float = 1e-6, activation: Activation = "none") -> None:
        super().__init__()
        check_groups(channels, groups)
        check_activation(activation)
        self.groups, self.eps, self.activation = groups, eps, activation
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """The norm of x, or of x + offset (C,)."""
        parameters = self.groups, self.weight, self.bias, self.eps
        return group_norm(x, *parameters, activation=self.activation, offset=offset)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, groups={self.groups}, eps={self.eps}, activation={self.activation!r}"
