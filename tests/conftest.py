"""What every test stands on: one thread for each process, no network, and tokenizers and trainings that are tiny."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Tests, their subprocesses and whatever else runs here would each want every core and wait for one another. One thread
# also makes sums the same on machines with different numbers of cores.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

TINY: dict[str, Any] = {
    "data.limit": 64,
    "data.batch_size": 16,
    "autoencoder.width": 16,
    "autoencoder.residual_width": 8,
    "autoencoder.latent_dim": 8,
    "quantizer.codebook_size": 32,
    "training.steps": 6,
    "training.learning_rate": 1e-3,
    "training.log_every": 1,
    "training.evaluations": 2,
    "training.evaluation_images": 32,
    "training.checkpoints": 2,
}


# Systems without a codebook have no use for its size.
CONTINUOUS = ("vae", "hyperspherical-vae")


def pytest_configure() -> None:
    """Under nohup, SIGHUP is ignored here and in every child; the tests are about what happens without it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def fitting(preset: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k != "quantizer.codebook_size" or preset not in CONTINUOUS}


def as_arguments(settings: dict[str, Any]) -> list[str]:
    return [f"--{key}={'null' if value is None else value}" for key, value in settings.items()]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is found, and nothing left, in the user's cache folder."""
    os.environ["ARCVQ_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tiny_settings() -> Callable[..., list[str]]:
    """`tiny_settings({"training.steps": 3})` → the command line that makes any preset tiny, with these on top."""
    return lambda changes=None: as_arguments({**TINY, **(changes or {})})


@pytest.fixture(scope="session")
def tiny_system() -> Callable[..., Any]:
    """`tiny_system("vq-vae", {"training.steps": 3})` → the sample's preset of that name, made tiny."""
    from arcvq.systems import load_config

    def tiny(preset: str = "arcvq-vae", changes: dict[str, Any] | None = None) -> Any:
        return load_config(f"sample/{preset}", as_arguments(fitting(preset, {**TINY, **(changes or {})})))

    return tiny


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: Callable[..., Any]) -> Path:
    """A finished run that tests read and never write to."""
    from arcvq.systems import train

    run = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_system(), run, quiet=True)
    return run


@pytest.fixture(scope="session")
def sample_pixels() -> torch.Tensor:
    """uint8 (12, 1, 28, 28) of the embedded sample's test images."""
    from arcvq.data import load_images

    return load_images("sample", split="test", limit=12).gather(torch.arange(12))


class NoHostReads(TorchDispatchMode):
    """Refuses what cannot be captured: a value read by the host, one brought from there, a shape that depends on values."""

    FORBIDDEN = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "is_nonzero",
        "equal.default",
        "lift_fresh",
    )

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(function)
        assert not any(word in name for word in self.FORBIDDEN), name
        if name.startswith("aten.index."):
            assert not any(i is not None and i.dtype == torch.bool for i in args[1]), name
        return function(*args, **(kwargs or {}))


@pytest.fixture
def as_if_captured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], TorchDispatchMode]:
    """`with as_if_captured():` quantizers behave as inside a CUDA graph, and what no graph can hold is an error."""
    from arcvq.quantizers import base, vq

    for module in (base, vq):
        monkeypatch.setattr(module, "host_may_read", lambda _: False)
    return NoHostReads


# Long tests go first and processes take work from one another, so that none is left with a long one while the others wait.
LONG = (
    "test_every_block_runs",
    "test_the_demo_trains_compares_and_writes_a_report",
    "test_the_kernels_equal_the_reference_in_the_interpreter",
    "test_a_tokenizer_goes_from_a_preset_to_pictures",
    "test_processes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)
