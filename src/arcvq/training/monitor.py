"""What a training shows and writes down: a progress bar, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from arcvq.errors import Diverged
from arcvq.metrics import metric_label
from arcvq.storage import write_error
from arcvq.training.event_file import EventFile
from arcvq.training.run import RunFolder


class Monitor:
    """Logs a training. Active on the first process; on the others its methods do nothing."""

    def __init__(
        self,
        run: RunFolder,
        total_steps: int,
        *,
        headline: Sequence[str] = (),
        active: bool = True,
        quiet: bool = False,
    ) -> None:
        """`headline`: the numbers of an evaluation that the progress shows."""
        self.active, self.run, self.headline = active, run, headline
        self.first_step = 0  # a resumed run's: TensorBoard forgets what came after it
        self.began = time.perf_counter()  # a resumed run's: earlier, by what it took before
        console = Console(stderr=True)
        self._lines = active and not quiet and not console.is_terminal
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not active or quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task(run.path.name, total=total_steps, status="")
        self._status: dict[str, str] = {}
        self._since: tuple[float, int] | None = None

    def __enter__(self) -> Monitor:
        if self.active:
            try:
                self._file = self.run.metrics.open("ab")
            except OSError as error:
                raise write_error(self.run.path, error) from None
            self._events = EventFile(self.run.tensorboard, self.first_step + 1)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active:
            self._progress.stop()
            # Every line was flushed as it was written: what closing fails to write has been reported already.
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._events.close()

    def samples_per_second(self, total_samples: int) -> float | None:
        """The training speed since the last call; None on the first call."""
        now = time.perf_counter()
        before, self._since = self._since, (now, total_samples)
        return None if before is None or now == before[0] else (total_samples - before[1]) / (now - before[0])

    def reset_speed(self) -> None:
        """Leave the time until the next log out of the training speed: an evaluation takes it."""
        self._since = None

    def log_train(self, step: int, epoch: float, values: dict[str, Any], headline: Sequence[str]) -> None:
        """Write a `kind: train` line and show the progress."""
        self._write({"kind": "train", "step": step, "epoch": epoch, **values})
        self._status |= {name: _with_label(name, values[name]) for name in headline}
        if values.get("samples_per_second"):
            self._status["speed"] = f"{values['samples_per_second']:,.0f}/s"
        self.show(step)

    def log_evaluation(self, step: int, epoch: float, values: dict[str, Any]) -> None:
        """Write a `kind: eval` line and show the headline numbers."""
        self._write({"kind": "eval", "step": step, "epoch": epoch, **values})
        self._status |= {
            name: _with_label(name, values[name]) for name in self.headline if values.get(name) is not None
        }
        self.show(step)
        if self._lines:
            status = "  ".join(self._status.values())
            self._console.print(f"{self.run.path.name} step {step}: {status}", highlight=False, soft_wrap=True)

    def show(self, step: int) -> None:
        """Update the progress bar."""
        if self.active:
            self._progress.update(self._task, completed=step, status="  ".join(self._status.values()))

    def flush(self) -> None:
        """Write metrics.jsonl to disk: a checkpoint must not be ahead of its log."""
        if self.active:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise write_error(self.run.metrics, error) from None

    def _write(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and its numbers to TensorBoard's file."""
        if not self.active:
            return
        record["seconds"] = time.perf_counter() - self.began
        try:
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise write_error(self.run.metrics, error) from None
        except ValueError:
            odd = ", ".join(f"{name} {value}" for name, value in record.items() if not _is_finite(value))
            raise Diverged(f"training diverged at step {record['step']}: not finite: {odd}") from None
        numbers = {name: value for name, value in record.items() if isinstance(value, (int, float)) and name != "step"}
        self._events.add({f"{record['kind']}/{name}": value for name, value in numbers.items()}, record["step"])


def _with_label(name: str, value: float) -> str:
    """A metric as the tables print it, e.g. `PSNR 24.61`."""
    metric = metric_label(name)
    return f"{metric.label} {value:{metric.format}}"


def _is_finite(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return all(math.isfinite(number) for number in numbers if isinstance(number, float))
