"""A mapping (of a YAML file, of a run) → the configuration of a run: the task picks the dataclass, the system gives defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arcvq.config import did_you_mean, merge, parse
from arcvq.errors import ArcvqError
from arcvq.registry import NOT_REGISTERED
from arcvq.systems.catalogue import SYSTEMS
from arcvq.systems.config import RunConfig, StackedTokenizerConfig, TokenizerConfig
from arcvq.systems.prior_config import PriorRunConfig

TASKS: dict[str, type[RunConfig]] = {
    "tokenizer": TokenizerConfig,
    "stacked": StackedTokenizerConfig,
    "prior": PriorRunConfig,
}


def config_class(data: Mapping[str, Any]) -> type[RunConfig]:
    """The dataclass that a configuration's `task` picks."""
    task = data.get("task", "tokenizer")
    if not isinstance(task, str) or task not in TASKS:
        raise ArcvqError(f"unknown task {task!r}{did_you_mean(str(task), TASKS)}{NOT_REGISTERED}")
    return TASKS[task]


def with_defaults(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings on top of their system's defaults. With another kind of quantizer, say, a run is no longer of its system: then
    `system` is None, or an error where the system needs its kind."""
    name = data.get("system")
    if name is None:
        if "task" not in data:
            raise ArcvqError(f"missing key 'system' (or 'task'): expected one of {', '.join(sorted(SYSTEMS))}")
        return dict(data)
    if not isinstance(name, str) or name not in SYSTEMS:
        raise ArcvqError(f"unknown system {name!r}{did_you_mean(str(name), SYSTEMS)}")
    system = SYSTEMS[name]
    settings = merge(system.defaults, data)
    for section, defaults in system.defaults.items():
        own, given = defaults.get("kind") if isinstance(defaults, Mapping) else None, settings[section]
        kind = given.get("kind") if isinstance(given, Mapping) else own
        if kind == own:
            continue
        if section in system.kinds:
            raise ArcvqError(
                f"{section}.kind: {name} is made with {own}, got {kind!r}: leave `system` out and say `task: tokenizer`"
            )
        settings = {"task": "tokenizer", **settings, "system": None}
    return settings


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """A mapping (of a YAML file, of a run) → the configuration of a run."""
    settings = with_defaults(data)
    return parse(config_class(settings), settings)
