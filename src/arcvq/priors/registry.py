"""The priors by kind."""

from __future__ import annotations

from arcvq.priors.gpt import Gpt
from arcvq.priors.prior import Prior
from arcvq.registry import Registry

PRIORS: Registry[Prior] = Registry("prior", {"gpt": Gpt})
