"""Parts of your own: registered by name, so that a YAML can pick them by `kind`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arcvq.config import did_you_mean
from arcvq.errors import ArcvqError
from arcvq.nets import AUTOENCODERS, DISCRIMINATORS
from arcvq.nets.features import FEATURES
from arcvq.objectives import OBJECTIVES
from arcvq.priors import PRIORS
from arcvq.quantizers import QUANTIZERS
from arcvq.systems.config import RunConfig
from arcvq.systems.parsing import TASKS

REGISTRIES: dict[str, Any] = {
    "autoencoder": AUTOENCODERS,
    "discriminator": DISCRIMINATORS,
    "objective": OBJECTIVES,
    "prior": PRIORS,
    "quantizer": QUANTIZERS,
}


def register(what: str, name: str, cls: Callable[..., Any]) -> None:
    """Add a part: `register("quantizer", "mine", MyQuantizer)`.

    what  autoencoder, discriminator, objective, prior or quantizer: a class with a dataclass `Config` of its own, picked by `kind: NAME`;
          task: a dataclass that derives from RunConfig, picked by `task: NAME`
          features: a function of the device that loads a frozen encoder, picked by `features: NAME` of the quantizer `projected`
    """
    if what == "task":
        if not (isinstance(cls, type) and issubclass(cls, RunConfig)):
            raise ArcvqError(
                f"{getattr(cls, '__name__', cls)}: a task is registered by its configuration, which derives from RunConfig"
            )
        if name in TASKS:
            raise ArcvqError(f"there is a task {name!r} already: choose another name")
        TASKS[name] = cls
    elif what == "features":
        if name in FEATURES:
            raise ArcvqError(f"there are features {name!r} already: choose another name")
        FEATURES[name] = cls
    elif what in REGISTRIES:
        REGISTRIES[what].register(name, cls)
    else:
        raise ArcvqError(f"unknown part {what!r}{did_you_mean(what, [*REGISTRIES, 'task', 'features'])}")


def import_parts(path: str | Path) -> None:
    """Run a Python file that registers parts. Only a command line or a program names it, never a YAML."""
    path = Path(path)
    if not path.is_file():
        raise ArcvqError(f"{path}: no such file: --import takes a Python file")
    name = f"{path.resolve()} (imported)"  # no other module has this name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArcvqError(f"{path}: not a Python file: --import takes a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except ArcvqError as error:
        raise ArcvqError(f"{path}: {error}") from None
    except Exception as error:
        raise ArcvqError(f"{path}, line {_line_in(path, error)}: {type(error).__name__}: {error}") from error


def _line_in(path: Path, error: Exception) -> int | None:
    """The line of this file that raised the error, or called what raised it."""
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if Path(frame.filename).resolve() == path.resolve()), None)
