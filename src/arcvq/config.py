"""A strict parser: a mapping (YAML, JSON, command line) fills a dataclass, or a one-line error names the wrong key.

The field types alone decide how a value is read: no class paths, no imports, no unions. Where a field holds one of several
dataclasses, the key `kind` picks it from a registry.
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
    default: str  # the kind if the mapping has no `kind`

    def config(self, data: Any) -> type:
        """The dataclass that the `kind` of the mapping `data` names."""
        kind = data.get("kind", self.default) if isinstance(data, Mapping) else self.default
        found: type = self.registry.config(kind)
        return found


def parse(cls: type[T], data: Any, where: str = "") -> T:
    """Fill the dataclass `cls` from a mapping. `where` is the mapping's dotted key, for error messages."""
    if not isinstance(data, Mapping):
        raise ArcvqError(f"{where or 'the configuration'}: expected a mapping of keys to values, got {_describe(data)}")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            deeper = [_join_keys(where, name) for name in _dotted_names(cls) if name.endswith(f".{key}")]
            hint = f": did you mean {' or '.join(deeper)}?" if deeper else did_you_mean(str(key), fields)
            raise ArcvqError(f"unknown key {_join_keys(where, str(key))!r}{hint}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], _join_keys(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ArcvqError(f"missing key {_join_keys(where, name)!r}: it has no default")
    return cls(**values)


@cache
def _type_hints(cls: Any) -> dict[str, Any]:
    """The type hints of a dataclass, cached: hundreds of configurations share a few classes."""
    return typing.get_type_hints(cls, include_extras=True)


def _dotted_names(cls: Any) -> list[str]:
    """The dotted names of all settings of a dataclass, e.g. `training.steps`; a choice adds those of every kind."""
    names: dict[str, None] = {}
    for field in dataclasses.fields(cls):
        field_type, _ = _field_type(cls, field.name, None)
        choice = _find_choice(_type_hints(cls)[field.name])
        configs = [choice.registry.config(each) for each in choice.registry] if choice else [field_type]
        for config in configs:
            below = _dotted_names(config) if dataclasses.is_dataclass(config) else []
            names |= dict.fromkeys([f"{field.name}.{name}" for name in below] or [field.name])
    return list(names)


def _find_choice(hint: Any) -> Choice | None:
    """The `Choice` in a field's type hint, if it has one."""
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    return next((each for each in hint.__metadata__ if isinstance(each, Choice)), None)


def _without_none(hint: Any) -> Any:
    """The type hint `X` of an optional `X | None`; other hints as they are."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    return next(inner for inner in typing.get_args(hint) if inner is not type(None))


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a configuration to plain values for YAML or JSON; `parse` reads them back."""
    hints = _type_hints(type(config))  # type: ignore[arg-type]
    return {
        field.name: _to_plain(getattr(config, field.name), hints.get(field.name))
        for field in dataclasses.fields(config)
    }


def changed_settings(config: Any) -> dict[str, Any]:
    """A configuration's class and the settings that differ from their defaults, as plain values.

    For hashes: a setting that is added later, and left at its default, changes nothing here.
    """
    plain = to_dict(config)
    found: dict[str, Any] = {"class": type(config).__name__}
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if value != default:
            found[field.name] = changed_settings(value) if dataclasses.is_dataclass(value) else plain[field.name]
    return found


def _to_plain(value: Any, hint: Any) -> Any:
    """Convert one field's value to plain values; a choice gets its `kind`."""
    if dataclasses.is_dataclass(value):
        choice = _find_choice(hint)
        return ({"kind": choice.registry.kind_of(value)} if choice else {}) | to_dict(value)
    if isinstance(value, Mapping):
        return {key: _to_plain(item, None) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, None) for item in value]
    return value


def parse_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """As `parse`, for a file that a program wrote: there a number is no text."""
    config = parse(cls, data)
    _refuse_text_numbers(data, to_dict(config))
    return config


def _refuse_text_numbers(given: Any, parsed: Any, where: str = "") -> None:
    """Raise where text was read as a number."""
    if isinstance(given, str) and isinstance(parsed, (int, float)):
        raise ArcvqError(f"{where}: expected a number, got {_describe(given)}")
    if isinstance(given, Mapping) and isinstance(parsed, Mapping):
        for key, value in given.items():
            _refuse_text_numbers(value, parsed.get(key), _join_keys(where, key))
    elif isinstance(given, list) and isinstance(parsed, list):
        for index, (value, other) in enumerate(zip(given, parsed)):
            _refuse_text_numbers(value, other, f"{where}[{index}]")


def differences(there: Any, here: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value that differs between two nested mappings, e.g. `seed is 1 there and 2 here`."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):  # not a set: the order is the same in each process
            yield from differences(there.get(key), here.get(key), _join_keys(where, key))
    elif there != here:
        yield f"{where} is {there} there and {here} here"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; values of `over` win. A section of another `kind` replaces the whole section."""
    result = _copy_mapping(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and not _changes_kind(old, value):
            result[key] = merge(old, value)
        else:
            result[key] = _copy_mapping(value)
    return result


def _changes_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether `new` names a `kind` other than the one in `old`."""
    return "kind" in new and new["kind"] != old.get("kind")


def override(data: Mapping[str, Any], arguments: Iterable[str], cls: Any = None) -> dict[str, Any]:
    """Apply arguments like `--quantizer.arc.scale 20` or `--quantizer.arc=null` to a nested mapping.

    Values are parsed as YAML, except where `cls` has a text field: those keep the argument unchanged.
    """
    for keys, value in _parse_arguments(arguments):
        data = _with_setting(data, keys, value, cls)
    return _copy_mapping(data)


def _parse_arguments(arguments: Iterable[str]) -> list[tuple[list[str], str]]:
    """Split `--a.b 1 --c=2` into ([a, b], "1") and ([c], "2"); `kind` settings first, because they reset their section."""
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


def _with_setting(data: Mapping[str, Any], keys: list[str], text: str, cls: Any) -> dict[str, Any]:
    """A copy of the mapping with one setting changed. `cls` is the dataclass that the mapping fills, or None."""
    name, *below = keys
    old = data.get(name)
    field_type, optional = _field_type(cls, name, old)
    if below:
        section = _with_setting(old if isinstance(old, Mapping) else {}, below, text, field_type)
        if below == ["kind"] and not _same_kind(old, section["kind"], cls, name):
            return {**data, name: {"kind": section["kind"]}}
        return merge(data, {name: section})
    verbatim = _holds_text(field_type) and not (optional and text in ("null", "~", ""))
    return {**data, name: text if verbatim else _parse_yaml(text, ".".join(keys))}


def _same_kind(section: Any, kind: Any, cls: Any, name: str) -> bool:
    """Whether a section of a configuration is of this kind; a section without `kind` is of the default kind."""
    choice = _find_choice(_type_hint(cls, name))
    return isinstance(section, Mapping) and section.get("kind", choice.default if choice else None) == kind


def _type_hint(cls: Any, name: str) -> Any:
    """The type hint of a dataclass field; None if `cls` is no dataclass or has no such field."""
    return _type_hints(cls).get(name) if isinstance(cls, type) and dataclasses.is_dataclass(cls) else None


def _field_type(cls: Any, name: str, data: Any) -> tuple[Any, bool]:
    """The type that a field holds, and whether it may be None. For a choice, the `kind` in `data` decides."""
    if typing.get_origin(cls) is dict:
        return typing.get_args(cls)[1], False
    hint = _type_hint(cls, name)
    if hint is None:
        return None, False
    choice = _find_choice(hint)
    if choice:
        kind = data.get("kind", choice.default) if isinstance(data, Mapping) else choice.default
        return (choice.registry.config(kind) if kind in choice.registry else None), False
    return _without_none(hint), type(None) in typing.get_args(hint)


def _holds_text(hint: Any) -> bool:
    """Whether a field of this type holds text: `str` or a Literal of strings."""
    literal = typing.get_origin(hint) is typing.Literal
    return hint is str or (literal and all(isinstance(value, str) for value in typing.get_args(hint)))


class _Loader(yaml.SafeLoader):
    """A YAML loader for plain values that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.YAMLError(f"duplicate key {key!r} in line {key_node.start_mark.line + 1}")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ArcvqError(f"{path}: no such file") from None
    except OSError as error:
        raise ArcvqError(f"{path}: not readable: {error.strerror}") from None
    except RecursionError:
        raise ArcvqError(f"{path}: not readable as YAML: it is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArcvqError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ArcvqError(f"{path}: expected a mapping of keys to values, got {_describe(data)}")
    return data


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error message: ': did you mean ...?' with the closest names, else the list of all names."""
    names = list(names)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f": did you mean {' or '.join(close)}?"
    return f": expected one of {', '.join(sorted(names))}" if names else ""


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Check `value` against a field's type hint and convert it; `where` is the dotted key for errors."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    choice = _find_choice(hint)
    if choice:
        return _convert_choice(choice, value, where)
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
        raise ArcvqError(f"{where}: expected one of {', '.join(map(str, arguments))}, got {_describe(value)}")
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ArcvqError(f"{where}: expected a list, got {_describe(value)}")
        return origin(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ArcvqError(f"{where}: expected a mapping of names to settings, got {_describe(value)}")
        return {str(key): _convert(arguments[1], item, _join_keys(where, str(key))) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):  # built in Python: its values are not checked yet
            fields = dataclasses.fields(type(value))  # type: ignore[arg-type]
            data = {field.name: getattr(value, field.name) for field in fields if field.init}
            return parse(type(value), data, where)
        return parse(typing.cast(type, hint), value, where)
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise ArcvqError(f"{where}: expected true or false, got {_describe(value)}")
    if hint in (int, float):
        return _convert_number(hint, value, where)
    if hint is str:
        if isinstance(value, str):
            return value
        raise ArcvqError(f"{where}: expected text, got {_describe(value)}")
    raise TypeError(f"{where}: a configuration field cannot be of type {hint}")


def _convert_choice(choice: Choice, value: Any, where: str) -> Any:
    """Parse a mapping into the dataclass that its `kind` names."""
    if dataclasses.is_dataclass(value):  # built in Python
        choice.registry.kind_of(value)
        return _convert(type(value), value, where)
    if not isinstance(value, Mapping):
        raise ArcvqError(f"{where}: expected a mapping with a kind, got {_describe(value)}")
    try:
        config = choice.config(value)
    except ArcvqError as error:
        raise ArcvqError(f"{where}.kind: {error}") from None
    return parse(config, {key: item for key, item in value.items() if key != "kind"}, where)


def _convert_number(kind: type, value: Any, where: str) -> int | float:
    """Convert to a finite int or float; text like "3e-4" too, which YAML 1.1 does not read as a number."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ArcvqError(f"{where}: expected a number, got {_describe(value)}") from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArcvqError(f"{where}: expected a number, got {_describe(value)}")
    if not math.isfinite(value):
        raise ArcvqError(f"{where}: expected a finite number, got {value}")
    if kind is float:
        return float(value)
    whole = int(value)  # type: ignore[call-overload]
    if value != whole:
        raise ArcvqError(f"{where}: expected a whole number, got {value}")
    return whole


def _parse_yaml(text: str, key: str) -> Any:
    """The value of argument `--key`, parsed as YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ArcvqError(f"--{key}: the value {text!r} is not readable as YAML") from None


def _copy_mapping(value: Any) -> Any:
    """Copy nested mappings to dicts; other values are shared."""
    return {key: _copy_mapping(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _join_keys(where: str, name: str) -> str:
    """The dotted key `where.name`, or `name` at the top."""
    return f"{where}.{name}" if where else name


def _describe(value: Any) -> str:
    """A value and its type for an error message, cut to 60 characters."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
