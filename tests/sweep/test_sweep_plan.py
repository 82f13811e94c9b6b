"""Which runs a table needs, in which order, and how they stand."""

import json
from typing import Any

import pytest
from planned_runs import CPU, plan_of, result

from arcvq import ArcvqError
from arcvq.config import to_dict
from arcvq.storage import write_json
from arcvq.sweep import Places, choose_runs, run_plan
from arcvq.sweep.run import SMALL
from arcvq.systems import load_system, preset_names
from arcvq.tables import EXPERIMENTS
from arcvq.terminal import print_plan
from arcvq.training.environment import device_name


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
