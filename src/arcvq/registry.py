"""Registries of classes by kind: a configuration's `kind` names the class that is built from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from arcvq.config import did_you_mean
from arcvq.errors import ArcvqError

Built = TypeVar("Built")

# Ends the error about an unknown kind.
NOT_REGISTERED = " (one of your own: register it, or name its file with --import)"


class Registry(Generic[Built]):
    """A map from kinds to classes. Each class has its own dataclass `Config` and is built by `cls(..., config=config)`."""

    def __init__(self, what: str, kinds: Mapping[str, type[Built]]) -> None:
        self.what, self._kinds = what, dict(kinds)

    def __getitem__(self, kind: str) -> type[Built]:
        if kind not in self:
            raise ArcvqError(f"unknown {self.what} {kind!r}{did_you_mean(str(kind), self._kinds)}{NOT_REGISTERED}")
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, str) and kind in self._kinds

    def __len__(self) -> int:
        return len(self._kinds)

    def register(self, kind: str, cls: type[Built]) -> None:
        """Add a class. Its kind and its `Config` must not be registered yet."""
        if kind in self:
            raise ArcvqError(f"{self.what} {kind!r} is already registered: choose another name")
        if not dataclasses.is_dataclass(getattr(cls, "Config", None)):
            raise ArcvqError(f"{cls.__name__} needs a dataclass Config with the settings that it is built from")
        for other, known in self._kinds.items():
            if self._config_of(known) is self._config_of(cls):
                raise ArcvqError(
                    f"{cls.__name__} shares its Config with the {self.what} {other!r}: give it its own Config, "
                    "which decides what class a configuration builds"
                )
        self._kinds[kind] = cls

    def config(self, kind: str) -> type:
        """The dataclass with the settings of this kind."""
        return self._config_of(self[kind])

    def kind_of(self, config: Any) -> str:
        """The kind of the class whose `Config` this is an instance of."""
        for kind, cls in self._kinds.items():
            if self._config_of(cls) is type(config):
                return kind
        raise ArcvqError(f"{type(config).__name__} belongs to no registered {self.what}: call register first")

    def build(self, config: Any, *arguments: Any, **options: Any) -> Built:
        """Build the class that `config` belongs to."""
        cls: Any = self[self.kind_of(config)]
        built: Built = cls(*arguments, config=config, **options)
        return built

    def check_class(self, module: Any) -> None:
        """Raise if a module's config builds another class, so that a saved module would load as that one."""
        cls = self[self.kind_of(module.config)]
        if type(module) is not cls:
            raise ArcvqError(
                f"{type(module).__name__} would be loaded as {cls.__name__}: give it its own Config and register it"
            )

    @staticmethod
    def _config_of(cls: Any) -> type:
        """The `Config` dataclass of a class."""
        config: type = cls.Config
        return config
