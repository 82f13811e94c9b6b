"""Reads pickles without running anything that they name.

Python's unpickler imports what a file names, and calls it. This one imports nothing. A few names stand for functions of our own, which its
caller gives; every other name becomes an `Inert`, and so does whatever is made by calling it. So a checkpoint full of callbacks and
configurations can be read, and one that names os.system, too: nothing happens.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

# Opcodes of a pickle: a checkpoint with optimizer states has some hundred thousand.
MAX_OPCODES = 20_000_000
# Keys that a dictionary may have. Others are never looked up, and hashing a tuple of nested tuples can take forever.
KEYS = (str, bytes, int, float, bool, type(None))

Rebuild = Callable[[Sequence[Any]], Any]


class DamagedPickle(Exception):
    """The bytes are no pickle, or one that no program writes."""


@dataclass(frozen=True, eq=False, slots=True)
class Inert:
    """Stands for an object of a class that is not loaded, or for what a call that is not made would return."""

    name: str


@dataclass(frozen=True)
class Names:
    """What a pickle may name: functions of our own by the name of those they replace, and how a persistent id is resolved."""

    rebuild: Mapping[str, Rebuild]
    persistent: Callable[[Any], Any]


def read_pickle(file: IO[bytes], names: Names) -> Any:
    """The object of the next pickle in the file: plain values, what `names` rebuilds, and `Inert` for all else.

    Dictionaries of any class are dicts; sets are inert. The file is left at the end of the pickle.
    """
    try:
        return _Machine(names).run(pickletools.genops(file))
    except DamagedPickle:
        raise
    except (ValueError, LookupError, TypeError, OverflowError, AttributeError, RecursionError) as error:
        raise DamagedPickle(" ".join(str(error).split())[:120] or type(error).__name__) from None


class _Machine:
    """The stack machine of pickle, in which a call only gives an `Inert`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, opcodes: Iterator[tuple[Any, Any, Any]]) -> Any:
        """Run the opcodes up to the end of the pickle, and return its object."""
        for count, (opcode, argument, _) in enumerate(opcodes):
            if count >= MAX_OPCODES:
                raise DamagedPickle(f"more than {MAX_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return self.stack.pop()
            self.step(opcode.name, argument)
        raise DamagedPickle("it has no end")

    def step(self, name: str, argument: Any) -> None:
        """Run one opcode."""
        stack = self.stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "MARK":
                self.marks.append(len(stack))
            case "POP":  # at a mark it removes the mark
                self.marks.pop() if self.marks and self.marks[-1] == len(stack) else stack.pop()
            case "POP_MARK":
                self.since_mark()
            case "DUP":
                stack.append(stack[-1])
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "EMPTY_LIST" | "EMPTY_DICT":
                stack.append([] if name == "EMPTY_LIST" else {})
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self.pop_many({"1": 1, "2": 2, "3": 3}.get(name[-1], 0))))
            case "TUPLE" | "LIST":
                stack.append((tuple if name == "TUPLE" else list)(self.since_mark()))
            case "APPEND" | "APPENDS":
                values = self.pop_many(1) if name == "APPEND" else self.since_mark()
                if type(stack[-1]) is list:
                    stack[-1].extend(values)
            case "SETITEM" | "SETITEMS" | "DICT":
                values = self.pop_many(2) if name == "SETITEM" else self.since_mark()
                if name == "DICT":
                    stack.append({})
                if type(stack[-1]) is dict:
                    stack[-1].update((_key(key), value) for key, value in zip(values[::2], values[1::2], strict=True))
            case "EMPTY_SET" | "FROZENSET" | "ADDITEMS":
                if name != "EMPTY_SET":
                    self.since_mark()
                if name != "ADDITEMS":
                    stack.append(Inert("set"))
            case _:
                self.step_object(name, argument)

    def step_object(self, name: str, argument: Any) -> None:
        """Run an opcode that names, calls or changes an object, or pushes its argument."""
        stack = self.stack
        match name:
            case "GLOBAL":
                stack.append(Inert(str(argument).replace(" ", ".")))
            case "STACK_GLOBAL":
                module, attribute = self.pop_many(2)
                stack.append(Inert(f"{_text(module)}.{_text(attribute)}"))
            case "REDUCE" | "NEWOBJ":
                function, arguments = self.pop_many(2)
                stack.append(self.call(function, arguments))
            case "NEWOBJ_EX":
                function, arguments, _ = self.pop_many(3)
                stack.append(self.call(function, arguments))
            case "OBJ":
                function, *rest = self.since_mark()
                stack.append(self.call(function, rest))
            case "INST":
                arguments = self.since_mark()
                stack.append(self.call(Inert(str(argument).replace(" ", ".")), arguments))
            case "BUILD":  # an object's attributes, which nobody reads
                stack.pop()
            case "PERSID" | "BINPERSID":
                stack.append(self.names.persistent(argument if name == "PERSID" else stack.pop()))
            case "EXT1" | "EXT2" | "EXT4" | "NEXT_BUFFER" | "READONLY_BUFFER":
                raise DamagedPickle(f"it has the opcode {name}, which no checkpoint needs")
            case _:  # numbers, text and bytes
                stack.append(argument)

    def call(self, function: Any, arguments: Any) -> Any:
        """What replaces a call: the result of a function of ours, or an inert object."""
        name = function.name if isinstance(function, Inert) else "a value"
        rebuild = self.names.rebuild.get(name)
        if rebuild is None or not isinstance(arguments, tuple | list):
            return Inert(name)
        return rebuild(arguments)

    def pop_many(self, number: int) -> list[Any]:
        """Pop this many values, in the order in which they were pushed."""
        if not 0 <= number <= len(self.stack):
            raise DamagedPickle("it pops more than it pushed")
        values = self.stack[len(self.stack) - number :]
        del self.stack[len(self.stack) - number :]
        return values

    def since_mark(self) -> list[Any]:
        """Pop the last mark and the values above it."""
        return self.pop_many(len(self.stack) - self.marks.pop())


def ordered_dict(arguments: Sequence[Any]) -> dict[Any, Any]:
    """What replaces collections.OrderedDict: a dict, of the pairs that it is called with, if any."""
    pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
    return {_key(key): value for key, value in pairs}


def _key(key: Any) -> Any:
    """A key as it is if that is safe, else an inert object, which nothing finds."""
    return key if isinstance(key, KEYS) else Inert("key")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "?"
