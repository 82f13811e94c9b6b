"""Whether a JSON document has the shape that its readers count on, and what is wrong if not."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

KINDS: dict[str, tuple[type, ...]] = {
    "a whole number": (int,),
    "a number": (int, float),
    "text": (str,),
    "null": (type(None),),
    "an object": (dict,),
    "a list": (list,),
}
# The kinds a value may be of, as in "a number or null"; the shapes of an object's keys, where `key?` need not be there and `*` is
# any other key; or, in a list, the shape of each item.
Shape = str | dict[str, Any] | list[Any]


def misfit(value: Any, shape: Shape) -> str | None:
    """The first thing that is wrong, in words; None where nothing is."""
    return next(_misfits(value, shape, ""), None)


def _misfits(value: Any, shape: Shape, where: str) -> Iterator[str]:
    kinds = shape if isinstance(shape, str) else "an object" if isinstance(shape, dict) else "a list"
    if not _is(value, kinds):
        yield f"{where or 'it'} is not {kinds}"
    elif isinstance(shape, dict):
        yield from _in_object(value, shape, f"{where}." if where else "")
    elif isinstance(shape, list):
        for i, item in enumerate(value):
            yield from _misfits(item, shape[0], f"{where}[{i}]")


def _is(value: Any, kinds: str) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > sys.float_info.max):
        return False
    return any(isinstance(value, KINDS[kind]) for kind in kinds.split(" or "))


def _in_object(value: Mapping[str, Any], shape: Mapping[str, Any], where: str) -> Iterator[str]:
    shapes = {key.removesuffix("?"): own for key, own in shape.items() if key != "*"}
    for key, own in shapes.items():
        if key in value:
            yield from _misfits(value[key], own, f"{where}{key}")
        elif key in shape:
            yield f"{where}{key} is missing"
    for key in value if "*" in shape else ():
        if key not in shapes:
            yield from _misfits(value[key], shape["*"], f"{where}{key}")
