"""Trainings that share a device: how many steps a second they take together, by themselves and under MPS.

    python -m arcvq.bench.packing SPEC

is one of them. It answers that it is ready when its steps are compiled and recorded. For a line with a number of seconds it trains so
long and answers with its steps and what they took; then it trains on until the next line, so that nobody is timed while others rest.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from arcvq.bench.suite import machine
from arcvq.bench.training import PRESETS, WAYS, begin, epoch, played
from arcvq.errors import ArcvqError, Stopped
from arcvq.sweep.sharing import PIPES, mps, mps_available
from arcvq.sweep.workers import POLL
from arcvq.training.interruption import stop_signals

AT_A_TIME = (1, 2, 3, 4, 6)


def run_packing(
    device: torch.device,
    *,
    presets: Sequence[str] | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    seconds: float = 0.5,
    progress: Callable[[str, int, int], None] | None = None,
    save: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """One row per preset, number of trainings at a time and, where MPS can be had, with it and without. `save` is given what there
    is after each."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    way = "bf16 captured compiled" if kind == "cuda" else "fp32 eager"
    presets = presets or PRESETS[kind][-1:]
    modes = (False, True) if mps_available(device) else (False,)
    rows: list[dict[str, Any]] = []
    document = {**machine(device), "suite": "packing", "rows": rows}
    for preset in presets:
        size = played(preset, way, device, batch_size).data.batch_size
        spec = {"preset": preset, "way": way, "device": kind, "batch_size": size, "limit": limit}
        head = {"task": "packing", "preset": preset, "way": way, **WAYS[way], "batch_size": size}
        for wanted in modes:
            with stop_signals() as signalled, mps(wanted, say) as environment:
                if wanted and not environment:
                    continue
                for times in _together(spec, environment, seconds, signalled):
                    rows.append({**head, "at_a_time": len(times), "mps": wanted, **_speed(times)})
                    if save is not None:
                        save(document)
                    if progress is not None:
                        progress("packing", len(rows), len(presets) * len(modes) * len(AT_A_TIME))
    return document


def _speed(times: list[tuple[int, float]]) -> dict[str, Any]:
    return {
        "steps_per_second": sum(steps / seconds for steps, seconds in times),
        "milliseconds": [1e3 * seconds / steps for steps, seconds in times],
    }


def _together(
    spec: dict[str, Any], environment: Mapping[str, str], seconds: float, signalled: list[int]
) -> Iterator[list[tuple[int, float]]]:
    """Steps and seconds of each, for every number of trainings at a time; the processes are made once."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        here = Path(folder)
        # Where there is no daemon, there is no MPS, whatever runs elsewhere.
        environment = environment or {PIPES: folder}
        trainings = [
            stack.enter_context(Training({**spec, "folder": str(here / str(i))}, environment, here / f"{i}.log"))
            for i in range(max(AT_A_TIME))
        ]
        for training in trainings:
            training.hear(signalled)
        for count in AT_A_TIME:
            for training in trainings[:count]:
                training.tell(seconds)
            yield [training.hear(signalled) for training in trainings[:count]]
            for training in trainings[:count]:
                training.tell("enough")


class Training:
    """A process that trains when it is told to; it ends with the block."""

    def __init__(self, spec: dict[str, Any], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "arcvq.bench.packing", json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                env={**os.environ, **environment},
                process_group=0,  # Ctrl-C is for the bench alone
            )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def tell(self, what: float | str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: `hear` says so
            self.process.stdin.write(f"{what}\n".encode())

    def hear(self, signalled: list[int]) -> Any:
        assert self.process.stdout is not None
        while not select.select([self.process.stdout], [], [], POLL)[0]:
            if signalled:
                raise Stopped("the bench was stopped")
        if line := self.process.stdout.readline():
            return json.loads(line)
        code = self.process.wait()
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        why = f"signal {-code}" if code < 0 else lines[-1] if lines else f"exit code {code}"
        raise ArcvqError(f"a training of the bench has ended before its time: {why}")


def main(spec: dict[str, Any]) -> None:
    # Answers have a channel of their own: whatever a library prints must not be taken for one.
    told, answers = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    system = played(spec["preset"], spec["way"], torch.device(spec["device"]), spec["batch_size"])
    run, batches = begin(system, spec["limit"], spec["folder"])
    epoch(run, batches)  # compiles and records
    answer("ready")
    while line := told.readline():
        steps, took, answered = 0, 0.0, False
        while not select.select([told], [], [], 0)[0]:
            took += epoch(run, batches) * run.batches_per_epoch
            steps += run.batches_per_epoch
            if took >= float(line) and not answered:
                answer((steps, took))
                answered = True
        told.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
