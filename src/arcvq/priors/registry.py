"""The priors by kind."""

from __future__ import annotations

from arcvq.priors.gpt import Gpt
from arcvq.priors.ldm import Ldm
from arcvq.priors.maskgit import MaskGit
from arcvq.priors.pixelcnn import PixelCnn
from arcvq.priors.prior import Prior
from arcvq.priors.rq_transformer import RqTransformer
from arcvq.registry import Registry

PRIORS: Registry[Prior] = Registry(
    "prior",
    {
        "gpt": Gpt,
        "ldm": Ldm,
        "maskgit": MaskGit,
        "pixelcnn": PixelCnn,
        "rq-transformer": RqTransformer,
    },
)
