"""Sweeps on the embedded sample, made tiny: real trainings in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arcvq import Tokenizer
from arcvq.cli import main
from arcvq.storage import write_json
from arcvq.sweep import Outcome, Places, Plan, make_plan, run_plan
from arcvq.sweep.run import PYTHON, Run
from arcvq.sweep.runner import Job, Runner
from arcvq.sweep.workers import Worker
from arcvq.tables import read_results
from arcvq.terminal import print_plan

CPU = torch.device("cpu")
Settings = Callable[..., list[str]]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "runs", tmp_path / "results", tmp_path / "models", keep_models=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes longer than these trainings: only a few images, only their PSNR."""
    whole = Run.evaluate_command
    few = ["--limit", "16", "--metrics", "psnr", "usage"]
    monkeypatch.setattr(Run, "evaluate_command", lambda self, *given: [*whole(self, *given), *few])


def plan_of(table: str, places: Places, only: list[str], settings: list[str] | None = None, **options: Any) -> Plan:
    given = {"data": ["sample"], "seeds": [1], "settings": settings or [], "device": CPU, "dry_runs": False}
    return make_plan(table, places, only=only, **(given | options))


def sweep(places: Places, settings: list[str], only: list[str], said: list[str], **options: object) -> Outcome:
    plan = plan_of("all", places, only, settings, parallel=2)
    return run_plan(plan, say=said.append, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("quick")
def test_a_sweep_trains_measures_and_keeps(places: Places, tiny_settings: Settings) -> None:
    said: list[str] = []
    archive = places.runs.parent / "all.tar"
    outcome = sweep(places, tiny_settings(), ["arcvq-vae", "arcvq-vae-top1"], said, archive=archive)
    assert (sorted(outcome.done), outcome.failed) == (["sample/arcvq-vae-seed1", "sample/arcvq-vae-top1-seed1"], {})
    plain, ablation = read_results(places.results)
    assert set(plain.document["protocols"]) == {"exact", "paper"}
    assert plain.document["training"]["at_a_time"] == 2
    assert ablation.document["config"]["quantizer"]["arc"]["top_k"] == 1
    lines = (places.results / "sample" / "arcvq-vae-seed1.metrics.jsonl").read_text().splitlines()
    assert lines
    assert {json.loads(line)["kind"] for line in lines} == {"eval"}
    assert [path.name for path in places.models.iterdir()] == ["sample-arcvq-vae-seed1"]  # the ablation's is not kept
    assert Tokenizer.from_pretrained(places.models / "sample-arcvq-vae-seed1").system == "arcvq-vae"
    assert said[-1].startswith("2 measured, 0 failed, 0 cut short, 0 not started")
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert {f"results/{key}.json" for key in outcome.done} < set(names)
    assert {"results/sample/arcvq-vae-seed1.metrics.jsonl", "models/sample-arcvq-vae-seed1/config.json"} < set(names)
    # Its own times are what the next plan goes by.
    again = plan_of("all", places, ["arcvq-vae-top1"], tiny_settings(), seeds=[2])
    assert again.open[0].source == "a run of this sweep"
    # A kept model is measured again without its run, and the result still tells how it was trained.
    path = places.results / "sample" / "arcvq-vae-seed1.json"
    path.write_text(json.dumps(plain.document | {"protocols": {"exact": plain.document["protocols"]["exact"]}}))
    moved = Places(places.runs / "elsewhere", places.results, places.models)
    plan = plan_of("table1", moved, ["arcvq-vae"], complete=True)
    assert run_plan(plan, say=said.append).done == ["sample/arcvq-vae-seed1"]
    completed = json.loads(path.read_text())
    assert set(completed["protocols"]) == {"exact", "paper"}
    assert (completed["training"], completed["seed"]) == (plain.document["training"], 1)


@pytest.mark.usefixtures("quick")
def test_a_failure_does_not_stop_the_others(places: Places, tiny_settings: Settings) -> None:
    folder = places.runs / "sample" / "vq-vae-seed1"
    folder.mkdir(parents=True)
    (folder / "mine.txt").touch()
    (places.results / "sample" / "cvq-vae-seed1.metrics.jsonl").mkdir(parents=True)  # where its looks should go
    archive = folder / "mine.txt" / "all.tar"
    said: list[str] = []
    outcome = sweep(places, tiny_settings(), ["vq-vae", "cvq-vae", "arcvq-vae"], said, archive=archive)
    assert outcome.done == ["sample/arcvq-vae-seed1"]
    assert "exists and is not a run" in outcome.failed["sample/vq-vae-seed1"]
    assert "metrics.jsonl: is a folder" in outcome.failed["sample/cvq-vae-seed1"]
    assert any("all.tar: cannot be written" in line for line in said)


@pytest.mark.usefixtures("quick")
def test_a_training_that_diverges_is_told_and_not_tried_again(
    places: Places, tiny_settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    archive = places.runs.parent / "all.tar"
    settings = tiny_settings({"training.learning_rate": 1e30})
    outcome = sweep(places, settings, ["vq-vae"], said, archive=archive)
    assert "diverged" in outcome.failed["sample/vq-vae-seed1"]
    (result,) = read_results(places.results)
    assert (result.diverged, result.metrics("exact"), result.held_out_psnr) == (True, None, None)
    assert result.document["diverged"] == outcome.failed["sample/vq-vae-seed1"]
    assert result.document["training"]["steps"] < 6
    assert result.looks[0]["epoch"] == 0
    with tarfile.open(archive) as tar:
        assert set(tar.getnames()) == {f"results/sample/vq-vae-seed1.{end}" for end in ("json", "metrics.jsonl")}
    plan = plan_of("all", places, ["vq-vae"], settings)
    assert ([planned.state for planned in plan.runs], plan.open) == (["diverged"], [])
    assert not plan.times.trained  # how long it took says nothing
    print_plan(plan)
    assert "1 diverged: not trained again unless the result file is removed" in capsys.readouterr().out


def test_a_divergence_that_cannot_be_kept_does_not_stop_the_others(places: Places, tiny_settings: Settings) -> None:
    (places.results / "sample" / "vq-vae-seed1.metrics.jsonl").mkdir(parents=True)  # where its looks should go
    said: list[str] = []
    settings = tiny_settings({"training.learning_rate": 1e30})
    outcome = sweep(places, settings, ["vq-vae", "arcvq-vae"], said)
    assert all("diverged" in why for why in outcome.failed.values())
    assert "metrics.jsonl: is a folder" in outcome.failed["sample/vq-vae-seed1"]
    assert [result.name for result in read_results(places.results)] == ["arcvq-vae"]


def test_an_earlier_divergence_is_not_told_of_a_later_attempt(
    places: Places, tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, said = tiny_settings({"training.learning_rate": 1e30}), list[str]()
    assert "diverged" in sweep(places, settings, ["vq-vae"], said).failed["sample/vq-vae-seed1"]
    (places.results / "sample" / "vq-vae-seed1.json").unlink()  # to try it again
    start = Worker.start

    def killing(self: Worker, words: Sequence[str], log: Path) -> None:
        self.process.kill()
        start(self, words, log)

    monkeypatch.setattr(Worker, "start", killing)
    outcome = sweep(places, settings, ["vq-vae"], said)
    assert outcome.failed == {"sample/vq-vae-seed1": "its process was ended by signal 9"}
    assert read_results(places.results) == []


@pytest.mark.usefixtures("quick")
def test_a_killed_worker_is_replaced_and_measuring_goes_on_beside_training(
    places: Places, tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Worker.start

    def killing(self: Worker, words: Sequence[str], log: Path) -> None:
        start(self, words, log)
        if "sample/vq-vae" in words:
            self.process.kill()

    monkeypatch.setattr(Worker, "start", killing)
    said: list[str] = []
    plan = plan_of("all", places, ["vq-vae", "arcvq-vae", "arcvq-vae-top1"], tiny_settings(), parallel=1)
    outcome = run_plan(plan, say=said.append)
    assert outcome.failed == {"sample/vq-vae-seed1": "its process was ended by signal 9"}
    assert outcome.done == ["sample/arcvq-vae-seed1", "sample/arcvq-vae-top1-seed1"]
    (measured,) = [i for i, line in enumerate(said) if line.startswith("sample/arcvq-vae-seed1: PSNR")]
    assert said.index("sample/arcvq-vae-top1-seed1: begins") < measured


def test_a_budget_starts_nothing_that_cannot_end(places: Places, tiny_settings: Settings) -> None:
    said: list[str] = []
    plan = plan_of("table1", places, ["vq-vae"], tiny_settings())
    plan.runs[0] = replace(plan.runs[0], train=600.0)
    outcome = run_plan(plan, budget=5, say=said.append)
    assert (outcome.left, outcome.done) == (["sample/vq-vae-seed1"], [])
    assert said[-1] == "nothing fits: the shortest run needs 13.0 minutes; give a larger --budget, or --split"


@pytest.mark.usefixtures("quick")
def test_only_its_own_trainings_are_timed(places: Places, tiny_settings: Settings) -> None:
    plan = plan_of("table1", places, ["vq-vae", "arcvq-vae"], tiny_settings())
    trained, begun = plan.open
    for each in (trained, begun):  # by others, since the plan was made
        assert main(each.run.train_command(places)[len(PYTHON) :]) == 0
    begun.run.folder(places).training.unlink()
    said: list[str] = []
    assert len(run_plan(plan, say=said.append).done) == 2
    assert plan.times.known == []
    assert f"{trained.run.key}: is measured" in said
    assert "at_a_time" not in json.loads(trained.run.folder(places).training.read_text())


def test_a_run_of_other_settings_is_not_taken_for_this_one(places: Places, tiny_settings: Settings) -> None:
    (planned,) = plan_of("table1", places, ["vq-vae"], tiny_settings()).open
    assert main(planned.run.train_command(places)[len(PYTHON) :]) == 0
    said: list[str] = []
    plan = plan_of("table1", places, ["vq-vae"], tiny_settings({"training.steps": 7}))
    assert [each.state for each in plan.runs] == ["other settings"]
    outcome = run_plan(plan, say=said.append)
    assert "another configuration: training.steps is 6 there and 7 here" in outcome.failed["sample/vq-vae-seed1"]
    assert (outcome.done, places.results.exists()) == ([], False)
    # Nor if it came there since the plan was made.
    again = plan_of("table1", places, ["vq-vae"], tiny_settings())
    planned.run.folder(places).config.write_text(
        planned.run.folder(places).config.read_text().replace("steps: 6", "steps: 8")
    )
    outcome = run_plan(again, say=said.append)
    assert "training.steps is 8 there and 6 here" in outcome.failed["sample/vq-vae-seed1"]


def test_what_is_trained_waits_for_no_training(places: Places) -> None:
    write_json(places.runs / "sample" / "vq-vae-seed1" / "training.json", {})
    plan = plan_of("table1", places, ["vq-vae", "arcvq-vae", "cvq-vae"])
    trained, first, second = (replace(each, evaluate=60.0) for each in plan.open)
    first.train, second.train = 200.0, 0.0
    runner = Runner(plan, False, None, print, {})
    runner.waiting = [trained, second]
    worker: Any = SimpleNamespace()
    training = Job(replace(first, evaluate=600.0), places.runs / "log", worker)
    runner.jobs = [training]
    deadline = time.monotonic() + 150
    assert runner.fits(trained, deadline)
    assert not runner.fits(second, deadline)  # it is measured after the other
    runner.begin(trained)
    assert runner.fits(replace(trained), deadline)
    # Trained later, it queues behind: what was said to fit does.
    write_json(first.run.folder(places).training, {})
    runner.advance(training, worker, 0)
    assert [job.planned for job in runner.jobs] == [trained, training.planned]
    assert json.loads(first.run.folder(places).training.read_text()) == {"at_a_time": 1}
    assert not runner.fits(replace(trained), deadline)


def test_only_trainings_share_the_device(places: Places) -> None:
    write_json(places.runs / "sample" / "vq-vae-seed1" / "training.json", {})
    plan = plan_of("table1", places, ["vq-vae", "arcvq-vae"], parallel=2)
    _, alone = (replace(each, train=100.0, evaluate=10.0) for each in plan.open)
    runner = Runner(plan, False, None, print, {})
    assert runner.fits(alone, time.monotonic() + 140)
    assert not runner.fits(alone, time.monotonic() + 115)  # a training may take longer than the one before
    measured = replace(alone, train=0.0, evaluate=100.0)
    assert runner.fits(measured, time.monotonic() + 110)  # but measuring takes what it took
    assert runner.fits(replace(alone, train=None), time.monotonic())  # nobody knows
    plan = plan_of("table1", places, ["vq-vae", "arcvq-vae", "cvq-vae"], parallel=2)
    runner = Runner(plan, False, None, print, {})
    assert runner.fits(alone, time.monotonic() + 140)  # one of the two, if the other does not
    worker: Any = SimpleNamespace()
    runner.jobs = [Job(replace(alone, evaluate=0.0), places.runs / "log", worker)]
    assert not runner.fits(alone, time.monotonic() + 140)
    assert runner.fits(alone, time.monotonic() + 260)


def test_an_interrupted_sweep_goes_on(tmp_path: Path, tiny_settings: Settings) -> None:
    words = ["sweep", "table1", "--data", "sample", "--seeds", "1", "--only", "vq-vae", "--no-dry-run"]
    command = [sys.executable, "-m", "arcvq", *words, *tiny_settings({"training.steps": 100_000})]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "runs" / "sweep" / "sample" / "vq-vae-seed1" / "metrics.jsonl"
        until = time.monotonic() + 90
        while not (metrics.exists() and '"train"' in metrics.read_text()) and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "the sweep was stopped; the same command goes on\n"
    assert "sample/vq-vae-seed1: stopped; the same command goes on" in output
    assert list((metrics.parent / "checkpoints").glob("step-*"))
    plan = subprocess.run([*command, "--plan", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    (run,) = json.loads(plan.stdout)["runs"]
    assert (run["run"], run["state"]) == ("sample/vq-vae-seed1", "begun")
