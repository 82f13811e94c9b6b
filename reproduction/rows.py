"""Every result as rows of a CSV: one for each protocol; a run that diverged has one without numbers."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

from arcvq.storage import read_json

ABOUT = ("name", "system", "data", "seed", "epochs", "steps", "precision", "protocol", "images", "diverged")
AFTER = ("device", "date", "config")


def csv_text(results: Path) -> str:
    rows = [row for path in sorted(results.glob("*/*.json")) for row in _rows(read_json(path, "a result"))]
    metrics = sorted({name for row in rows for name in row} - {*ABOUT, *AFTER})
    text = io.StringIO()
    writer = csv.DictWriter(text, [*ABOUT, *metrics, *AFTER], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    config = document["config"]
    training = config["training"]
    sections = config | {"training": {k: v for k, v in training.items() if k != "seed"}}
    settings = _without_null({k: v for k, v in sections.items() if k != "name"})  # what only names a run is no setting
    about = {
        "name": document["name"],
        "system": config["system"],
        "data": document.get("data", config["data"]["name"]),
        "seed": document["seed"],
        "epochs": training.get("epochs"),
        "steps": document["training"].get("steps"),
        "precision": training.get("precision"),
        "diverged": document.get("diverged"),
        "device": document["training"].get("device"),
        "date": document["measured"]["date"],
        "config": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8],
    }
    protocols = document["protocols"]
    found = [about | {"protocol": p, "images": e["images"]} | e["metrics"] for p, e in protocols.items()]
    return found or [about]


def _without_null(value: Any) -> Any:
    """An option that came later than a result is null in newer ones: it makes no difference where it is not used."""
    if isinstance(value, dict):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    return value
