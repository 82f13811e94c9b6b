"""A process that runs one command after another, as `arcvq` would each: what takes long to begin is begun once.

    python -m arcvq.worker MODULE ...

imports the modules, then reads jobs from its input, a line of JSON each: {"words": [...], "log": FILE}. It answers each with the
command's exit code. After a command that fails it ends: what such a one leaves behind is not to be trusted. When its input ends,
whoever gave the jobs is gone: a command that still runs then is told to stop, and a training saves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from queue import SimpleQueue

import torch

from arcvq import cli
from arcvq.metrics import keep_networks
from arcvq.training.step import forget_trainings


def main(modules: Sequence[str]) -> int:
    # Jobs and answers have channels of their own: whatever a command prints must not be taken for an answer.
    # Without a buffer, whose lock a waiting thread would hold when the process ends.
    jobs, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    surroundings = Surroundings()
    for module in modules:
        import_module(module)
    with keep_networks():
        for line in until_alone(jobs):
            job = json.loads(line)
            surroundings.restore()
            code = run(job["words"], job["log"])
            answers.write(f"{code}\n")
            answers.flush()
            if code:
                return code
            forget_trainings()  # here, between two commands, it costs nobody time
    return 0


def until_alone(jobs: Iterable[bytes]) -> Iterator[bytes]:
    """The jobs. A thread waits for them, so that the end of the input is seen while one runs."""
    given: SimpleQueue[bytes | None] = SimpleQueue()

    def wait() -> None:
        for line in jobs:
            given.put(line)
        given.put(None)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
    while (line := given.get()) is not None:
        yield line


def run(words: Sequence[str], log: str) -> int:
    """The command in this process, with what it prints in its log."""
    own = [os.dup(descriptor) for descriptor in (1, 2)]
    with open(log, "ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        return cli.main(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, before in zip((1, 2), own):
            os.dup2(before, descriptor)
            os.close(before)


class Surroundings:
    """What a command may change around it, as the first one finds it."""

    def __init__(self) -> None:
        self.folder, self.environment = os.getcwd(), dict(os.environ)
        self.seed, self.dtype = torch.initial_seed(), torch.get_default_dtype()

    def restore(self) -> None:
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.manual_seed(self.seed)
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
