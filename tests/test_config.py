"""Strict parsing of configurations, overrides from the command line, and one-line errors."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml

from arcvq import ArcvqError
from arcvq.config import Choice, changed_settings, did_you_mean, merge, override, parse, read_yaml, to_dict
from arcvq.registry import Registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    scale: float = 10.0
    top_k: int = 3


@dataclasses.dataclass(kw_only=True)
class Outer:
    name: str
    epochs: int = 1
    learning_rate: float = 1e-3
    shuffle: bool = True
    mode: Literal["fast", "slow"] = "fast"
    level: Literal[1, 2] = 1
    inner: Inner = dataclasses.field(default_factory=Inner)
    extra: Inner | None = None
    limit: int | None = None
    sizes: list[int] = dataclasses.field(default_factory=list)
    means: tuple[float, ...] = ()
    parts: list[Inner] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True)
class SquareConfig:
    side: float = 1.0


@dataclasses.dataclass(kw_only=True)
class DiscConfig:
    radius: float = 1.0
    name: str = "disc"


class Square:
    Config = SquareConfig

    def __init__(self, *, config: SquareConfig) -> None:
        self.config = config


class Disc(Square):
    Config = DiscConfig  # type: ignore[assignment]


SHAPES: Registry[Any] = Registry("shape", {"square": Square, "disc": Disc})


@dataclasses.dataclass(kw_only=True)
class Drawing:
    shape: Annotated[Any, Choice(SHAPES, "square")] = dataclasses.field(default_factory=SquareConfig)
    styles: dict[str, Inner] = dataclasses.field(default_factory=dict)


def error_of(data: Any, where: str = "", cls: type = Outer) -> str:
    """The one-line error that `parse` raises."""
    with pytest.raises(ArcvqError) as raised:
        parse(cls, data, where)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_parse_converts_every_field_to_its_type() -> None:
    text = """
    name: run
    epochs: 5
    learning_rate: 3e-4
    shuffle: false
    mode: slow
    level: 2
    inner: {scale: 20, top_k: 1}
    extra: {scale: 2.5}
    limit: 7
    sizes: [1, 2]
    means: [1, 2.5]
    parts: [{top_k: 1}, {top_k: 2}]
    """
    config = parse(Outer, yaml.safe_load(text))
    assert config == Outer(
        name="run",
        epochs=5,
        learning_rate=3e-4,
        shuffle=False,
        mode="slow",
        level=2,
        inner=Inner(scale=20.0, top_k=1),
        extra=Inner(scale=2.5),
        limit=7,
        sizes=[1, 2],
        means=(1.0, 2.5),
        parts=[Inner(top_k=1), Inner(top_k=2)],
    )
    assert isinstance(config.inner.scale, float)
    assert isinstance(config.means[0], float)


def test_to_dict_and_parse_round_trip() -> None:
    config = Outer(name="run", extra=Inner(scale=3.0), sizes=[4], means=(0.5,), parts=[Inner()])
    assert parse(Outer, yaml.safe_load(yaml.safe_dump(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("1e3", 1000.0), ("'2.5'", 2.5), ("7", 7.0), ("-.5", -0.5)]
)
def test_numbers_written_as_text_become_floats(text: str, value: float) -> None:
    assert parse(Outer, {"name": "x", "learning_rate": yaml.safe_load(text)}).learning_rate == value


@pytest.mark.parametrize("value", [1e3, "1e3", 1000, "1000"])
def test_whole_floats_become_ints(value: Any) -> None:
    epochs = parse(Outer, {"name": "x", "epochs": value}).epochs
    assert epochs == 1000
    assert type(epochs) is int


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"epoch": 3}, "unknown key 'epoch': did you mean epochs?"),
        ({"inner": {"skale": 3}}, "unknown key 'inner.skale': did you mean scale?"),
        ({"parts": [{}, {"topk": 3}]}, "unknown key 'parts[1].topk': did you mean top_k?"),
        ({"zzzz": 3}, "unknown key 'zzzz': expected one of epochs, extra, inner"),
        ({"class_path": "os.system"}, "unknown key 'class_path'"),
        ({"inner": {"class_path": "builtins.eval", "init_args": {}}}, "unknown key 'inner.class_path'"),
        ({1: 3}, "unknown key '1'"),
        ({"two\nlines": 3}, "unknown key 'two\\nlines'"),
        ({"epochs": "three"}, "epochs: expected a number, got 'three' (str)"),
        ({"epochs": 2.5}, "epochs: expected a whole number, got 2.5"),
        ({"epochs": True}, "epochs: expected a number, got True (bool)"),
        ({"epochs": None}, "epochs: expected a number, got None (NoneType)"),
        ({"epochs": [1]}, "epochs: expected a number, got [1] (list)"),
        ({"epochs": float("inf")}, "epochs: expected a finite number, got inf"),
        ({"epochs": float("nan")}, "epochs: expected a finite number, got nan"),
        ({"limit": "inf"}, "limit: expected a finite number, got inf"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number, got nan"),
        ({"learning_rate": "inf"}, "learning_rate: expected a finite number, got inf"),
        ({"shuffle": "yes"}, "shuffle: expected true or false, got 'yes' (str)"),
        ({"shuffle": 1}, "shuffle: expected true or false, got 1 (int)"),
        ({"name": 3}, "name: expected text, got 3 (int)"),
        ({"name": None}, "name: expected text, got None"),
        ({"mode": "medium"}, "mode: expected one of fast, slow, got 'medium' (str)"),
        ({"mode": None}, "mode: expected one of fast, slow, got None"),
        ({"level": True}, "level: expected one of 1, 2, got True (bool)"),
        ({"level": "1"}, "level: expected one of 1, 2, got '1' (str)"),
        ({"inner": None}, "inner: expected a mapping of keys to values, got None"),
        ({"inner": 3}, "inner: expected a mapping of keys to values, got 3 (int)"),
        ({"extra": []}, "extra: expected a mapping of keys to values, got [] (list)"),
        ({"extra": Inner(scale="wide")}, "extra.scale: expected a number, got 'wide' (str)"),
        ({"sizes": 3}, "sizes: expected a list, got 3 (int)"),
        ({"sizes": "12"}, "sizes: expected a list, got '12' (str)"),
        ({"sizes": [1, "x"]}, "sizes[1]: expected a number, got 'x' (str)"),
        ({"means": {"a": 1}}, "means: expected a list, got {'a': 1} (dict)"),
    ],
)
def test_wrong_value_error_names_key_and_expectation(data: dict[Any, Any], message: str) -> None:
    assert message in error_of({"name": "x", **data})


def test_missing_required_key_is_named() -> None:
    assert "missing key 'name'" in error_of({})
    assert "missing key 'training.name'" in error_of({}, "training")


@pytest.mark.parametrize("data", [None, [1], "text", 3])
def test_parse_refuses_non_mapping(data: Any) -> None:
    assert "the configuration: expected a mapping of keys to values" in error_of(data)


def test_optional_fields_accept_null() -> None:
    assert parse(Outer, {"name": "x", "limit": None, "extra": None}).limit is None


def test_long_value_is_shortened_in_error() -> None:
    assert len(error_of({"name": "x", "epochs": "9" * 50 + "x" * 1000})) < 140


def test_union_field_raises_type_error() -> None:
    @dataclasses.dataclass
    class Guess:
        value: int | str = 1

    with pytest.raises(TypeError, match="may be optional but not a union"):
        parse(Guess, {"value": 3})


def test_dataclass_values_are_checked_and_converted() -> None:
    config = parse(Outer, {"name": "x", "inner": Inner(scale="2e1")})  # type: ignore[arg-type]
    assert config.inner == Inner(scale=20.0)


def test_override_changes_a_copy() -> None:
    data = {"quantizer": {"arc": {"scale": 10, "margin": 0.1}}, "epochs": 1}
    arguments = ["--quantizer.arc.scale", "20", "--epochs=5", "--new.deep.key", "3e-4", "--flag=true", "--sizes=[1, 2]"]
    assert override(data, arguments) == {
        "quantizer": {"arc": {"scale": 20, "margin": 0.1}},
        "epochs": 5,
        "new": {"deep": {"key": "3e-4"}},
        "flag": True,
        "sizes": [1, 2],
    }
    assert data == {"quantizer": {"arc": {"scale": 10, "margin": 0.1}}, "epochs": 1}


def test_override_removes_and_restores_a_section() -> None:
    data = {"arc": {"scale": 10}}
    assert override(data, ["--arc=null"]) == {"arc": None}
    assert override({"arc": None}, ["--arc.scale", "3"]) == {"arc": {"scale": 3}}


def test_last_override_wins_and_dashes_become_underscores() -> None:
    assert override({}, ["--learning-rate", "1", "--learning_rate", "2"]) == {"learning_rate": 2}


def test_override_accepts_negative_numbers_and_equals_signs() -> None:
    assert override({}, ["--margin", "-0.5", "--name=a=b"]) == {"margin": -0.5, "name": "a=b"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["epochs", "3"], "unexpected argument 'epochs': settings are given as --key value"),
        (["--"], "unexpected argument '--'"),
        (["--epochs"], "--epochs needs a value, e.g. --epochs 1"),
        (["--epochs", "[1"], "--epochs: the value '[1' is not readable as YAML"),
        (["--epochs", "!!python/object/apply:os.system [ls]"], "is not readable as YAML"),
    ],
)
def test_wrong_override_is_a_one_line_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        override({}, arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_read_yaml_returns_mapping(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("name: größer\ninner: {scale: 3.0e-4}\n", encoding="utf-8")
    assert read_yaml(path) == {"name": "größer", "inner": {"scale": 3e-4}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1\nb: 2", "not readable as YAML"),
        (b"a: !!python/object/apply:os.system ['ls']", "not readable as YAML"),
        (b"\xff\xfe\x00bad", "not readable as YAML"),
        (b"- 1\n- 2\n", "expected a mapping of keys to values, got [1, 2] (list)"),
        (b"", "expected a mapping of keys to values, got None"),
    ],
)
def test_unreadable_yaml_is_a_one_line_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ArcvqError) as raised:
        read_yaml(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_read_yaml_error_names_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"nowhere\.yaml: no such file"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(ArcvqError, match="not readable: Is a directory"):
        read_yaml(tmp_path)


def test_did_you_mean_lists_close_names_or_all() -> None:
    assert did_you_mean("scal", ["scale", "margin"]) == ": did you mean scale?"
    assert did_you_mean("xyz", ["scale", "margin"]) == ": expected one of margin, scale"
    assert did_you_mean("xyz", []) == ""


def test_duplicate_yaml_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("training: {steps: 2}\nsystem: vq-vae\ntraining: {steps: 3}\n")
    with pytest.raises(ArcvqError, match="duplicate key 'training' in line 3"):
        read_yaml(tmp_path / "twice.yaml")


def test_text_field_keeps_argument_unchanged() -> None:
    assert override({}, ["--name", "folder:my #1 photos: b"], Outer) == {"name": "folder:my #1 photos: b"}
    assert override({}, ["--name", "12", "--mode", "slow"], Outer) == {"name": "12", "mode": "slow"}
    assert override({}, ["--extra.scale", "3 # a comment", "--limit", "null"], Outer) == {
        "extra": {"scale": 3},
        "limit": None,
    }


def test_optional_text_field_accepts_null() -> None:
    @dataclasses.dataclass
    class Optional:
        root: str | None = None

    assert override({}, ["--root", "null"], Optional) == {"root": None}
    assert override({}, ["--root", "a #b"], Optional) == {"root": "a #b"}


@pytest.mark.parametrize(
    ("data", "config"),
    [
        ({}, SquareConfig()),
        ({"shape": {}}, SquareConfig()),
        ({"shape": {"side": "2e0"}}, SquareConfig(side=2.0)),
        ({"shape": {"kind": "square", "side": 2}}, SquareConfig(side=2.0)),
        ({"shape": {"kind": "disc", "radius": 3}}, DiscConfig(radius=3.0)),
        ({"shape": DiscConfig(radius="3")}, DiscConfig(radius=3.0)),  # type: ignore[arg-type]
    ],
)
def test_kind_picks_dataclass(data: dict[str, Any], config: Any) -> None:
    assert parse(Drawing, data).shape == config


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"kind": "disk"}, "shape.kind: unknown shape 'disk': did you mean disc?"),
        ({"kind": "triangle"}, "shape.kind: unknown shape 'triangle': expected one of disc, square"),
        ({"kind": None}, "shape.kind: unknown shape None"),
        ({"kind": ["disc"]}, "shape.kind: unknown shape ['disc']"),
        ({"kind": "disc", "side": 3}, "unknown key 'shape.side': expected one of name, radius"),
        ({"kind": "disc", "radius": "wide"}, "shape.radius: expected a number, got 'wide'"),
        ("disc", "shape: expected a mapping with a kind, got 'disc' (str)"),
        (None, "shape: expected a mapping with a kind, got None"),
        (Inner(), "Inner belongs to no registered shape"),
    ],
)
def test_wrong_kind_is_a_one_line_error(shape: Any, message: str) -> None:
    assert error_of({"shape": shape}, cls=Drawing).startswith(message)


def test_dict_of_dataclasses_is_parsed_by_name() -> None:
    assert parse(Drawing, {"styles": {"thin": {"scale": 1}, "thick": {}}}).styles == {
        "thin": Inner(scale=1.0),
        "thick": Inner(),
    }
    assert error_of({"styles": {"thin": {"skale": 1}}}, cls=Drawing).startswith("unknown key 'styles.thin.skale'")
    assert error_of({"styles": ["thin"]}, cls=Drawing).startswith("styles: expected a mapping of names to settings")
    assert override({}, ["--styles.thin.scale", "3"], Drawing) == {"styles": {"thin": {"scale": 3}}}


def test_to_dict_writes_kind_and_parses_back() -> None:
    config = Drawing(shape=DiscConfig(radius=2.0), styles={"thin": Inner(scale=1.0)})
    written = yaml.safe_load(yaml.safe_dump(to_dict(config)))
    assert written["shape"] == {"kind": "disc", "radius": 2.0, "name": "disc"}
    assert parse(Drawing, written) == config


def test_new_kind_drops_old_settings() -> None:
    below = {"shape": {"kind": "square", "side": 2}, "styles": {"thin": {"scale": 1}}}
    assert merge(below, {"shape": {"kind": "disc"}})["shape"] == {"kind": "disc"}
    assert merge(below, {"shape": {"kind": "square"}})["shape"] == {"kind": "square", "side": 2}
    assert merge(below, {"shape": {"side": 3}})["shape"] == {"kind": "square", "side": 3}
    assert merge(below, {"styles": {"thick": {}}})["styles"] == {"thin": {"scale": 1}, "thick": {}}
    assert override(below, ["--shape.radius=3", "--shape.kind=disc"], Drawing)["shape"] == {"kind": "disc", "radius": 3}
    assert override(below, ["--shape.kind=square"], Drawing)["shape"] == {"kind": "square", "side": 2}
    assert override({"shape": {"side": 2}}, ["--shape.kind=square"], Drawing)["shape"] == {"kind": "square", "side": 2}
    assert below["shape"] == {"kind": "square", "side": 2}


def test_text_field_of_chosen_kind_keeps_argument_unchanged() -> None:
    arguments = ["--shape.name", "12", "--shape.kind", "disc"]
    assert override({}, arguments, Drawing) == {"shape": {"kind": "disc", "name": "12"}}


def test_unknown_key_error_suggests_dotted_name() -> None:
    assert "did you mean inner.top_k or extra.top_k?" in error_of({"name": "a", "top_k": 5})
    assert "did you mean shape.radius?" in error_of({"radius": 5}, cls=Drawing)


def test_changed_settings_do_not_change_with_an_option_that_is_added_and_left_at_its_default() -> None:
    before = dataclasses.make_dataclass("Config", [("width", int, 8)])
    after = dataclasses.make_dataclass("Config", [("width", int, 8), ("depth", int, 1)])
    assert changed_settings(before(width=4)) == changed_settings(after(width=4)) == {"class": "Config", "width": 4}
    assert changed_settings(after(width=4, depth=2)) == {"class": "Config", "width": 4, "depth": 2}


def test_changed_settings_tell_parts_that_are_off_default_and_changed_apart() -> None:
    inner = dataclasses.make_dataclass("Inner", [("scale", float, 1.0)])
    outer = dataclasses.make_dataclass(
        "Outer", [("on", Any, dataclasses.field(default_factory=inner)), ("off", Any, None)]
    )
    assert changed_settings(outer()) == {"class": "Outer"}
    assert changed_settings(outer(on=None)) == {"class": "Outer", "on": None}
    assert changed_settings(outer(on=inner(2.0)))["on"] == {"class": "Inner", "scale": 2.0}
    assert changed_settings(outer(off=inner()))["off"] == {"class": "Inner"}
