"""Systems: the named rows of the tables, each a dataclass that a YAML fills and that builds what it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from arcvq.config import nearest, parse
from arcvq.errors import ArcvqError
from arcvq.objectives import ReconstructionConfig
from arcvq.quantizers import QuantizerConfig, quantizer_class
from arcvq.systems.config import DataConfig, TrainingConfig
from arcvq.tokenizers import SmallTrunkConfig, Tokenizer, tokenizer_class


@dataclass(kw_only=True)
class System:
    """A tokenizer that can be trained. Subclasses say which quantizer it has, in one line what it is, and where it comes from."""

    summary: ClassVar[str]
    citation: ClassVar[str]
    quantizer_name: ClassVar[str]

    system: str
    name: str | None = None  # what tables call this configuration; the preset's name, or the system's
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: SmallTrunkConfig = field(default_factory=SmallTrunkConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    objective: ReconstructionConfig = field(default_factory=ReconstructionConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=500))

    @property
    def title(self) -> str:
        return self.name or self.system

    def build_tokenizer(self, channels: int, image_size: tuple[int, int], total_steps: int) -> Tokenizer:
        """A fresh, untrained tokenizer for such images; fills in what the quantizer wants to know of them and of the run's length."""
        if self.quantizer.channel_last:
            raise ArcvqError("quantizer.channel_last: a tokenizer's latents have their channels first; leave it out")
        down = self.tokenizer.downsampling
        known = {
            "total_steps": total_steps,
            "positions": (image_size[0] // down) * (image_size[1] // down),
            "elements": channels * down**2,  # behind one position
        }
        options = {f.name: getattr(self.quantizer, f.name) for f in dataclasses.fields(self.quantizer)}
        options |= {name: value for name, value in known.items() if name in options and options[name] is None}
        quantizer = quantizer_class(self.quantizer_name)(self.tokenizer.latent_dim, **options)
        cls = tokenizer_class(self.tokenizer.trunk)
        return cls(channels, self.tokenizer, quantizer, image_size=image_size, system=self.system)


SYSTEMS: dict[str, type[System]] = {}


def register(name: str) -> Callable[[type[System]], type[System]]:
    def add(cls: type[System]) -> type[System]:
        SYSTEMS[name] = cls
        return cls

    return add


def parse_system(data: Mapping[str, Any]) -> System:
    """`system` picks the dataclass, then one strict parse fills it."""
    name = data.get("system")
    if name is None:
        raise ArcvqError(f"missing key 'system': expected one of {', '.join(sorted(SYSTEMS))}")
    if not isinstance(name, str) or name not in SYSTEMS:
        raise ArcvqError(f"unknown system {name!r}{nearest(str(name), SYSTEMS)}")
    return parse(SYSTEMS[name], data)
