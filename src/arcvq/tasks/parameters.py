"""Parameters chosen by the beginnings of their names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from arcvq.errors import ArcvqError


def matches_prefix(name: str, prefixes: Sequence[str]) -> bool:
    """Whether a dotted name is one of the prefixes, or is below one; every name is when there are none."""
    return not prefixes or any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def check_prefixes(names: Sequence[str], prefixes: Sequence[str], where: str) -> None:
    """Fail if a prefix matches none of the names."""
    for prefix in prefixes:
        if not any(matches_prefix(name, [prefix]) for name in names):
            parts = ", ".join(sorted({name.split(".")[0] for name in names}))
            raise ArcvqError(f"{where}: no parameter's name begins with {prefix!r}; the parts are {parts}")


def set_trained(network: nn.Module, prefixes: Sequence[str] | None) -> None:
    """Turn gradients on for the parameters that match a prefix, and off for the others. Empty: on for all; None: off for all."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(prefixes is not None and matches_prefix(name, prefixes))


def trained_parameters(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that have gradients on."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
