"""One strict parse: a mapping (YAML, JSON, command line) fills a dataclass, or one line says which key is wrong and why.

Types decide, never the keys that happen to be present: no class paths, nothing importable, no guessing between unions. Where one
of several dataclasses may stand, `kind` picks it from a registry.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from arcvq.errors import ArcvqError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Marks a field that holds one of several dataclasses: `Annotated[QuantizerConfig, Choice(QUANTIZERS, "vq")]`."""

    registry: Any  # an arcvq.registry.Registry
    default: str  # the kind where none is given

    def config(self, data: Any) -> type:
        """The dataclass that the `kind` of a mapping picks."""
        kind = data.get("kind", self.default) if isinstance(data, Mapping) else self.default
        found: type = self.registry.config(kind)
        return found


def parse(cls: type[T], data: Any, where: str = "") -> T:
    """Fill the dataclass `cls` from a mapping. `where` is the dotted key of the mapping, for messages."""
    if not isinstance(data, Mapping):
        raise ArcvqError(f"{where or 'the configuration'}: expected a mapping of keys to values, got {_shown(data)}")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            deeper = [_join(where, name) for name in _dotted(cls) if name.endswith(f".{key}")]
            hint = f": did you mean {' or '.join(deeper)}?" if deeper else did_you_mean(str(key), fields)
            raise ArcvqError(f"unknown key {_join(where, str(key))!r}{hint}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ArcvqError(f"missing key {_join(where, name)!r}: it has no default")
    return cls(**values)


@cache
def _type_hints(cls: Any) -> dict[str, Any]:
    """Once for each class: a plan parses hundreds of configurations, of a few classes."""
    return typing.get_type_hints(cls, include_extras=True)


def _dotted(cls: Any) -> list[str]:
    """Every setting below `cls` by its dotted name; of a choice, those of all kinds."""
    names: dict[str, None] = {}
    for field in dataclasses.fields(cls):
        kind, _ = _field(cls, field.name, None)
        choice = _choice(_type_hints(cls)[field.name])
        configs = [choice.registry.config(each) for each in choice.registry] if choice else [kind]
        for config in configs:
            below = _dotted(config) if dataclasses.is_dataclass(config) else []
            names |= dict.fromkeys([f"{field.name}.{name}" for name in below] or [field.name])
    return list(names)


def _choice(hint: Any) -> Choice | None:
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    return next((each for each in hint.__metadata__ if isinstance(each, Choice)), None)


def _kind(hint: Any) -> Any:
    """What a field holds when it is not None."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    return next(inner for inner in typing.get_args(hint) if inner is not type(None))


def to_dict(config: Any) -> dict[str, Any]:
    """The dataclass as plain values, ready for YAML or JSON; `parse` reads it back."""
    hints = _type_hints(type(config))  # type: ignore[arg-type]
    return {
        field.name: _plain(getattr(config, field.name), hints.get(field.name)) for field in dataclasses.fields(config)
    }


def _plain(value: Any, hint: Any) -> Any:
    if dataclasses.is_dataclass(value):
        choice = _choice(hint)
        return ({"kind": choice.registry.kind_of(value)} if choice else {}) | to_dict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, None) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, None) for item in value]
    return value


def differences(there: Any, here: Any, where: str = "") -> Iterator[str]:
    """A line for each value in which two nested mappings differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):  # not a set: the same one is named each time
            yield from differences(there.get(key), here.get(key), _join(where, key))
    elif there != here:
        yield f"{where} is {there} there and {here} here"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, section by section. A section of another `kind` replaces the one below it."""
    result = _copy(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not _other_kind(below, value):
            result[key] = merge(below, value)
        else:
            result[key] = _copy(value)
    return result


def _other_kind(below: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    return "kind" in above and above["kind"] != below.get("kind")


def override(data: Mapping[str, Any], arguments: Iterable[str], cls: Any = None) -> dict[str, Any]:
    """`--quantizer.arc.scale 20` or `--quantizer.arc=null` on top of a nested mapping. Values are read as YAML; where `cls` has
    a field of text, the value is the argument as it is."""
    for keys, value in _settings(arguments):
        data = _set(data, keys, value, cls)
    return _copy(data)


def _settings(arguments: Iterable[str]) -> list[tuple[list[str], str]]:
    """`--a.b 1 --c=2` → ([a, b], "1"), ([c], "2"); a kind before what belongs to it."""
    settings = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise ArcvqError(
                f"unexpected argument {word!r}: settings are given as --key value, e.g. --training.epochs 3"
            )
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words:
                raise ArcvqError(f"--{key} needs a value, e.g. --{key} 1")
            value = words.pop(0)
        settings.append((key.replace("-", "_").split("."), value))
    return sorted(settings, key=lambda setting: setting[0][-1] != "kind")


def _set(data: Mapping[str, Any], keys: list[str], text: str, cls: Any) -> dict[str, Any]:
    """The mapping with one setting changed. `cls` is what the mapping fills, as far as it is known."""
    name, *below = keys
    here = data.get(name)
    kind, optional = _field(cls, name, here)
    if below:
        section = _set(here if isinstance(here, Mapping) else {}, below, text, kind)
        if below == ["kind"] and not _same_kind(here, section["kind"], cls, name):
            return {**data, name: {"kind": section["kind"]}}
        return merge(data, {name: section})
    as_it_is = _is_text(kind) and not (optional and text in ("null", "~", ""))
    return {**data, name: text if as_it_is else _yaml_value(text, ".".join(keys))}


def _same_kind(section: Any, kind: Any, cls: Any, name: str) -> bool:
    """Whether the settings in a section are those of this kind; without a `kind` they are those of the default one."""
    choice = _choice(_hint(cls, name))
    return isinstance(section, Mapping) and section.get("kind", choice.default if choice else None) == kind


def _hint(cls: Any, name: str) -> Any:
    return _type_hints(cls).get(name) if isinstance(cls, type) and dataclasses.is_dataclass(cls) else None


def _field(cls: Any, name: str, data: Any) -> tuple[Any, bool]:
    """What a field holds, and whether it may be None. `data` is the mapping there, by whose `kind` a choice is known."""
    if typing.get_origin(cls) is dict:
        return typing.get_args(cls)[1], False
    hint = _hint(cls, name)
    if hint is None:
        return None, False
    choice = _choice(hint)
    if choice:
        kind = data.get("kind", choice.default) if isinstance(data, Mapping) else choice.default
        return (choice.registry.config(kind) if kind in choice.registry else None), False
    return _kind(hint), type(None) in typing.get_args(hint)


def _is_text(kind: Any) -> bool:
    literal = typing.get_origin(kind) is typing.Literal
    return kind is str or (literal and all(isinstance(value, str) for value in typing.get_args(kind)))


class _Loader(yaml.SafeLoader):
    """Plain values only, and a key said twice is a mistake, not a choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.YAMLError(
                    f"the key {key!r} stands twice, the second time in line {key_node.start_mark.line + 1}"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ArcvqError(f"{path}: no such file") from None
    except OSError as error:
        raise ArcvqError(f"{path}: not readable: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArcvqError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ArcvqError(f"{path}: expected a mapping of keys to values, got {_shown(data)}")
    return data


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """': did you mean …?' or the list of what there is, to end a message with."""
    names = list(names)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f": did you mean {' or '.join(close)}?"
    return f": expected one of {', '.join(sorted(names))}" if names else ""


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    choice = _choice(hint)
    if choice:
        return _chosen(choice, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"{where}: a configuration field may be optional but not a union, got {hint}")
        return _convert(inner[0], value, where)
    if origin is typing.Literal:
        if value in arguments and type(value) in {type(argument) for argument in arguments}:
            return value
        raise ArcvqError(f"{where}: expected one of {', '.join(map(str, arguments))}, got {_shown(value)}")
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ArcvqError(f"{where}: expected a list, got {_shown(value)}")
        return origin(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ArcvqError(f"{where}: expected a mapping of names to settings, got {_shown(value)}")
        return {str(key): _convert(arguments[1], item, _join(where, str(key))) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):  # built in Python, where nothing has checked its values yet
            fields = dataclasses.fields(type(value))  # type: ignore[arg-type]
            data = {field.name: getattr(value, field.name) for field in fields if field.init}
            return parse(type(value), data, where)
        return parse(typing.cast(type, hint), value, where)
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise ArcvqError(f"{where}: expected true or false, got {_shown(value)}")
    if hint in (int, float):
        return _number(hint, value, where)
    if hint is str:
        if isinstance(value, str):
            return value
        raise ArcvqError(f"{where}: expected text, got {_shown(value)}")
    raise TypeError(f"{where}: a configuration field cannot be of type {hint}")


def _chosen(choice: Choice, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(value):  # built in Python
        choice.registry.kind_of(value)
        return _convert(type(value), value, where)
    if not isinstance(value, Mapping):
        raise ArcvqError(f"{where}: expected a mapping with a kind, got {_shown(value)}")
    try:
        config = choice.config(value)
    except ArcvqError as error:
        raise ArcvqError(f"{where}.kind: {error}") from None
    return parse(config, {key: item for key, item in value.items() if key != "kind"}, where)


def _number(kind: type, value: Any, where: str) -> int | float:
    # YAML 1.1 reads 3e-4 as text; a person means a number.
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ArcvqError(f"{where}: expected a number, got {_shown(value)}") from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArcvqError(f"{where}: expected a number, got {_shown(value)}")
    if not math.isfinite(value):
        raise ArcvqError(f"{where}: expected a finite number, got {value}")
    if kind is float:
        return float(value)
    whole = int(value)  # type: ignore[call-overload]
    if value != whole:
        raise ArcvqError(f"{where}: expected a whole number, got {value}")
    return whole


def _yaml_value(text: str, key: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ArcvqError(f"--{key}: the value {text!r} is not readable as YAML") from None


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
