"""All results as a CSV, with a row per result and protocol, also of priors (`generation`); a diverged run has one row without metrics."""

from __future__ import annotations

import csv
import io
from typing import Any

from reproduction.results import Result, Results

FIRST_COLUMNS = (
    "name",
    "system",
    "data",
    "seed",
    "epochs",
    "steps",
    "precision",
    "protocol",
    "images",
    "diverged",
    "psnr_held_out",
)
LAST_COLUMNS = ("device", "date", "config")


def csv_text(results: Results) -> str:
    """The content of runs.csv."""
    rows = [row for result in results.all for row in _rows(result)]
    metrics = sorted({name for row in rows for name in row} - {*FIRST_COLUMNS, *LAST_COLUMNS})
    text = io.StringIO()
    writer = csv.DictWriter(text, [*FIRST_COLUMNS, *metrics, *LAST_COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(result: Result) -> list[dict[str, Any]]:
    """The rows of one result, one per protocol."""
    document = result.document
    columns = {
        "name": document["name"],
        "system": document["config"]["system"],
        "data": result.data,
        "seed": result.seed,
        "epochs": result.epochs,
        "steps": document["training"].get("steps"),
        "precision": result.precision,
        "diverged": document.get("diverged"),
        "psnr_held_out": result.held_out_psnr,
        "device": result.device,
        "date": document["measured"]["date"],
        "config": result.config_hash,
    }
    measured = result.sections.items()
    return [
        columns | {"protocol": name, "images": each["images"]} | _named(each["metrics"]) for name, each in measured
    ] or [columns]


def _named(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics by the names of their columns: `precision` is the training's."""
    return {"sample_precision" if name == "precision" else name: value for name, value in metrics.items()}
