"""The networks of LPIPS and FID, loaded once where they are needed several times."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from torch import nn

_kept: dict[Hashable, nn.Module] | None = None


@contextmanager
def keep_networks() -> Iterator[None]:
    """Inside, a network is loaded once and found again; they go when the outermost block ends."""
    global _kept
    outermost = _kept is None
    if outermost:
        _kept = {}
    try:
        yield
    finally:
        if outermost:
            _kept = None


def kept(key: Hashable, load: Callable[[], nn.Module]) -> nn.Module:
    """What `load` gives, or gave to an earlier caller who looked in the same folders."""
    if _kept is None:
        return load()
    where = (key, os.environ.get("ARCVQ_WEIGHTS"), os.environ.get("TORCH_HOME"))
    if where not in _kept:
        _kept[where] = load()
    return _kept[where]
