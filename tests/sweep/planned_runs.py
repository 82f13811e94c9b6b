"""Plans, and made-up results for them to go by."""

import json
from typing import Any

import torch

from arcvq.config import to_dict
from arcvq.sweep import Places, Plan, make_plan
from arcvq.systems import load_system, preset_names
from arcvq.tables import EXPERIMENTS
from arcvq.training.environment import device_name

CPU = torch.device("cpu")
WHOLE = {"psnr": 20.0, "lpips": 0.1, "rfid": 1.0}


def result(
    places: Places,
    key: str,
    seconds: float = 100.0,
    protocols: Any = ("exact", "paper"),
    metrics: Any = WHOLE,
    measured: tuple[str, str, float] | None = None,
    at_a_time: int = 1,
    model: Any = None,
    **how: Any,
) -> None:
    data, name = key.split("/")
    name, seed = name.split("-seed")
    device, date, took = measured or (device_name(CPU), "2026-01-01", 10.0)
    run = EXPERIMENTS[name.removesuffix("-bf16")]
    preset = f"{data}/{run.preset}"
    config = to_dict(load_system(preset, run.settings)) if preset in preset_names() else {"system": name, "data": {}}
    training = {**config.get("training", {"epochs": 500}), **how}
    config |= {"data": config["data"] | {"name": data, "batch_size": 1024}, "training": training, **(model or {})}
    document = {
        "name": name, "seed": int(seed), "config": config, "measured": {"date": date, "device": device},
        "protocols": {p: {"images": 10000, "metrics": metrics, "missing": {}, "seconds": took} for p in protocols},
        "training": {"steps": 1000, "seconds": seconds, "device": device_name(CPU), "at_a_time": at_a_time},
    }  # fmt: skip
    path = places.results / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def plan_of(table: str, places: Places, **options: Any) -> Plan:
    return make_plan(table, places, device=CPU, dry_runs=False, **options)
