"""The reader of pickles: the same values as Python's, and nothing is run."""

import argparse
import collections
import datetime
import functools
import io
import os
import pickle
import pickletools
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcvq.tokenizers.foreign.pickles import DamagedPickle, Inert, Names, ordered_dict, read_pickle

NAMES = Names(rebuild={"collections.OrderedDict": ordered_dict}, persistent=lambda identifier: ("id", identifier))
SHARED = ["shared"]
PLAIN: list[Any] = [
    None,
    True,
    [False, 0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**70, -(2**70), 2**3000],
    [0.0, -1.5, float("inf"), 1e-300],
    ["", "text", "ü ∈ 𝔸", "x" * 300, "line\nbreak"],
    [b"", b"\x00\xff", b"y" * 300],
    [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[]], [[[()]]]],
    {"a": 1, 2: "b", None: [], 1.5: {}, b"k": {"inner": (1, [2])}},
    [SHARED, SHARED, {"again": SHARED}],
    list(range(3000)),
    {str(i): i for i in range(3000)},
]


def read(data: bytes) -> Any:
    return read_pickle(io.BytesIO(data), NAMES)


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
# Before protocol 3, bytes are a call.
CASES = [(value, protocol) for value in PLAIN for protocol in PROTOCOLS if protocol >= 3 or "b'" not in repr(value)]


@pytest.mark.parametrize(("value", "protocol"), CASES, ids=lambda value: str(value)[:20])
def test_plain_values_are_those_of_python(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert repr(read(data)) == repr(pickle.loads(data)) == repr(value)


def test_shared_objects_stay_shared_and_cycles_are_read() -> None:
    first, second = read(pickle.dumps([SHARED, SHARED]))
    assert first is second
    cycle: list[Any] = []
    cycle.append(cycle)
    again = read(pickle.dumps(cycle))
    assert again[0] is again


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ordered_dictionaries_are_dictionaries(protocol: int) -> None:
    value: Any = collections.OrderedDict(b=1, a=[2])
    value._metadata = {"version": 1}
    assert read(pickle.dumps(value, protocol)) == {"b": 1, "a": [2]}


class OfALibrary:
    def __init__(self) -> None:
        self.limit = 3

    def method(self) -> int:
        return self.limit


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        OfALibrary(),
        OfALibrary,
        OfALibrary().method,
        argparse.Namespace(rate=1.0, path=Path("x")),
        datetime.datetime(2026, 1, 1),
        functools.partial(int, base=2),
        collections.Counter("aab"),
        collections.defaultdict(list, a=[1]),
        {1, 2},
        frozenset({1}),
        np.float64(1.5),
        np.arange(3),
        np.dtype("float32"),
        complex(1, 2),
        ValueError("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_inert_and_what_is_beside_them_is_read(value: Any, protocol: int) -> None:
    found = read(pickle.dumps({"before": 1, "object": value, "after": [2]}, protocol))
    assert (found["before"], found["after"]) == (1, [2])
    assert isinstance(found["object"], Inert)


def test_every_opcode_of_pickle_is_known() -> None:
    """Those that only push their argument have one; a new opcode without one would push None."""
    source = Path(read_pickle.__code__.co_filename).read_text(encoding="utf-8")
    pushed = [code.name for code in pickletools.opcodes if f'"{code.name}"' not in source]
    assert all(code.arg is not None for code in pickletools.opcodes if code.name in pushed)
    assert len(pushed) == 20  # numbers, text and bytes


# ---- files that try to run something --------------------------------------------------------------------------------


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def attacks(marker: Path) -> dict[str, bytes]:
    """Pickles that create `marker` when Python's unpickler reads them."""
    touch = f"touch {marker}"
    create = f"open({str(marker)!r}, 'w').close()"

    class Reduced:
        def __init__(self, function: Any, *arguments: Any) -> None:
            self.call = (function, arguments)

        def __reduce__(self) -> Any:
            return self.call

    def stack_global(module: str, name: str) -> bytes:
        return b"\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93"

    start = b"\x80\x04"
    return {
        "os.system by REDUCE": pickle.dumps({"a": Reduced(os.system, touch)}),
        "os.system by GLOBAL": b"cos\nsystem\n(" + text(touch) + b"tR.",
        "os.system by INST": b"(" + text(touch) + b"ios\nsystem\n.",
        "os.system by OBJ": b"(cos\nsystem\n" + text(touch) + b"o.",
        "posix.system by STACK_GLOBAL": start + stack_global("posix", "system") + text(touch) + b"\x85R.",
        "builtins.eval": pickle.dumps([Reduced(eval, f"__import__('os').system({touch!r})")]),
        "builtins.exec of Python 2": b"c__builtin__\nexec\n(" + text(create) + b"tR.",
        "getattr of a module": start
        + stack_global("builtins", "getattr")
        + stack_global("builtins", "__import__")
        + text("os")
        + b"\x85R"
        + text("system")
        + b"\x86R"
        + text(touch)
        + b"\x85R.",
        "a dotted name": start + stack_global("os", "path.os.system") + text(touch) + b"\x85R.",
        "a call of NEWOBJ": start + stack_global("subprocess", "Popen") + text(touch) + b"\x85\x81.",
        "a call of NEWOBJ_EX": start
        + stack_global("subprocess", "Popen")
        + b"("
        + text(touch)
        + b"t}"
        + text("shell")
        + b"\x88s\x92.",
        "__setstate__ of BUILD": start
        + stack_global("tests_foreign_no_such_module", "Class")
        + b")\x81}"
        + text("__setstate__")
        + stack_global("os", "system")
        + b"sb"
        + text(touch)
        + b"b.",
        "append of a bound method": start + stack_global("os", "system") + text(touch) + b"a.",
        "a key that runs when hashed": pickle.dumps({"x": 1, 2: Reduced(os.system, touch)}, 2),
        "bytes of a numpy scalar": pickle.dumps(Reduced(np.save, str(marker), 1)),
        "a persistent id": start + stack_global("os", "system") + text(touch) + b"\x85RQ.",
    }


NAMED = tuple(attacks(Path("marker")))


@pytest.fixture(scope="module")
def events() -> Iterator[Callable[[], list[str]]]:
    """What the interpreter reports while the tests run: imports, calls of the system, files that are opened, code that is run."""
    seen: list[str] = []
    watching = [True]
    sys.addaudithook(lambda event, _: seen.append(event) if watching[0] else None)  # can never be removed
    yield lambda: seen
    watching[0] = False


@pytest.mark.parametrize("attack", NAMED)
def test_nothing_that_a_pickle_names_is_run(
    attack: str, tmp_path: Path, events: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = attacks(tmp_path / "marker")[attack]
    before = len(events())
    read(data)
    assert events()[before:] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attack", ["os.system by GLOBAL", "getattr of a module", "builtins.exec of Python 2"])
def test_same_pickles_do_run_in_python(attack: str, tmp_path: Path, events: Callable[[], list[str]]) -> None:
    """Else the tests above could not fail."""
    data = attacks(tmp_path / "marker")[attack]
    before = len(events())
    pickle.loads(data)
    assert (tmp_path / "marker").exists()
    assert {"os.system", "exec"} & set(events()[before:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"not a pickle",
        b"\x80\x04",
        b"(.",
        b"t.",
        b"0.",
        b"h\x05.",
        b"]e.",
        b"}(K\x01u.",
        b"R.",
        b"\x82\x01.",  # EXT1: a registry of this process
        b"\x97.",  # NEXT_BUFFER
        b"\x8d" + struct.pack("<Q", 2**40) + b"x.",  # text of a terabyte
        b"\x96" + struct.pack("<Q", 2**40) + b"x.",  # a bytearray of a terabyte
        b"\x8b" + struct.pack("<i", -5) + b".",
        b"L" + b"9" * 10_000 + b"L\n.",
        pickle.dumps(list(range(100)))[:-20],
    ],
    ids=range(18),
)
def test_damaged_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedPickle):
        read(data)


def test_large_memo_numbers_take_no_memory() -> None:
    assert read(b"K\x01r" + struct.pack("<I", 2**32 - 1) + b".") == 1


def test_keys_that_take_forever_to_hash_are_inert() -> None:
    """A tuple of itself twice, 60 times over: a hash of 2⁶⁰ steps."""
    nested = b"K\x01" + b"2\x86" * 60
    (key,) = read(b"}" + nested + b"K\x02s.")
    assert isinstance(key, Inert)
