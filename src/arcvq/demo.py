"""The demo: trains two systems on the embedded sample, measures them, makes images with a prior, and writes a report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from arcvq.data import to_uint8
from arcvq.priors import Generator
from arcvq.priors.files import image_grid
from arcvq.report import make_report
from arcvq.systems import load_config, measure, train
from arcvq.terminal import print_comparison

SYSTEMS = ("vq-vae", "arcvq-vae")
# The prior, and the tokenizer that it is trained on.
PRIOR, TOKENIZER = "gpt", "arcvq-vae"
GENERATED_ROWS = 6
# Without LPIPS and FID, whose networks take longer than the two trainings.
METRICS = ("l1", "psnr", "ssim", "usage", "perplexity", "tokens_per_image", "bits_per_image", "coverage", "geometry")


@dataclass
class Demo:
    """What the demo measured, and where its report is."""

    rows: dict[str, dict[str, float]]
    missing: list[str]
    page: Path
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Metrics, path of the report and duration."""
        return {"metrics": self.rows, "missing": self.missing, "report": str(self.page), "seconds": self.seconds}

    def print(self) -> None:
        """Print the comparison as a table, and the path of the report."""
        print_comparison(self.rows, "the embedded sample, 2,000 test images, protocol exact", self.missing)
        print(f"report: {self.page}   ({self.seconds:.0f} s)")


def run_demo(out: Path, *, steps: int = 400, quiet: bool = False) -> Demo:
    """Train, evaluate and compare two systems, and train a prior on the tokens of one.

    Finished runs in `out` are reused, unfinished ones continue.
    """
    began = time.perf_counter()
    rows, missing = {}, set()
    for name in SYSTEMS:
        train(load_config(f"sample/{name}", ["--training.steps", str(steps)]), out / name, quiet=quiet)
        (evaluation,) = measure(out / name, ["exact"], metrics=METRICS, record=True).evaluations
        rows[name] = evaluation.metrics
        missing |= {f"{metric}: {why}" for metric, why in evaluation.missing.items()}
    settings = ["--tokenizer", str(out / TOKENIZER), "--training.steps", str(steps)]
    train(load_config(f"sample/{PRIOR}", settings), out / PRIOR, quiet=quiet)
    report = make_report(
        [out / name for name in SYSTEMS],
        out / "report",
        title="A plain codebook and one with the ArcVQ prior",
        notes=[
            f"Both systems were trained on the same {steps} batches of 128 images of the embedded sample (Fashion-MNIST)."
        ],
        generated=_generated_images(out / PRIOR, steps),
    )
    return Demo(rows, sorted(missing), report.page, time.perf_counter() - began)


def _generated_images(run: Path, steps: int) -> tuple[Tensor, str]:
    """A picture of generated images, a column for each class, and its caption."""
    generator = Generator.from_pretrained(run)
    names = generator.class_names or []
    images = to_uint8(generator(GENERATED_ROWS * len(names), seed=0))
    caption = (
        f"Images made by a transformer that was trained for {steps} steps on the tokens of {TOKENIZER}. "
        f"One column for each class: {', '.join(names)}."
    )
    return image_grid(images, columns=len(names)), caption
