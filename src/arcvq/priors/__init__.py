"""Priors over tokens and latents, and what makes images with them."""

from arcvq.priors.autoregressive import AutoregressivePrior
from arcvq.priors.generator import CHUNK, Generator, make_grid
from arcvq.priors.gpt import Gpt, GptConfig
from arcvq.priors.ldm import Ldm, LdmConfig
from arcvq.priors.maskgit import MaskGit, MaskGitConfig
from arcvq.priors.noise import Noise
from arcvq.priors.pixelcnn import PixelCnn, PixelCnnConfig
from arcvq.priors.prior import Grid, Prior, PriorConfig
from arcvq.priors.registry import PRIORS
from arcvq.priors.rq_transformer import RqTransformer, RqTransformerConfig
from arcvq.priors.sampling import SamplingOptions

__all__ = [
    "CHUNK",
    "PRIORS",
    "AutoregressivePrior",
    "Generator",
    "Gpt",
    "GptConfig",
    "Grid",
    "Ldm",
    "LdmConfig",
    "MaskGit",
    "MaskGitConfig",
    "Noise",
    "PixelCnn",
    "PixelCnnConfig",
    "Prior",
    "PriorConfig",
    "RqTransformer",
    "RqTransformerConfig",
    "SamplingOptions",
    "make_grid",
]
