"""How long runs take, by what is known: results, earlier runs of a sweep, trial steps."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from planned_runs import CPU, plan_of, result

from arcvq.sweep import Places, Plan, choose_runs, make_plan
from arcvq.systems import load_system
from arcvq.tables import EXPERIMENTS
from arcvq.terminal import print_plan
from arcvq.training.environment import device_name


def test_time_is_known_from_results_on_the_same_device(places: Places) -> None:
    result(places, "cifar10/arcvq-vae-seed1", seconds=100.0)
    result(places, "cifar10/arcvq-vae-bf16-seed1", seconds=40.0, precision="bf16")
    plan = plan_of("ablations", places, data=["cifar10"], only=["arcvq-vae-top1", "arcvq-vae-top8"], parallel=2)
    assert [(p.train, p.evaluate, p.source) for p in plan.open] == [(100.0, 20.0, "results")] * 2
    assert plan.seconds == 240.0  # trainings share the device, then one after the other is measured
    assert plan.open[0].seconds(2) == 220.0
    plan.parallel = 1
    assert plan.seconds == 220.0  # the first is measured while the second trains
    bf16 = ["--training.precision", "bf16"]
    assert plan_of("ablations", places, data=["cifar10"], only=["arcvq-vae-top1"], settings=bf16).seconds == 60.0
    other = plan_of("components", places, data=["mnist"], only=["vq-vae-bbnr"])
    assert (other.open[0].train, other.unknown) == (None, 1)
    assert json.loads(json.dumps(other.to_json()))["runs"][0]["train_seconds"] is None


def test_what_nobody_knows_is_no_time(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    def told(seeds: list[int], only: list[str]) -> str:
        print_plan(plan_of("table1", places, data=["cifar10"], seeds=seeds, only=only))
        return capsys.readouterr().out

    assert "not in this version; 2 of unknown length, 1 at a time" in told([1, 2], ["vq-vae"])
    result(places, "cifar10/vq-vae-seed1", seconds=100.0)
    assert "not in this version; about 2.0 minutes, 1 at a time" in told([2], ["vq-vae"])
    assert "not in this version; about 0.0 minutes, 1 at a time" in told([1], ["vq-vae"])
    begun = plan_of("table1", places, data=["cifar10"], seeds=[2, 3], only=["vq-vae"])
    begun.runs[1].train = None
    print_plan(begun)
    assert "; about 2.0 minutes, and 1 of unknown length, 1 at a time" in capsys.readouterr().out


def test_a_preset_nobody_has_timed_is_taken_for_the_slowest_of_those_most_like_it(places: Places) -> None:
    result(places, "cifar10/vq-vae-seed1", seconds=80.0)
    result(places, "cifar10/arcvq-vae-seed1", seconds=110.0)
    result(places, "cifar10/sq-vae-seed1", seconds=160.0)
    result(places, "cifar10/sq-vae-seed2", seconds=700.0)  # something else was on the device
    result(places, "cifar10/hvq-vae-seed1", seconds=500.0)  # another trunk
    result(places, "mnist/arcvq-vae-seed1", seconds=900.0)
    (other,) = plan_of("components", places, data=["cifar10"], only=["vq-vae-bbnr"]).open
    assert (other.train, other.source) == (110.0, "another preset")  # of its system, arcvq-vae
    plan = plan_of("tuning", places, only=["tune-simvq-lr1e-3"])
    assert (plan.open[0].train, plan.open[0].source) == (10.0 + 150.0 * 100 / 500, "another preset")
    plan.times.device = "another device"
    (other,) = choose_runs("table1", data=["cifar10"], seeds=[1], only=["cvq-vae"])
    plan.times.learn(other, 1000, 510.0, 1, 4.0)
    assert plan_of("tuning", places, only=["tune-simvq-lr1e-3"]).open[0].train == 40.0
    plan.times.device = device_name(CPU)
    plan.times.learn(other, 1000, 210.0, 1, 4.0)
    assert plan_of("tuning", places, only=["tune-simvq-lr1e-3"]).open[0].train == 10.0 + 200.0 * 100 / 500


def test_where_only_other_trunks_are_timed_they_serve(places: Places) -> None:
    result(places, "cifar10/hvq-vae-seed1", seconds=500.0)
    assert plan_of("table1", places, data=["cifar10"], seeds=[1], only=["vq-vae"]).open[0].train == 500.0
    places.runs.mkdir()
    time = {"preset": "cifar10/of-an-older-version", "device": device_name(CPU), "steps": 1000, "train": 900.0}
    kind = "precision fp32, compile False, accumulate 1, batch 1024, limit None, data cifar10"
    how = {"kind": kind, "unit": "epochs", "length": 500}
    (places.runs / "times.json").write_text(json.dumps({"times": [time | {"how": how}]}))
    assert plan_of("table1", places, data=["cifar10"], seeds=[1], only=["vq-vae"]).open[0].train == 900.0
    result(places, "cifar10/arcvq-vae-seed1", seconds=110.0)
    assert plan_of("table1", places, data=["cifar10"], seeds=[1], only=["vq-vae"]).open[0].train == 110.0


def test_time_is_the_share_of_the_device(places: Places) -> None:
    result(places, "cifar10/vq-vae-seed1", seconds=90.0)
    result(places, "cifar10/vq-vae-seed2", seconds=240.0, at_a_time=3)
    (planned,) = plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"]).open
    assert (planned.train, planned.source) == (80.0, "results")


def test_measuring_is_timed_on_this_device(places: Places) -> None:
    def known() -> float:
        return plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"]).open[0].evaluate

    result(places, "cifar10/vq-vae-seed1", measured=("another device", "2026-01-05", 500.0))
    assert known() == 60.0  # what was trained here was measured elsewhere
    for seed, (date, took) in enumerate([("01", 300.0), ("02", 5.0), ("02", 90.0), ("02", 6.0)], start=2):
        result(places, f"cifar10/vq-vae-seed{seed}", measured=(device_name(CPU), f"2026-01-{date}", took))
    assert known() == 12.0  # the middle one of the last day, under both protocols
    plan = plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"])
    plan.times.learn(plan.open[0].run, 1000, 30.0, 1, 4.0)
    assert known() == 4.0
    plan.times.device = "another device"
    plan.times.learn(plan.open[0].run, 1000, 30.0, 1, 400.0)
    assert known() == 4.0


def test_the_nearest_length_tells_the_time(places: Places) -> None:
    """Of a short training most is beginning, and what is left is too little to stretch."""
    result(places, "cifar10/tune-vq-vae-lr1e-3-seed1", seconds=12.0, epochs=25)
    (long,) = plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"]).open
    assert long.train == 10.0 + 2.0 * 500 / 25
    result(places, "cifar10/tune-vq-vae-lr2e-3-seed1", seconds=60.0, epochs=250)
    (long,) = plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"]).open
    assert long.train == 10.0 + 50.0 * 500 / 250
    # Another preset's is told so, too.
    (other,) = plan_of("table1", places, data=["cifar10"], seeds=[9], only=["cvq-vae"]).open
    assert (other.train, other.source) == (110.0, "another preset")


def test_a_trial_of_a_few_steps_tells_nothing_of_a_whole_training(places: Places) -> None:
    def whole() -> float | None:
        return plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"]).open[0].train

    result(places, "cifar10/vq-vae-seed1", seconds=9.0, epochs=25)  # all of it beginning
    assert whole() is None
    result(places, "cifar10/vq-vae-seed1", seconds=60.0, epochs=4)
    assert whole() is None
    result(places, "cifar10/vq-vae-seed1", seconds=60.0, epochs=5)
    assert whole() == 10.0 + 50.0 * 500 / 5


def test_time_of_another_length_is_stretched(places: Places) -> None:
    result(places, "cifar10/vq-vae-seed1", seconds=110.0)
    (tried,) = plan_of("tuning", places, only=["tune-vq-vae-lr1e-3-cosine"]).open
    assert (tried.train, tried.source) == (10.0 + 100.0 * 100 / 500, "another length")
    result(places, "cifar10/vq-vae-seed2", seconds=150.0)
    assert plan_of("tuning", places, only=["tune-vq-vae-lr1e-3-cosine"]).open[0].train == 30.0  # by the faster
    # Of three at a time each begins for as long, and so for a third of the device's time.
    result(places, "cifar10/vq-vae-seed2", seconds=180.0, at_a_time=3)
    (tried,) = plan_of("tuning", places, only=["tune-vq-vae-lr1e-3-cosine"]).open
    assert tried.train == pytest.approx(10 / 3 + (60 - 10 / 3) * 100 / 500)
    result(places, "cifar10/vq-vae-seed2", seconds=4.0)
    assert plan_of("tuning", places, only=["tune-vq-vae-lr1e-3-cosine"]).open[0].train == 4.0  # all of it beginning
    (other,) = plan_of(
        "table1", places, data=["cifar10"], seeds=[3], only=["vq-vae"], settings=["--training.steps=50"]
    ).open
    assert other.train is None  # epochs do not say how many steps they are
    result(places, "cifar10/tune-vq-vae-lr1e-3-seed1", epochs=None)  # of no length at all: nothing to stretch
    assert plan_of("table1", places, seeds=[3], only=["vq-vae"], settings=["--training.steps=50"]).unknown == 2
    stages = [{"epochs": 250, "steps": None}] * 2
    result(places, "cifar10/hvq-vae-seed1", seconds=60.0, epochs=None, stages=stages)
    (layers,) = plan_of("tuning", places, only=["tune-hvq-vae-lr1e-3"]).open
    assert layers.train == 10.0 + 50.0 * 100 / 500


@pytest.mark.parametrize("setting", ["--tokenizer.width=1024", "--quantizer.codebook_size=65536"])
def test_time_of_another_size_is_another(places: Places, setting: str) -> None:
    def known(**options: Any) -> tuple[float | None, str]:
        (planned,) = plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"], **options).open
        return planned.train, planned.source

    result(places, "cifar10/vq-vae-seed1", seconds=100.0)
    result(places, "cifar10/arcvq-vae-seed1", seconds=100.0)
    assert known() == (100.0, "results")
    assert known(settings=[setting]) == (None, "")  # nor does another preset know
    plan = plan_of("table1", places, data=["cifar10"], seeds=[2], only=["vq-vae"], settings=[setting])
    plan.times.learn(plan.open[0].run, 1000, 910.0, 1, 4.0)
    assert known(settings=[setting]) == (910.0, "a run of this sweep")
    assert known(settings=[setting, "--training.epochs=50"]) == (10.0 + 900.0 * 50 / 500, "another length")
    assert known() == (100.0, "results")


def test_results_of_another_size_are_no_measure(places: Places) -> None:
    system: Any = load_system("cifar10/vq-vae")
    usual = {"tokenizer": asdict(system.tokenizer), "quantizer": asdict(system.quantizer)}
    result(places, "cifar10/vq-vae-seed1", seconds=100.0, model=usual)
    result(places, "cifar10/vq-vae-seed2", seconds=20.0, model=usual | {"tokenizer": {"width": 8}})
    assert plan_of("table1", places, data=["cifar10"], seeds=[9], only=["vq-vae"]).open[0].train == 100.0


def test_times_of_an_older_version_are_left_out(places: Places) -> None:
    how = "precision fp32, compile False, accumulate 1, batch 1024, limit None, data cifar10, for 500 epochs"
    time = {"preset": "cifar10/vq-vae", "how": how, "device": device_name(CPU), "steps": 1000, "train": 900.0}
    places.runs.mkdir()
    (places.runs / "times.json").write_text(json.dumps({"times": [time]}))
    assert plan_of("table1", places, data=["cifar10"], seeds=[1], only=["vq-vae"]).open[0].train is None


def test_trial_steps_tell_the_time(places: Places, tiny_settings: Callable[..., list[str]]) -> None:
    def tried(only: list[str], *more: str) -> Plan:
        settings = [*tiny_settings(), *more]
        return make_plan(
            "table1", places, data=["sample"], seeds=[1], only=only, settings=settings, device=CPU, say=said.append
        )

    said: list[str] = []
    plan = tried(["vq-vae", "arcvq-vae"])
    assert [line.partition(":")[0] for line in said] == ["sample/vq-vae-seed1", "sample/arcvq-vae-seed1"]
    assert [planned.source for planned in plan.open] == ["trial steps"] * 2
    assert all(planned.train for planned in plan.open)
    plan = tried(["vq-vae"], "--data.image_size=30")
    (why,) = plan.times.failures.values()
    assert "30" in why
    assert not why.startswith("arcvq: ")  # the plan's own
    assert (plan.unknown, plan.times.worker) == (1, None)
    assert not places.runs.exists()  # a plan writes nothing


def test_quick_runs_are_measured_without_networks(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    (quick,) = plan_of("tuning", places, only=["tune-vq-vae-lr1e-3"]).open
    words = quick.run.evaluate_command(places, download=True)
    assert words[words.index("--protocol") + 1 : words.index("--metrics")] == ["exact"]
    assert not {"lpips", "rfid", "paper", "--download"} & set(words)
    assert all(EXPERIMENTS[run.experiment.name].quick for run in choose_runs("schedules") + choose_runs("grid"))
    # Their time is that of their like, and so is what makes them complete.
    assert (quick.evaluate, plan_of("table1", places).open[0].evaluate) == (10.0, 60.0)
    result(places, "cifar10/vq-vae-seed1")
    result(places, "cifar10/tune-vq-vae-lr1e-3-seed1", protocols=["exact"], metrics={"psnr": 20.0})
    plan = plan_of("tuning", places, only=["tune-vq-vae-lr1e-3", "tune-vq-vae-lr2e-3"])
    assert [planned.state for planned in plan.runs] == ["done", "to do"]
    assert plan.open[0].evaluate == 10.0  # under one protocol
    plan.times.learn(plan.open[0].run, 1000, 30.0, 1, 4.0)
    again = plan_of("tuning", places, seeds=[2], only=["tune-vq-vae-lr1e-3"])  # it knows what was learnt
    whole = plan_of("table1", places, data=["cifar10"], seeds=[2], only=["vq-vae"])
    assert (again.open[0].evaluate, whole.open[0].evaluate) == (4.0, 20.0)
    # And where nobody has measured, that is a guess, and said.
    assert quick.guessed
    assert (again.open[0].guessed, whole.open[0].guessed) == (False, False)
    print_plan(whole)
    assert "is a guess" not in capsys.readouterr().out
    print_plan(plan_of("table1", places, data=["mnist"], seeds=[2], only=["vq-vae"]))
    assert "of 1 of them, what measuring takes is a guess" in capsys.readouterr().out
