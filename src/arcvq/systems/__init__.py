"""Systems: the named rows of the tables, the configuration of a run, and the presets that fix one."""

from arcvq.systems.catalogue import SYSTEMS, System
from arcvq.systems.config import DataConfig, RunConfig, TokenizerConfig
from arcvq.systems.dry_run import DryRun, dry_run
from arcvq.systems.image_sets import ImageSets, load_image_sets
from arcvq.systems.measure import Measured, measure
from arcvq.systems.measure_generator import MeasuredGenerator, measure_generator
from arcvq.systems.nearest import write_nearest
from arcvq.systems.parsing import parse_config
from arcvq.systems.parts import import_parts, register
from arcvq.systems.presets import load_config, preset_header, preset_names, preset_path, preset_title
from arcvq.systems.prior_config import PriorRunConfig
from arcvq.systems.train import make_trainer, read_run, train

__all__ = [
    "SYSTEMS",
    "DataConfig",
    "DryRun",
    "ImageSets",
    "Measured",
    "MeasuredGenerator",
    "PriorRunConfig",
    "RunConfig",
    "System",
    "TokenizerConfig",
    "dry_run",
    "import_parts",
    "load_config",
    "load_image_sets",
    "make_trainer",
    "measure",
    "measure_generator",
    "parse_config",
    "preset_header",
    "preset_names",
    "preset_path",
    "preset_title",
    "read_run",
    "register",
    "train",
    "write_nearest",
]
