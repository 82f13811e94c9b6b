"""Running a plan: several trainings at a time, each a process of its own, each measured when it is trained."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcvq.errors import Stopped
from arcvq.storage import read_json
from arcvq.sweep.plan import Plan, Planned, estimate
from arcvq.training.interruption import stop_signals

POLL = 0.2


@dataclass
class Outcome:
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)  # stopped when the time was up; the same command goes on
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return self.__dict__.copy()


@dataclass
class Job:
    """A run in work: first its training, then its measuring."""

    planned: Planned
    log: Path
    process: subprocess.Popen[bytes] | None = None
    measuring: bool = False
    began: float = 0.0
    trained_in: float | None = None  # None: it was trained before

    def start(self, command: list[str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def last_line(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def run_plan(
    plan: Plan,
    *,
    budget: float | None = None,
    split: bool = False,
    download: bool = False,
    say: Callable[[str], None] = print,
) -> Outcome:
    """`budget` in minutes: a run that cannot end in time is not started (with `split`, it is), and what still runs then is
    told to save and stop. Runs go on where they were left, so the same call finishes the rest."""
    runner = Runner(plan, download, say)
    plan.times.save()
    deadline = None if budget is None else time.monotonic() + 60 * budget
    began = time.monotonic()
    with stop_signals() as signalled:
        try:
            runner.work(deadline, split, signalled)
        finally:
            runner.stop()
    outcome = runner.outcome
    outcome.seconds = time.monotonic() - began
    outcome.left = [planned.run.key for planned in runner.waiting]
    count = len(outcome.done)
    say(
        f"{count} measured, {len(outcome.failed)} failed, {len(outcome.cut)} cut short, {len(outcome.left)} not started, "
        f"in {outcome.seconds / 60:.1f} minutes" + (f", {outcome.seconds / 60 / count:.1f} a run" if count else "")
    )
    if outcome.left and not (outcome.done or outcome.failed or outcome.cut):
        shortest = min(planned.seconds(1) or 0.0 for planned in runner.waiting) / 60
        say(f"nothing fits: the shortest run needs {shortest:.1f} minutes; give a larger --budget, or --split")
    if signalled:
        raise Stopped("the sweep was stopped; the same command goes on")
    return outcome


class Runner:
    def __init__(self, plan: Plan, download: bool, say: Callable[[str], None]) -> None:
        self.plan, self.places, self.download, self.say = plan, plan.places, download, say
        self.waiting = list(plan.open)
        self.jobs: list[Job] = []
        self.outcome = Outcome()

    def work(self, deadline: float | None, split: bool, signalled: list[int]) -> None:
        while (self.waiting or self.jobs) and not signalled:
            if deadline is not None and time.monotonic() >= deadline:
                return
            self.fill(deadline, split)
            if not self.jobs:
                return
            time.sleep(POLL)
            for job in [job for job in self.jobs if job.process is not None and job.process.poll() is not None]:
                self.advance(job)

    def fill(self, deadline: float | None, split: bool) -> None:
        """As many at a time as were asked for, the first that can end in time first."""
        for planned in list(self.waiting):
            if len(self.jobs) >= self.plan.parallel:
                return
            if deadline is None or split or self.fits(planned, deadline):
                self.waiting.remove(planned)
                self.begin(planned)

    def fits(self, planned: Planned, deadline: float) -> bool:
        width = min(self.plan.parallel, len(self.jobs) + len(self.waiting))
        seconds = planned.seconds(width)
        return seconds is None or time.monotonic() + seconds <= deadline

    def begin(self, planned: Planned) -> None:
        run = planned.run
        job = Job(planned, self.places.runs / f"{run.key}.log")
        self.jobs.append(job)
        if run.trained(self.places):
            self.say(f"{run.key}: is measured")
            self.measure(job)
        else:
            self.say(f"{run.key}: {'goes on' if planned.state == 'begun' else 'begins'}")
            job.start(run.train_command(self.places))

    def measure(self, job: Job) -> None:
        job.measuring = True
        job.planned.run.keep(self.places)
        job.start(job.planned.run.evaluate_command(self.places, self.download))

    def advance(self, job: Job) -> None:
        """A process has ended: the next one of its run, or the run's end."""
        assert job.process is not None
        run, took = job.planned.run, time.monotonic() - job.began
        if job.process.returncode:
            self.jobs.remove(job)
            self.outcome.failed[run.key] = job.last_line()
            self.say(f"{run.key}: failed: {job.last_line()}")
        elif not job.measuring:
            job.trained_in = took
            self.measure(job)
        else:
            self.jobs.remove(job)
            self.finish(job, took)

    def finish(self, job: Job, measured_in: float) -> None:
        run = job.planned.run
        run.lay_over(self.places)
        self.outcome.done.append(run.key)
        if job.planned.state != "begun" and job.trained_in is not None:  # the whole training was seen
            steps = read_json(run.folder(self.places).training, "a finished run")["steps"]
            width = min(self.plan.parallel, len(self.plan.open))
            self.plan.times.learn(run, steps, job.trained_in / width, measured_in)
            for planned in self.waiting:
                estimate(planned, self.plan.times, self.places)
        metrics = read_json(run.result(self.places), "a result")["protocols"]["exact"]
        lacking = [name for name in ("lpips", "rfid") if name in metrics["missing"]]
        note = f", without {' and '.join(lacking)}" if lacking else ""
        trained = "" if job.trained_in is None else f", trained in {job.trained_in / 60:.1f} minutes"
        self.say(f"{run.key}: PSNR {metrics['metrics']['psnr']:.2f}{note}{trained}, measured in {measured_in:.0f} s")

    def stop(self) -> None:
        """Tell what still runs to save and stop, and wait for it."""
        running = [job for job in self.jobs if job.process is not None and job.process.poll() is None]
        for job in running:
            assert job.process is not None
            job.process.terminate()
        for job in self.jobs:
            assert job.process is not None
            job.process.wait()
            self.outcome.cut.append(job.planned.run.key)
            self.say(f"{job.planned.run.key}: stopped; the same command goes on")
        self.jobs.clear()
