"""Every result as rows of a CSV: one for each protocol; a run that diverged has one without numbers."""

from __future__ import annotations

import csv
import io
from typing import Any

from reproduction.results import Result, Results

ABOUT = (
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
AFTER = ("device", "date", "config")


def csv_text(results: Results) -> str:
    rows = [row for result in results.all for row in _rows(result)]
    metrics = sorted({name for row in rows for name in row} - {*ABOUT, *AFTER})
    text = io.StringIO()
    writer = csv.DictWriter(text, [*ABOUT, *metrics, *AFTER], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(result: Result) -> list[dict[str, Any]]:
    document = result.document
    about = {
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
    measured = document["protocols"].items()
    return [about | {"protocol": name, "images": each["images"]} | each["metrics"] for name, each in measured] or [
        about
    ]
