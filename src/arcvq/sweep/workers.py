"""Processes that live as long as the sweep and run its commands one after another, seen from the sweep."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

POLL = 0.05  # seconds between two looks at a worker
# What each kind imports while it has nothing to do yet.
TRAINING = ("arcvq.training", "torch.utils.tensorboard")
MEASURING = ("arcvq.training", "lpips", "torch_fidelity")


def last_line(said: str) -> str:
    """Why a command failed, without its name before it; empty if it said nothing."""
    return (said.strip().splitlines() or [""])[-1].removeprefix("arcvq: ")


class Worker:
    """One process of `arcvq.worker`. A job that fails, or kills it, is its last."""

    def __init__(self, modules: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            # A group of its own: Ctrl-C comes to the sweep alone, which then tells its workers.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "arcvq.worker", *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                env={**os.environ, **(environment or {})},
                process_group=0,
            )

    def start(self, words: Sequence[str], log: Path) -> None:
        assert self.process.stdin is not None
        job = {"words": list(words), "log": str(log)}
        with suppress(BrokenPipeError):  # it has died while it had nothing to do: `poll` tells
            self.process.stdin.write(json.dumps(job).encode() + b"\n")

    def poll(self) -> int | None:
        """The exit code of its command, None while that runs."""
        assert self.process.stdout is not None
        ended = self.process.poll()
        if select.select([self.process.stdout], [], [], 0)[0] and (line := self.process.stdout.readline()):
            return int(line)
        return None if ended is None else ended or 1

    def stop(self) -> None:
        """A training saves and ends; anything else just ends."""
        self.process.terminate()

    def wait(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
