"""What a training step takes when it has the device to itself: results/steps.json, as `arcvq bench --suite steps` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arcvq.errors import ArcvqError
from arcvq.storage import read_json
from arcvq.tables.results import table
from arcvq.tables.shapes import Shape, misfit

SHAPE: Shape = {
    "device": "text",
    "date": "text",
    "rows": [{"preset": "text", "precision": "text", "way": "text", "milliseconds": "a number"}],
}
# What the others are held against.
PLAIN = "vq-vae"


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds by preset and precision, in the fastest way that was timed."""

    device: str
    date: str
    milliseconds: dict[tuple[str, str], float]

    def seconds(self, preset: str, precision: str, steps: float) -> float | None:
        found = self.milliseconds.get((preset, precision))
        return None if found is None else found * steps / 1000


def read_step_times(folder: Path) -> StepTimes | None:
    """None where nobody has timed them."""
    path = folder / "steps.json"
    if not path.is_file():
        return None
    document = read_json(path, "a folder of results")
    if wrong := misfit(document, SHAPE):
        raise ArcvqError(f"{path}: not what arcvq bench --suite steps writes: {wrong}")
    fastest: dict[tuple[str, str], float] = {}
    for row in document["rows"]:
        key = row["preset"], row["precision"]
        fastest[key] = min(row["milliseconds"], fastest.get(key, row["milliseconds"]))
    return StepTimes(document["device"], document["date"], fastest)


def steps_page(times: StepTimes | None) -> list[str]:
    """A row per preset, beside the plain quantizer's on the same data."""
    if times is None:
        return ["Not measured yet."]
    rows = []
    for (preset, precision), own in times.milliseconds.items():
        plain = times.milliseconds.get((f"{preset.partition('/')[0]}/{PLAIN}", precision))
        rows.append([preset, precision, f"{own:.2f}", "–" if plain is None else f"{own / plain:.2f} ×"])
    about = f"{times.device}, {times.date}."
    return [*table(["preset", "precision", "ms a step", f"beside {PLAIN}"], rows, left=2), "", about]
