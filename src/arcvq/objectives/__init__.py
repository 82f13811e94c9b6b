"""Objectives: what a tokenizer is trained on, beside its quantizer's own losses."""

from arcvq.objectives.reconstruction import Reconstruction, ReconstructionConfig

__all__ = ["Reconstruction", "ReconstructionConfig"]
