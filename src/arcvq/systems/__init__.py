"""Systems: the named rows of the tables, the configuration of a run, and the presets that fix one."""

from arcvq.systems.catalogue import SYSTEMS, System
from arcvq.systems.config import DataConfig, RunConfig, TokenizerConfig
from arcvq.systems.dry_run import DryRun, dry_run
from arcvq.systems.measure import Measured, measure
from arcvq.systems.measure_generator import MeasuredGenerator, measure_generator
from arcvq.systems.nearest import Neighbourhood, load_neighbourhood, write_nearest
from arcvq.systems.parsing import parse_config
from arcvq.systems.parts import import_parts, register
from arcvq.systems.presets import load_config, preset_header, preset_names, preset_path, preset_title
from arcvq.systems.prior_config import PriorRunConfig
from arcvq.systems.train import make_trainer, read_run, train

__all__ = [
    "SYSTEMS",
    "DataConfig",
    "DryRun",
    "Measured",
    "MeasuredGenerator",
    "Neighbourhood",
    "PriorRunConfig",
    "RunConfig",
    "System",
    "TokenizerConfig",
    "dry_run",
    "import_parts",
    "load_config",
    "load_neighbourhood",
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
