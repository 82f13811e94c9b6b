"""Objectives: what a tokenizer is trained on, beside its quantizer's own losses."""

from arcvq.objectives.perceptual import PerceptualLoss
from arcvq.objectives.reconstruction import Reconstruction, ReconstructionConfig
from arcvq.registry import Registry

OBJECTIVES: Registry[Reconstruction] = Registry("objective", {"reconstruction": Reconstruction})

__all__ = ["OBJECTIVES", "PerceptualLoss", "Reconstruction", "ReconstructionConfig"]
