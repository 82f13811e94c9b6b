"""Shared fixtures: one thread per process, no network, and tiny configurations and runs."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Parallel tests and their subprocesses would compete for the cores. One thread also makes sums equal on machines with
# different numbers of cores.
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


# Systems without a codebook have no codebook_size setting.
CONTINUOUS = ("vae", "hyperspherical-vae")


def pytest_configure() -> None:
    """Handle SIGHUP by default: under nohup it would be ignored here and in subprocesses."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _without_unused_settings(preset: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without codebook_size if the preset has no codebook."""
    return {k: v for k, v in settings.items() if k != "quantizer.codebook_size" or preset not in CONTINUOUS}


def _as_arguments(settings: dict[str, Any]) -> list[str]:
    """Settings as command-line arguments `--key=value`."""
    return [f"--{key}={'null' if value is None else value}" for key, value in settings.items()]


@pytest.fixture(scope="session", autouse=True)
def temporary_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a temporary cache folder instead of the user's."""
    os.environ["ARCVQ_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tiny_settings() -> Callable[..., list[str]]:
    """`tiny_settings({"training.steps": 3})` → arguments that make any preset tiny, with these changes."""
    return lambda changes=None: _as_arguments({**TINY, **(changes or {})})


@pytest.fixture(scope="session")
def tiny_system() -> Callable[..., Any]:
    """`tiny_system("vq-vae", {"training.steps": 3})` → a tiny configuration of the preset sample/vq-vae."""
    from arcvq.systems import load_config

    def tiny(preset: str = "arcvq-vae", changes: dict[str, Any] | None = None) -> Any:
        return load_config(
            f"sample/{preset}", _as_arguments(_without_unused_settings(preset, {**TINY, **(changes or {})}))
        )

    return tiny


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: Callable[..., Any]) -> Path:
    """The folder of a finished run, which tests only read."""
    from arcvq.systems import train

    run = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_system(), run, quiet=True)
    return run


@pytest.fixture(scope="session")
def sample_pixels() -> torch.Tensor:
    """uint8 (12, 1, 28, 28) of the embedded sample's test images."""
    from arcvq.data import load_images

    return load_images("sample", split="test", limit=12).gather(torch.arange(12))


@pytest.fixture(scope="session")
def random_vgg() -> Any:
    """The LPIPS network over VGG16 with random weights of a size that keeps its features alive."""
    from arcvq.metrics.lpips import untrained_network

    network = untrained_network("vgg")
    generator = torch.Generator().manual_seed(0)
    for parameter in network.net.parameters():
        fan_in = parameter[0].numel()
        parameter.data = torch.randn(parameter.shape, generator=generator) * (2 / fan_in) ** 0.5
    return network.requires_grad_(False).eval()


@pytest.fixture(scope="session")
def lpips_folder(random_vgg: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of `random_vgg`."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("weights")
    save_file(random_vgg.net.state_dict(), folder / "vgg16-features.safetensors")
    return folder


@pytest.fixture
def lpips_weights(lpips_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let `lpips_network("vgg")` find the weights of `random_vgg`, so that nothing is downloaded."""
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(lpips_folder))
    return lpips_folder


class NoHostReads(TorchDispatchMode):
    """Refuses operators that a CUDA graph cannot capture: host reads, host tensors, shapes that depend on values."""

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
    """`with as_if_captured():` makes quantizers behave as in a CUDA graph and forbids what a graph cannot capture."""
    from arcvq.quantizers import base, vq

    for module in (base, vq):
        monkeypatch.setattr(module, "host_may_read", lambda _: False)
    return NoHostReads


# Files with long tests run first, and idle workers take tests from busy ones, so that all workers end at the same time.
LONG = (
    "test_documents.py",
    "test_commands.py",
    "test_fused_kernels.py",
    "test_command_processes.py",
    "test_processes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)
