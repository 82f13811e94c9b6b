"""The options of every quantizer, and checks of options."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from arcvq.config import did_you_mean, parse
from arcvq.errors import ArcvqError

Config = TypeVar("Config")


@dataclasses.dataclass(kw_only=True)
class QuantizerConfig:
    """The options of every quantizer.

    codebook_size  K
    code_dim       width of a code; if it is not dim / heads, a linear layer maps latents to codes and another one back
    heads          each position's vector is cut into this many parts; each has its own token, all share one codebook
    channel_last   latents are (B, *spatial, D) instead of (B, D, *spatial)
    total_steps    planned optimizer steps, for schedules that need them
    """

    codebook_size: int = 512
    code_dim: int | None = None
    heads: int = 1
    channel_last: bool = False
    total_steps: int | None = None

    def __post_init__(self) -> None:
        check_sizes(codebook_size=self.codebook_size, heads=self.heads, code_dim=self.code_dim)


def parse_options(config: type[Config], options: dict[str, Any]) -> Config:
    """A config from keyword arguments; the error for an unknown one suggests the nearest name."""
    names = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    for name in options:
        if name not in names:
            raise ArcvqError(f"unknown option {name!r}{did_you_mean(name, names)}")
    return parse(config, options)


def check_sizes(**sizes: int | None) -> None:
    """Raise unless each named size is None or at least 1."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ArcvqError(f"{name} must be at least 1, got {size}")


def check_weights(**weights: float) -> None:
    """Raise if a named weight is negative."""
    for name, weight in weights.items():
        if weight < 0:
            raise ArcvqError(f"{name} must not be negative, got {weight}")
