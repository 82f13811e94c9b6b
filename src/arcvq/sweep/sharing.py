"""Several processes on one CUDA device: under MPS, NVIDIA's service for that, they run side by side; without it they take turns."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from arcvq.errors import ArcvqError

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 30.0  # seconds that the daemon has for each answer
# A context on the device: a daemon may have started and still serve nobody.
TRIAL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
sys.exit(f"CUDA error {code}" if code else 0)
"""


def mps_available(device: torch.device) -> bool:
    """A daemon is there already, or the program that starts one."""
    return device.type == "cuda" and bool(os.environ.get(PIPES) or shutil.which(CONTROL))


@contextmanager
def mps(wanted: bool, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """What makes a process share the device, for its environment: of the daemon that is there already, else of one that lives as
    long as the block. Nothing if that is not wanted, or cannot be had, and then `say` is told why."""
    there = os.environ.get(PIPES)
    if there or not wanted:
        yield {PIPES: there} if there and wanted else {}
        return
    folder = Path(tempfile.mkdtemp(prefix="arcvq-mps-", dir="/tmp"))  # a socket's path must be short
    pipes, logs = folder / "pipes", folder / "logs"
    pipes.mkdir()
    logs.mkdir()
    clients = {PIPES: str(pipes)}
    # The daemon serves all devices, and its clients choose: were it told which, they would have to count anew.
    everywhere = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    daemon = {**everywhere, **clients, LOGS: str(logs)}
    runs = serves = False
    try:
        try:
            _call([CONTROL, "-d"], daemon, folder)
            runs = True
            _call([sys.executable, "-c", TRIAL], {**os.environ, **clients}, folder)
            serves = True
        except ArcvqError as why:
            say(f"no MPS, so trainings take turns on the device: {why}")
        yield clients if serves else {}
    finally:
        try:
            if runs:
                _call([CONTROL], daemon, folder, "quit\n")
            shutil.rmtree(folder, ignore_errors=True)
        except ArcvqError as why:
            say(f"the MPS daemon may be left behind: {why}; end it with: echo quit | {PIPES}={pipes} {CONTROL}")


def _call(command: Sequence[str], environment: Mapping[str, str], folder: Path, words: str = "") -> None:
    """A command that must end well, and soon. Out of reach of Ctrl-C, which is for the sweep; what it prints goes to a file,
    because a daemon would hold a pipe open."""
    name, log = Path(command[0]).name, folder / "said"
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=file, process_group=0
            )
    except OSError as error:
        raise ArcvqError(f"{name}: {error.strerror}") from None
    try:
        process.communicate(words.encode(), timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ArcvqError(f"{name} did not answer in {PATIENCE:g} seconds") from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        said = log.read_text("utf-8", "replace").strip().splitlines()
        raise ArcvqError(f"{name}: {said[-1] if said else f'ended with {process.returncode}'}")
