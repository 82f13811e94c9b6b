"""A cache of the networks of LPIPS and FID, so that they are loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from torch import nn

_loaded: dict[Hashable, nn.Module] | None = None


@contextmanager
def keep_networks() -> Iterator[None]:
    """Cache the networks that `load_once` loads until the outermost block ends."""
    global _loaded
    outermost = _loaded is None
    if outermost:
        _loaded = {}
    try:
        yield
    finally:
        if outermost:
            _loaded = None


def load_once(key: Hashable, load: Callable[[], nn.Module]) -> nn.Module:
    """Load a network, or return it from the cache of `keep_networks`, whose keys include the folders of weights."""
    if _loaded is None:
        return load()
    full_key = (key, os.environ.get("ARCVQ_WEIGHTS"), os.environ.get("TORCH_HOME"))
    if full_key not in _loaded:
        _loaded[full_key] = load()
    return _loaded[full_key]
