"""From nothing to a report: two systems, one budget, one embedded data set."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arcvq.analysis import RunHistory, write_report
from arcvq.data import to_uint8, to_unit
from arcvq.systems import Measured, load_config, measure, train
from arcvq.terminal import print_comparison

SYSTEMS = ("vq-vae", "arcvq-vae")
SHOWN = 10
# Not LPIPS and FID: their networks alone would take longer than the two trainings.
METRICS = ("l1", "psnr", "ssim", "usage", "perplexity", "tokens_per_image", "bits_per_image", "coverage", "geometry")


@dataclass
class Demo:
    rows: dict[str, dict[str, float]]
    missing: list[str]
    page: Path
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {"metrics": self.rows, "missing": self.missing, "report": str(self.page), "seconds": self.seconds}

    def print(self) -> None:
        print_comparison(self.rows, "the embedded sample, 2,000 test images, protocol exact", self.missing)
        print(f"report: {self.page}   ({self.seconds:.0f} s)")


def run_demo(out: Path, *, steps: int = 400, quiet: bool = False) -> Demo:
    """Train, evaluate and compare; runs that are already there go on or are taken as they are."""
    began = time.perf_counter()
    measured: dict[str, Measured] = {}
    for name in SYSTEMS:
        train(load_config(f"sample/{name}", ["--training.steps", str(steps)]), out / name, quiet=quiet)
        measured[name] = measure(out / name, ["exact"], metrics=METRICS, record=True)
    images = next(iter(measured.values())).images
    originals = images.gather(torch.linspace(0, len(images) - 1, SHOWN).long()).cpu()
    page = write_report(
        [RunHistory.load(out / name) for name in SYSTEMS],
        out / "report",
        originals=originals,
        reconstructions={
            name: to_uint8(m.tokenizer.reconstruct(to_unit(originals).to(m.tokenizer.device))).cpu()
            for name, m in measured.items()
        },
        title="Why a codebook lives or dies",
        notes=[
            f"Both systems saw the same {steps} batches of 128 images of the embedded sample (Fashion-MNIST), from the same seed."
        ],
    )
    return Demo(
        rows={name: m.evaluations[0].metrics for name, m in measured.items()},
        missing=sorted(
            {f"{metric}: {why}" for m in measured.values() for metric, why in m.evaluations[0].missing.items()}
        ),
        page=page,
        seconds=time.perf_counter() - began,
    )
