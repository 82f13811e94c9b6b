"""Objectives: what a tokenizer is trained on, beside its quantizer's own losses."""

from arcvq.objectives.adversarial import AdversarialConfig, Discriminator
from arcvq.objectives.image import PerceptualConfig, PerceptualObjective
from arcvq.objectives.objective import Objective
from arcvq.objectives.perceptual import PerceptualLoss
from arcvq.objectives.reconstruction import Reconstruction, ReconstructionConfig
from arcvq.registry import Registry

OBJECTIVES: Registry[Objective] = Registry(
    "objective", {"reconstruction": Reconstruction, "perceptual": PerceptualObjective}
)

__all__ = [
    "OBJECTIVES",
    "AdversarialConfig",
    "Discriminator",
    "Objective",
    "PerceptualConfig",
    "PerceptualLoss",
    "PerceptualObjective",
    "Reconstruction",
    "ReconstructionConfig",
]
