"""The MPS daemon of a sweep: started when trainings share a GPU, quit whatever happens, and never in the way. The control program here
is a script that writes down how it was called."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arcvq.errors import Stopped
from arcvq.storage import write_json
from arcvq.sweep import Places, Plan, make_plan, run_plan, runner, sharing
from arcvq.sweep.sharing import CONTROL, PIPES, mps, mps_available
from arcvq.terminal import print_plan

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Control = Callable[..., Callable[[], list[str]]]
STARTED, QUIT = "-d", "quit"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    """`control()` puts the program on the PATH, with `body` as what it does besides; the answer reads its calls."""
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(sharing, "TRIAL", "import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '1'")
    calls = tmp_path / "calls"

    def put(body: str = "") -> Callable[[], list[str]]:
        script = tmp_path / "bin" / CONTROL
        script.parent.mkdir(exist_ok=True)
        note = f'test -d "${PIPES}" && echo "${{1:-$(cat)}} ${PIPES} ${{CUDA_VISIBLE_DEVICES:-all}}" >> {calls}'
        script.write_text(f"#!/bin/sh\n{note}\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
        return lambda: calls.read_text().splitlines() if calls.exists() else []

    return put


def words(calls: Callable[[], list[str]]) -> list[str]:
    return [call.split()[0] for call in calls()]


def test_a_daemon_lives_as_long_as_the_block(control: Control) -> None:
    calls, said = control("sleep 3 &"), []  # as a daemon holds what it was started with
    with mps(True, said.append) as environment:
        pipes = environment[PIPES]
        assert calls() == [f"{STARTED} {pipes} all"]
        assert len(pipes) < 60
        assert PIPES not in os.environ
    assert (calls()[1:], said) == ([f"{QUIT} {pipes} all"], [])
    assert not Path(pipes).parent.exists()


def test_it_is_quit_when_the_block_fails(control: Control) -> None:
    calls = control()
    with pytest.raises(ZeroDivisionError), mps(True, print):
        _ = 1 / 0
    assert words(calls) == [STARTED, QUIT]


@pytest.mark.parametrize(
    ("body", "trial", "why"),
    [
        ("echo first; echo no such service >&2; exit 3", "", f"{CONTROL}: no such service"),
        ("exit 3", "", f"{CONTROL}: ended with 3"),
        ("sleep 30", "", f"{CONTROL} did not answer in 0.5 seconds"),
        ("", "import sys; sys.exit('CUDA error 805')", f"{Path(sys.executable).name}: CUDA error 805"),
    ],
)
def test_without_it_the_work_goes_on(
    control: Control, monkeypatch: pytest.MonkeyPatch, body: str, trial: str, why: str
) -> None:
    calls = control(body)
    monkeypatch.setattr(sharing, "PATIENCE", 0.5 if "sleep" in body else 30.0)
    monkeypatch.setattr(sharing, "TRIAL", trial)
    said: list[str] = []
    with mps(True, said.append) as environment:
        assert environment == {}
    assert said == [f"no MPS, so trainings take turns on the device: {why}"]
    assert words(calls) == ([STARTED, QUIT] if trial else [STARTED])
    assert not Path(calls()[0].split()[1]).exists()


def test_a_daemon_that_does_not_quit_is_told(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control('test "$1" = -d || sleep 30')
    monkeypatch.setattr(sharing, "PATIENCE", 2.0)
    said: list[str] = []
    with pytest.raises(ZeroDivisionError), mps(True, said.append) as environment:
        _ = 1 / 0
    (line,) = said
    assert line.startswith(f"the MPS daemon may be left behind: {CONTROL} did not answer")
    assert line.endswith(f"echo quit | {PIPES}={environment[PIPES]} {CONTROL}")
    shutil.rmtree(Path(environment[PIPES]).parent)  # it was kept: without it the daemon could not be told


def test_a_daemon_that_is_there_is_used_and_left_alone(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = control()
    monkeypatch.setenv(PIPES, "/theirs")
    with mps(True, print) as environment:
        assert environment == {PIPES: "/theirs"}
    assert calls() == []


def test_where_it_can_be_had(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.environ["PATH"]
    control()
    assert (mps_available(GPU), mps_available(CPU)) == (True, False)
    monkeypatch.setenv("PATH", path)
    assert not mps_available(GPU)
    monkeypatch.setenv(PIPES, "/theirs")
    assert (mps_available(GPU), mps_available(CPU)) == (True, False)


ONLY = ["vq-vae", "arcvq-vae", "cvq-vae", "fsq", "lfq"]


def plan_of(places: Places, count: int, parallel: int | None = None) -> Plan:
    chosen: dict[str, Any] = {"data": ["sample"], "seeds": [1], "only": ONLY[:count]}
    return make_plan("all", places, **chosen, device=CPU, parallel=parallel, dry_runs=False)


def test_as_many_at_a_time_as_pay(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chosen(count: int, parallel: int | None = None) -> tuple[int, bool]:
        plan = plan_of(places, count, parallel)
        return plan.parallel, plan.mps

    assert (chosen(4), chosen(4, 2)) == ((1, False), (2, False))  # a CPU
    monkeypatch.setattr("arcvq.sweep.plan.mps_available", lambda _: True)
    assert [chosen(count) for count in (1, 2, 3, 4)] == [(1, False), (2, True), (3, True), (4, True)]
    assert chosen(5) == (4, True)
    assert [chosen(count, 2) for count in (1, 2)] == [(2, False), (2, True)]
    write_json(places.runs / "sample" / "vq-vae-seed1" / "training.json", {})
    assert chosen(2) == (1, False)  # one of them is only to be measured
    print_plan(plan_of(places, 4))
    assert ", 3 at a time under MPS, on " in capsys.readouterr().out  # of four
    print_plan(plan_of(places, 2))
    assert ", 1 at a time, on " in capsys.readouterr().out


class Pretended:
    """A worker whose commands are done at once, or end as `ends` says."""

    made: list["Pretended"]
    ends: Callable[[], int]

    def __init__(self, kind: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.environment, self.process = environment, SimpleNamespace(poll=lambda: None)
        type(self).made.append(self)

    def start(self, command: Sequence[str], log: Path) -> None:
        self.code = type(self).ends()
        if command[0] == "train":
            write_json(Path(command[command.index("--out") + 1]) / "training.json", {"steps": 6})
        else:
            file = Path(command[command.index("--out") + 1])
            name, _, seed = file.stem.rpartition("-seed")
            measured = {"images": 64, "metrics": {"psnr": 20.0}, "missing": {}, "seconds": 1.0}
            config = {"system": name, "data": {"name": "sample", "batch_size": 64}, "training": {"steps": 6}}
            document = {
                "name": name, "seed": int(seed), "protocols": {"exact": measured}, "config": config,
                "training": {"steps": 6, "seconds": 1.0, "device": "cpu"}, "measured": {"date": "2026-01-01", "device": "cpu"},
            }  # fmt: skip
            write_json(file, document)

    def poll(self) -> int:
        return self.code

    def stop(self) -> None: ...

    def wait(self) -> None: ...


def interrupted() -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    return 0


def broken() -> int:
    raise ZeroDivisionError


@pytest.mark.parametrize("ends", [lambda: 0, lambda: 2, interrupted, broken], ids=["well", "badly", "signal", "bug"])
def test_a_sweep_quits_its_daemon(
    places: Places, control: Control, monkeypatch: pytest.MonkeyPatch, ends: Callable[[], int]
) -> None:
    calls = control()
    worker = type("Worker", (Pretended,), {"made": [], "ends": staticmethod(ends)})
    monkeypatch.setattr(runner, "Worker", worker)
    monkeypatch.setattr("arcvq.sweep.plan.mps_available", lambda _: True)
    with suppress(Stopped, ZeroDivisionError):
        outcome = run_plan(plan_of(places, 3), say=lambda _: None)
        assert len(outcome.failed if ends() else outcome.done) == 3
    (started, _, _), (quit_, _, _) = (call.split() for call in calls())
    assert (started, quit_) == (STARTED, QUIT)
    assert worker.made
    assert {made.environment[PIPES] for made in worker.made} == {calls()[0].split()[1]}


def test_one_at_a_time_needs_no_daemon(places: Places, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = control()
    worker = type("Worker", (Pretended,), {"made": [], "ends": staticmethod(lambda: 0)})
    monkeypatch.setattr(runner, "Worker", worker)
    plans = [plan_of(places, 2, 2)]  # on a CPU
    monkeypatch.setattr("arcvq.sweep.plan.mps_available", lambda _: True)
    plans.append(plan_of(places, 1))
    assert [len(run_plan(plan, say=print).done) for plan in plans] == [2, 1]
    assert calls() == []
    assert {tuple(made.environment) for made in worker.made} == {()}


@pytest.mark.parametrize(("parallel", "left"), [(None, 1), (2, 2)])
def test_a_sweep_without_its_daemon_packs_only_if_told(
    places: Places, control: Control, monkeypatch: pytest.MonkeyPatch, parallel: int | None, left: int
) -> None:
    control("exit 1")
    monkeypatch.setattr(runner, "Worker", type("Worker", (Pretended,), {"made": [], "ends": staticmethod(lambda: 0)}))
    monkeypatch.setattr("arcvq.sweep.plan.mps_available", lambda _: True)
    said: list[str] = []
    plan = plan_of(places, 3, parallel)
    assert len(run_plan(plan, say=said.append).done) == 3
    assert (plan.parallel, said[0]) == (left, f"no MPS, so trainings take turns on the device: {CONTROL}: ended with 1")
