"""Modules by kind: what a configuration's `kind` may be, and how its module is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from arcvq.config import did_you_mean
from arcvq.errors import ArcvqError

Built = TypeVar("Built")


class Registry(Generic[Built]):
    """Kind → class. A class has a dataclass `Config` of its own, and is built from one: `cls(..., config=config)`."""

    def __init__(self, what: str, kinds: Mapping[str, type[Built]]) -> None:
        self.what, self._kinds = what, dict(kinds)

    def __getitem__(self, kind: str) -> type[Built]:
        if kind not in self:
            raise ArcvqError(f"unknown {self.what} {kind!r}{did_you_mean(str(kind), self._kinds)}")
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, str) and kind in self._kinds

    def __len__(self) -> int:
        return len(self._kinds)

    def register(self, kind: str, cls: type[Built]) -> None:
        """Add a class of your own. Its name and its `Config` must be new."""
        if kind in self:
            raise ArcvqError(f"there is a {self.what} {kind!r} already: choose another name")
        if not dataclasses.is_dataclass(getattr(cls, "Config", None)):
            raise ArcvqError(f"{cls.__name__} needs a dataclass Config: the settings that it is built from")
        for other, known in self._kinds.items():
            if self._config(known) is self._config(cls):
                raise ArcvqError(
                    f"{cls.__name__} shares its Config with the {self.what} {other!r}: give it a Config of its own, "
                    "by which a configuration finds its class"
                )
        self._kinds[kind] = cls

    def config(self, kind: str) -> type:
        """The dataclass that holds the settings of this kind."""
        return self._config(self[kind])

    def kind_of(self, config: Any) -> str:
        """The kind whose settings these are."""
        for kind, cls in self._kinds.items():
            if self._config(cls) is type(config):
                return kind
        raise ArcvqError(f"{type(config).__name__} belongs to no registered {self.what}: call register first")

    def build(self, config: Any, *arguments: Any, **options: Any) -> Built:
        cls: Any = self[self.kind_of(config)]
        built: Built = cls(*arguments, config=config, **options)
        return built

    def check_class(self, module: Any) -> None:
        """Fail if a module's Config builds another class than its own."""
        cls = self[self.kind_of(module.config)]
        if type(module) is not cls:
            raise ArcvqError(
                f"{type(module).__name__} would be loaded as {cls.__name__}: give it a Config of its own and register it"
            )

    @staticmethod
    def _config(cls: Any) -> type:
        config: type = cls.Config
        return config
