"""Systems: named, trainable configurations, and the presets that fix them."""

from arcvq.systems import catalogue, hvq_vae  # noqa: F401  (each registers its systems)
from arcvq.systems.config import DataConfig, StageConfig, TrainingConfig
from arcvq.systems.presets import load_system, preset_header, preset_names, preset_path, preset_title
from arcvq.systems.registry import SYSTEMS, System, parse_system

__all__ = [
    "SYSTEMS",
    "DataConfig",
    "StageConfig",
    "System",
    "TrainingConfig",
    "load_system",
    "parse_system",
    "preset_header",
    "preset_names",
    "preset_path",
    "preset_title",
]
