"""Objectives: what a tokenizer is trained on, beside its quantizer's own losses."""

from arcvq.objectives.reconstruction import LikelihoodConfig, Reconstruction, ReconstructionConfig

__all__ = ["LikelihoodConfig", "Reconstruction", "ReconstructionConfig"]
