"""Which runs a table needs, in which order, how they stand and how long they take."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import ArcvqError
from arcvq.config import to_dict
from arcvq.report import print_plan
from arcvq.storage import write_json
from arcvq.sweep import Places, Plan, choose_runs, make_plan, run_plan
from arcvq.sweep.run import SMALL
from arcvq.systems import load_system, preset_names
from arcvq.tables import EXPERIMENTS
from arcvq.training.environment import device_name

CPU = torch.device("cpu")
WHOLE = {"psnr": 20.0, "lpips": 0.1, "rfid": 1.0}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "runs", tmp_path / "results", tmp_path / "models")


def result(
    places: Places,
    key: str,
    seconds: float = 100.0,
    protocols: Any = ("exact", "paper"),
    metrics: Any = WHOLE,
    measured: tuple[str, str, float] | None = None,
    at_a_time: int = 1,
    model: Any = None,
    **how: Any,
) -> None:
    data, name = key.split("/")
    name, seed = name.split("-seed")
    device, date, took = measured or (device_name(CPU), "2026-01-01", 10.0)
    run = EXPERIMENTS[name.removesuffix("-bf16")]
    preset = f"{data}/{run.preset}"
    config = to_dict(load_system(preset, run.settings)) if preset in preset_names() else {"system": name, "data": {}}
    training = {**config.get("training", {"epochs": 500}), **how}
    config |= {"data": config["data"] | {"name": data, "batch_size": 1024}, "training": training, **(model or {})}
    document = {
        "name": name, "seed": int(seed), "config": config, "measured": {"date": date, "device": device},
        "protocols": {p: {"images": 10000, "metrics": metrics, "missing": {}, "seconds": took} for p in protocols},
        "training": {"steps": 1000, "seconds": seconds, "device": device_name(CPU), "at_a_time": at_a_time},
    }  # fmt: skip
    path = places.results / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def plan_of(table: str, places: Places, **options: Any) -> Plan:
    return make_plan(table, places, device=CPU, dry_runs=False, **options)


@pytest.mark.parametrize("table", SMALL)
def test_all_leaves_out_no_run_of_a_table(table: str) -> None:
    runs = {run.key for run in choose_runs(table)}
    assert runs
    assert runs <= {run.key for run in choose_runs("all")}


def test_all_runs_come_in_the_order_that_is_worth_most() -> None:
    keys = [run.key for run in choose_runs("all")]
    assert len(keys) == len(set(keys))
    ordered = [
        "mnist/vq-vae-seed1",
        "cifar10/arcvq-vae-seed1",
        "cifar10/arcvq-vae-top1-seed1",
        "cifar10/vq-vae-seed2",
        "cifar10/arcvq-vae-seed3",
        "cifar10/hyperspherical-vae-seed1",
        "cifar10/arcvq-vae-code-gradient-seed1",
        "cifar10/tune-vq-vae-lr1e-3-seed1",
        "cifar10/recipe-scaffold-paper-seed1",
        "mnist/vq-vae-variance01-seed1",
        "cifar10/schedule-arc-constant-seed1",
        "cifar10/grid-alpha-third-decay-third-lr3e-4-seed1",
        "cifar10/simvq-seed1",
    ]
    assert [keys.index(key) for key in ordered] == sorted(keys.index(key) for key in ordered)


def test_a_table_is_known_by_number_and_by_name() -> None:
    assert choose_runs("ablations") == choose_runs("table4")
    assert {run.seed for run in choose_runs("table1")} == {1, 2, 3}
    assert {run.data for run in choose_runs("cosine")} == {"cifar10"}
    (run,) = choose_runs("ablations", only=["arcvq-vae-top1"], data=["cifar10"], seeds=[2], suffix="bf16")
    assert (run.key, run.preset) == ("cifar10/arcvq-vae-top1-bf16-seed2", "cifar10/arcvq-vae")
    system: Any = load_system(run.preset, run.overrides)
    assert (system.title, system.training.seed, system.quantizer.arc.top_k) == ("arcvq-vae-top1-bf16", 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "table2"}, "no table 'table2' that small images can answer"),
        ({"table": "table1", "only": ["arcvq-vea"]}, "--only arcvq-vea: table1 has no such run: did you mean"),
        ({"table": "ablations", "only": ["vq-vae"]}, "--only vq-vae: ablations has no such run"),
        ({"table": "table1", "data": ["cifar"]}, "--data cifar: there is no preset for it: did you mean cifar10"),
        ({"table": "table1", "suffix": "../bf16"}, "--suffix ../bf16: becomes part of file names"),
        ({"table": "table1", "settings": ["--training.seed", "5"]}, r"--training\.seed: .*; --seeds N says which"),
        ({"table": "table1", "settings": ["--name=foo"]}, "--name: .*; --suffix WORD ends the names"),
        ({"table": "table1", "settings": ["--data.name", "mnist"]}, r"--data\.name: .*; --data NAME says which"),
        ({"table": "table1", "settings": ["--system=fsq"]}, "--system: .*; --only NAME chooses among its runs"),
        ({"table": "table1", "settings": ["--training.steps"]}, r"--training\.steps needs a value"),
    ],
)
def test_a_wrong_name_is_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        choose_runs(**arguments)


@pytest.mark.parametrize("name", [e.name for e in EXPERIMENTS.values() if f"cifar10/{e.preset}" in preset_names()])
def test_every_experiment_is_a_configuration(name: str) -> None:
    run = choose_runs("all", data=["cifar10"], only=[name])[0]
    assert load_system(run.preset, run.overrides).title == name


@pytest.mark.parametrize(("setting", "length"), [("--training.steps=4", (None, 4)), ("--training.epochs=3", (3, None))])
def test_a_length_that_is_given_replaces_the_tables_own(setting: str, length: tuple[int | None, int | None]) -> None:
    for run in choose_runs("budgets", settings=[setting], data=["cifar10"]):
        training = load_system(run.preset, run.overrides).training
        parts = training.stages or [training]
        assert [sum(part.epochs or 0 for part in parts) or None, sum(part.steps or 0 for part in parts) or None] == [
            *length
        ]
    (run, *_) = choose_runs("tuning", settings=["--training.learning_rate=9"])
    assert load_system(run.preset, run.overrides).training.learning_rate < 1  # that is what the table is about


def test_what_is_there_is_left_out(places: Places) -> None:
    result(places, "cifar10/vq-vae-seed1")
    result(places, "cifar10/arcvq-vae-seed1", protocols=["exact"])
    trained = places.runs / "mnist" / "vq-vae-seed1"
    trained.mkdir(parents=True)
    (trained / "training.json").write_text("{}")
    (begun,) = choose_runs("table1", data=["mnist"], seeds=[1], only=["arcvq-vae"])
    begun.folder(places).path.mkdir()
    begun.folder(places).config.write_text(json.dumps(to_dict(load_system(begun.preset, begun.overrides))))
    result(places, "cifar10/sq-vae-seed1")
    earlier = places.results / "cifar10" / "sq-vae-seed1.json"
    document = json.loads(earlier.read_text())
    document["protocols"]["paper"]["protocol_hash"] = "0f988fa14ed6"  # the protocol was corrected since
    earlier.write_text(json.dumps(document))
    states = {p.run.key: p.state for p in plan_of("table1", places, seeds=[1]).runs}
    assert states["cifar10/vq-vae-seed1"] == "done"
    assert states["cifar10/sq-vae-seed1"] == "incomplete"
    assert states["cifar10/arcvq-vae-seed1"] == "incomplete"
    assert states["mnist/vq-vae-seed1"] == "trained"
    assert states["mnist/arcvq-vae-seed1"] == "begun"
    opened = [p.run.key for p in plan_of("table1", places, seeds=[1], only=["arcvq-vae", "vq-vae"]).open]
    assert opened == ["mnist/vq-vae-seed1", "mnist/arcvq-vae-seed1"]
    opened = [p.run.key for p in plan_of("table1", places, seeds=[1], only=["arcvq-vae"], complete=True).open]
    assert "cifar10/arcvq-vae-seed1" in opened


def test_a_result_of_other_settings_is_not_taken_for_this_run(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    given: Any = {"data": ["cifar10"], "seeds": [1], "only": ["vq-vae"]}
    result(places, "cifar10/vq-vae-seed1", compile=True)  # how it is computed makes no other run
    assert [p.state for p in plan_of("table1", places, **given).runs] == ["done"]
    result(places, "cifar10/vq-vae-seed1", epochs=5)
    plan = plan_of("table1", places, **given)
    assert [p.state for p in plan.runs] == ["other settings"]
    assert not plan.open
    print_plan(plan)
    said = f"{places.results / 'cifar10' / 'vq-vae-seed1.json'}: of another run: training.epochs is 5 and 500 here; take it away"
    assert f"cifar10/vq-vae-seed1: not run: {said}" in capsys.readouterr().out
    outcome = run_plan(plan, say=lambda _: None)
    assert outcome.failed["cifar10/vq-vae-seed1"].startswith(said)
    # What is only measured again keeps its own.
    result(places, "cifar10/vq-vae-seed1", epochs=5, protocols=["exact"])
    write_json(places.models / "cifar10-vq-vae-seed1" / "config.json", {})
    assert [p.state for p in plan_of("table1", places, complete=True, **given).open] == ["incomplete"]
    # But not with the weights of a folder that is of others.
    (run,) = choose_runs("table1", **given)
    write_json(run.folder(places).training, {})
    for epochs, state in ((5, "incomplete"), (500, "other settings")):
        config = to_dict(load_system(run.preset, [*run.overrides, f"--training.epochs={epochs}"]))
        run.folder(places).config.write_text(json.dumps(config))
        (planned,) = plan_of("table1", places, complete=True, **given).runs
        assert planned.state == state
    assert f"training.epochs is 5 and 500 here; take {run.folder(places).path} away" in planned.differs


def test_what_completing_results_takes_is_said(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    given: Any = {"data": ["cifar10"], "seeds": [1], "only": ["vq-vae", "arcvq-vae"]}
    for name in given["only"]:
        result(places, f"cifar10/{name}-seed1", protocols=["exact"])
    kept = places.models / "cifar10-vq-vae-seed1" / "config.json"
    for trains in (", and trains 1 anew, whose weights were not kept\n", "\n"):
        write_json(kept, {})
        print_plan(plan_of("table1", places, **given))
        assert f": --complete measures them again{trains}" in capsys.readouterr().out
        kept = places.models / "cifar10-arcvq-vae-seed1" / "config.json"


def test_a_preset_of_another_version_is_no_error(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcvq.sweep.run.preset_names", lambda: ["cifar10/vq-vae"])
    plan = plan_of("table1", places, data=["cifar10"], seeds=[1])
    assert [p.run.key for p in plan.open] == ["cifar10/vq-vae-seed1"]
    assert {p.state for p in plan.runs if not p.open} == {"not in this version"}


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


def test_a_wrong_setting_is_told_before_anything_starts(places: Places) -> None:
    with pytest.raises(ArcvqError, match=r"unknown key 'training\.speed'"):
        plan_of("table1", places, settings=["--training.speed", "9"])


def test_a_suffix_tells_of_no_other_precision(places: Places) -> None:
    """Tables read the precision off the name, so `vq-vae-bf16` must not be trained in fp32."""
    given: Any = {"data": ["cifar10"], "seeds": [1], "only": ["vq-vae"], "suffix": "bf16"}
    message = r"--suffix bf16: .* cifar10/vq-vae-bf16-seed1 would be one in fp32: say --training\.precision bf16"
    for settings in ([], ["--training.precision", "fp32"]):
        with pytest.raises(ArcvqError, match=message):
            plan_of("table1", places, settings=settings, **given)
    assert plan_of("table1", places, settings=["--training.precision", "bf16"], **given).open
    assert plan_of("table1", places, **given | {"suffix": "mine"}).open
    # Nor measured, if it was trained so already.
    write_json(places.runs / "cifar10" / "vq-vae-bf16-seed1" / "training.json", {})
    with pytest.raises(ArcvqError, match=message):
        plan_of("table1", places, **given)
    # What is only to be measured again has told its precision.
    result(places, "cifar10/vq-vae-bf16-seed1", protocols=["exact"], precision="bf16")
    trained = load_system("cifar10/vq-vae", ["--training.precision=bf16"])
    (places.runs / "cifar10" / "vq-vae-bf16-seed1" / "config.yaml").write_text(json.dumps(to_dict(trained)))
    assert plan_of("table1", places, complete=True, **given).open[0].trained


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


def test_damaged_files_are_named(places: Places) -> None:
    file = places.results / "cifar10" / "vq-vae-seed1.json"
    file.parent.mkdir(parents=True)
    for text in ("{}", '{"protocols": {"exact": 1, "paper": 2}}', '{"protocols": 3}'):
        file.write_text(text)
        with pytest.raises(ArcvqError, match=r"vq-vae-seed1\.json: not a result of arcvq evaluate"):
            plan_of("table1", places, data=["cifar10"])
    file.unlink()
    places.runs.mkdir()
    how = {"kind": "a", "unit": "epochs", "length": 500}
    time = {"preset": "cifar10/vq-vae", "how": how, "device": device_name(CPU), "steps": 1000, "train": 9.0}
    wrong = [time | {"train": None}, time | {"how": how | {"length": "500"}}, time | {"more": 1}, {"preset": "a"}, "a"]
    for text in ("{}", '{"times": 3}', *(json.dumps({"times": [time, each]}) for each in wrong)):
        (places.runs / "times.json").write_text(text)
        with pytest.raises(ArcvqError, match=r"times\.json: not the times of a sweep"):
            plan_of("table1", places, data=["cifar10"])
