"""Running a plan: several trainings at a time, and beside them the measuring of those that are trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcvq.errors import ArcvqError, Stopped
from arcvq.storage import read_json
from arcvq.sweep.archive import write_archive
from arcvq.sweep.plan import Plan, Planned, estimate
from arcvq.sweep.run import PYTHON, Run
from arcvq.sweep.sharing import mps
from arcvq.sweep.workers import MEASURING, POLL, TRAINING, Worker, last_line
from arcvq.training.interruption import stop_signals

Kind = tuple[str, ...]
# A training may take so much longer than it did before: what else is on the device differs.
SLACK = 1.2


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
    """A run in work: first its training, then its measuring; between the two, and without a worker, it waits."""

    planned: Planned
    log: Path
    worker: Worker | None = None
    measuring: bool = False
    began: float = 0.0
    begins_at: int = 0  # in the log, which earlier attempts may have begun
    trained_in: float | None = None  # None: it was trained before
    whole: bool = False  # nothing of its training was there when this sweep began it

    @property
    def training(self) -> bool:
        return self.worker is not None and not self.measuring

    def start(self, worker: Worker, command: list[str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self.worker, self.began, self.begins_at = worker, time.monotonic(), self.log.stat().st_size
        worker.start(command[len(PYTHON) :], self.log)

    def last_line(self, code: int) -> str:
        last = last_line(self.log.read_bytes()[self.begins_at :].decode("utf-8", "replace"))
        if code < 0:
            return f"its process was ended by signal {-code}" + (f" after: {last}" if last else "")
        return last or "it said nothing; workers.log may"


def run_plan(
    plan: Plan,
    *,
    budget: float | None = None,
    split: bool = False,
    download: bool = False,
    archive: Path | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """`budget` in minutes: a run that cannot end in time is not started (with `split`, it is), and what still runs then is
    told to save and stop. Runs go on where they were left, so the same call finishes the rest. `archive` is a tar file of what
    this call has measured, written anew with every run."""
    plan.times.save()
    deadline = None if budget is None else time.monotonic() + 60 * budget
    began = time.monotonic()
    with stop_signals() as signalled, mps(plan.mps, say) as environment:
        if plan.mps and not environment and not plan.asked:
            plan.parallel = 1
        runner = Runner(plan, download, archive, say, environment)
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
        known = [seconds for planned in runner.waiting if (seconds := planned.seconds(SLACK)) is not None]
        needs = f"the shortest run needs {min(known) / 60:.1f} minutes" if known else "no time was left for it"
        say(f"nothing fits: {needs}; give a larger --budget, or --split")
    if signalled:
        raise Stopped("the sweep was stopped; the same command goes on")
    return outcome


class Runner:
    def __init__(
        self,
        plan: Plan,
        download: bool,
        archive: Path | None,
        say: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        self.plan, self.places, self.download, self.archive, self.say = plan, plan.places, download, archive, say
        self.environment = environment  # of its workers, beside the sweep's own
        self.measured: list[Run] = []
        self.waiting = list(plan.open)
        self.jobs: list[Job] = []
        self.idle: dict[Kind, list[Worker]] = {TRAINING: [], MEASURING: []}
        self.outcome = Outcome(failed=plan.foreign)

    def work(self, deadline: float | None, split: bool, signalled: list[int]) -> None:
        changed = True  # only then is there room for another
        while (self.waiting or self.jobs) and not signalled:
            if deadline is not None and time.monotonic() >= deadline:
                return
            if changed:
                self.fill(deadline, split)
            if not self.jobs:
                return
            if not any(job.measuring for job in self.jobs):
                self.measure()
            time.sleep(POLL)
            changed = False
            for job in list(self.jobs):
                if job.worker is not None and (code := job.worker.poll()) is not None:
                    self.advance(job, job.worker, code)
                    changed = True

    def fill(self, deadline: float | None, split: bool) -> None:
        """As many trainings at a time as were asked for, the first that can end in time first; what is trained only queues."""
        for planned in list(self.waiting):
            if not planned.trained and sum(job.training for job in self.jobs) >= self.plan.parallel:
                continue
            if deadline is None or split or self.fits(planned, deadline):
                self.waiting.remove(planned)
                self.begin(planned)

    def fits(self, planned: Planned, deadline: float) -> bool:
        """Measuring is one queue. A training may end before those that began before it are measured; what is trained already waits
        for none that still trains."""
        if planned.train is None:
            return True
        training = sum(job.training for job in self.jobs)
        to_train = training + sum(not other.trained for other in self.waiting)
        width = min(self.plan.parallel, to_train) if training else 1  # the others may not fit
        ahead = sum(job.planned.evaluate for job in self.jobs if not (planned.trained and job.training))
        return time.monotonic() + max(SLACK * planned.train * width, ahead) + planned.evaluate <= deadline

    def begin(self, planned: Planned) -> None:
        run = planned.run
        folder = run.folder(self.places)
        planned.trained = planned.trained or folder.training.is_file()  # by somebody else, since the plan was made
        job = Job(planned, self.places.runs / f"{run.key}.log", whole=not folder.config.is_file())
        self.jobs.append(job)
        if not planned.completes:
            try:
                run.check_folder(self.places)
            except ArcvqError as error:
                self.fail(job, str(error))
                return
        if not planned.trained:
            self.say(f"{run.key}: {'goes on' if planned.state == 'begun' else 'begins'}")
            folder.diverged.unlink(missing_ok=True)  # an earlier attempt's: it would be taken for this one's
            job.start(self.worker(TRAINING), run.train_command(self.places))
            if len(self.jobs) == 1 and not self.idle[MEASURING]:
                self.idle[MEASURING].append(self.worker(MEASURING))  # it gets ready meanwhile

    def measure(self) -> None:
        """The one that has waited longest."""
        job = next((job for job in self.jobs if job.worker is None), None)
        if job is not None:
            if job.trained_in is None:
                self.say(f"{job.planned.run.key}: is measured")
            job.measuring = True
            try:
                job.planned.run.keep(self.places)
            except ArcvqError as error:
                self.fail(job, str(error))
                return
            job.start(self.worker(MEASURING), job.planned.run.evaluate_command(self.places, self.download))

    def worker(self, kind: Kind) -> Worker:
        """One that has nothing to do, or a new one."""
        while self.idle[kind]:
            worker = self.idle[kind].pop()
            if worker.process.poll() is None:
                return worker
            worker.wait()
        return Worker(kind, self.places.runs / "workers.log", self.environment)

    def advance(self, job: Job, worker: Worker, code: int) -> None:
        """A command has ended: the next one of its run, or the run's end."""
        took = time.monotonic() - job.began
        job.worker = None
        if code:
            worker.wait()
            why = job.last_line(code)
            try:
                if not job.measuring and job.planned.run.note_divergence(self.places, self.plan.at_a_time):
                    self.keep(job.planned.run)
            except ArcvqError as error:
                why = f"{why}; and that cannot be kept: {error}"
            self.fail(job, why)
            return
        self.idle[MEASURING if job.measuring else TRAINING].append(worker)
        if job.measuring:
            self.jobs.remove(job)
            self.finish(job, took)
            return
        job.trained_in = took
        self.jobs.append(self.jobs.pop(self.jobs.index(job)))  # behind those that wait already
        try:
            job.planned.run.note_sharing(self.places, self.plan.at_a_time)
        except ArcvqError as error:
            self.fail(job, str(error))

    def fail(self, job: Job, why: str) -> None:
        self.jobs.remove(job)
        self.outcome.failed[job.planned.run.key] = why
        self.say(f"{job.planned.run.key}: failed: {why}")

    def keep(self, run: Run) -> None:
        self.measured.append(run)
        if self.archive is not None:
            try:
                write_archive(self.archive, self.measured, self.places)
            except ArcvqError as error:
                self.say(str(error))

    def finish(self, job: Job, measured_in: float) -> None:
        run = job.planned.run
        run.lay_over(self.places)
        self.outcome.done.append(run.key)
        self.keep(run)
        if job.whole and job.trained_in is not None:
            steps = read_json(run.folder(self.places).training, "a finished run")["steps"]
            self.plan.times.learn(run, steps, job.trained_in, self.plan.at_a_time, measured_in)
            for planned in self.waiting:
                estimate(planned, self.plan.times, self.places)
        metrics = read_json(run.result(self.places), "a result")["protocols"]["exact"]
        lacking = [name for name in ("lpips", "rfid") if name in metrics["missing"]]
        note = f", without {' and '.join(lacking)}" if lacking else ""
        trained = "" if job.trained_in is None else f", trained in {job.trained_in / 60:.1f} minutes"
        self.say(f"{run.key}: PSNR {metrics['metrics']['psnr']:.2f}{note}{trained}, measured in {measured_in:.0f} s")

    def stop(self) -> None:
        """Tell what still runs to save and stop, and wait for it."""
        workers = [job.worker for job in self.jobs if job.worker is not None]
        workers += [worker for idle in self.idle.values() for worker in idle]
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.wait()
        for job in self.jobs:
            if job.training:
                with suppress(ArcvqError):  # unless it came to its end all the same
                    job.planned.run.note_sharing(self.places, self.plan.at_a_time)
            self.outcome.cut.append(job.planned.run.key)
            self.say(f"{job.planned.run.key}: stopped; the same command goes on")
        self.jobs.clear()
