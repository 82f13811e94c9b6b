"""Two tasks without images: linear regression, and an adversarial pair whose second network joins at a given step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.data import Source, TensorSource
from arcvq.storage import write_tensors
from arcvq.tasks import StepOutput, Task, sum_of_terms


class Regression(Task):
    def __init__(self) -> None:
        super().__init__({"line": nn.Linear(3, 1)})

    def loss(self, name: str, network: nn.Module, batch: Any, shared: Any, phase: Hashable) -> StepOutput:
        return sum_of_terms({"squares": (network(batch["x"]) - batch["y"]).square().mean()})

    def evaluate(self, source: Source, folder: Path | None, step: int) -> dict[str, Any]:
        batch = source.fetch({"index": torch.arange(source.length)})
        with torch.no_grad():
            return {"error": float((self.networks["line"](batch["x"]) - batch["y"]).square().mean())}

    def save(self, folder: Path, notes: dict[str, Any]) -> None:
        write_tensors(folder / "line.safetensors", self.networks["line"].state_dict())


class AdversarialPair(Task):
    """A generator that imitates points; a discriminator that learns, and counts, from step `begins` on."""

    headline = ("distance",)
    selection = "distance"

    def __init__(self, begins: int = 4) -> None:
        super().__init__(
            {"generator": nn.Linear(3, 3), "discriminator": nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))}
        )
        self.begins = begins

    def phase(self, step: int) -> Hashable:
        return step >= self.begins

    def trained(self, phase: Hashable) -> dict[str, Sequence[str]]:
        return {"generator": (), "discriminator": ()} if phase else {"generator": ()}

    def loss(
        self, name: str, network: nn.Module, batch: Mapping[str, Tensor], shared: Mapping[str, Any], phase: Hashable
    ) -> StepOutput:
        if name == "generator":
            made = network(batch["x"])
            terms = {"distance": (made - batch["y"]).square().mean()}
            if phase:
                terms["fooling"] = -0.1 * self.networks["discriminator"](made).mean()
            return sum_of_terms(terms, shared={"made": made.detach()})
        real, made = network(batch["y"]), network(shared["made"])
        return sum_of_terms({"hinge": (1 - real).relu().mean() + (1 + made).relu().mean()})

    def evaluate(self, source: Source, folder: Path | None, step: int) -> dict[str, Any]:
        batch = source.fetch({"index": torch.arange(source.length)})
        with torch.no_grad():
            return {"distance": float((self.networks["generator"](batch["x"]) - batch["y"]).square().mean())}

    def save(self, folder: Path, notes: dict[str, Any]) -> None:
        write_tensors(folder / "generator.safetensors", self.networks["generator"].state_dict())


def points(width: int = 1, batch_size: int = 8, count: int = 20) -> TensorSource:
    """x (count, 3), and y (count, width), a linear function of it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    y = x @ torch.randn(3, width, generator=generator) + 0.3
    return TensorSource({"x": x, "y": y}, batch_size, name="points")
