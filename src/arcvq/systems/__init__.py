"""Systems: named, trainable configurations, and the presets that fix them."""

from arcvq.systems import (  # each registers its systems
    arcvq_vae,
    cvq_vae,
    fsq,
    hvq_vae,
    hyperspherical_vae,
    lfq,
    simvq,
    sq_vae,
    vae,
    vq_vae,
    vq_vae_cosine,
    vq_vae_ema,
    vq_vae_rotation,
)
from arcvq.systems.config import DataConfig, StageConfig, TrainingConfig
from arcvq.systems.presets import load_system, preset_header, preset_names, preset_path, preset_title
from arcvq.systems.registry import SYSTEMS, System, parse_system

__all__ = [
    "SYSTEMS",
    "DataConfig",
    "StageConfig",
    "System",
    "TrainingConfig",
    "arcvq_vae",
    "cvq_vae",
    "fsq",
    "hvq_vae",
    "hyperspherical_vae",
    "lfq",
    "load_system",
    "parse_system",
    "preset_header",
    "preset_names",
    "preset_path",
    "preset_title",
    "simvq",
    "sq_vae",
    "vae",
    "vq_vae",
    "vq_vae_cosine",
    "vq_vae_ema",
    "vq_vae_rotation",
]
