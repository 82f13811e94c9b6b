"""From nothing to a report: two systems, one budget, one embedded data set."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcvq.report import make_report
from arcvq.systems import load_config, measure, train
from arcvq.terminal import print_comparison

SYSTEMS = ("vq-vae", "arcvq-vae")
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
    """Train, evaluate and compare. Finished runs in `out` are used as they are, unfinished ones go on."""
    began = time.perf_counter()
    rows, missing = {}, set()
    for name in SYSTEMS:
        train(load_config(f"sample/{name}", ["--training.steps", str(steps)]), out / name, quiet=quiet)
        (evaluation,) = measure(out / name, ["exact"], metrics=METRICS, record=True).evaluations
        rows[name] = evaluation.metrics
        missing |= {f"{metric}: {why}" for metric, why in evaluation.missing.items()}
    report = make_report(
        [out / name for name in SYSTEMS],
        out / "report",
        title="A plain codebook beside one with the ArcVQ prior",
        notes=[
            f"Both systems saw the same {steps} batches of 128 images of the embedded sample (Fashion-MNIST), from the same seed."
        ],
    )
    return Demo(rows, sorted(missing), report.page, time.perf_counter() - began)
