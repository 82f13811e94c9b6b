"""Golden loss curves: the first steps of every system with a preset for the sample, in golden/losses.json.

When a change is meant to alter them, record them anew from the project's root and say so in the commit:

    python tests/training/golden_curves.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from run_records import SAMPLE_SYSTEMS

from arcvq.systems import load_config, train

GOLDEN = Path(__file__).parent / "golden" / "losses.json"
SETTINGS: dict[str, Any] = {
    "data.limit": 120,  # an epoch of four batches, the last a short one
    "data.batch_size": 32,
    "autoencoder.width": 16,
    "autoencoder.residual_width": 8,
    "autoencoder.latent_dim": 8,
    "quantizer.codebook_size": 32,
    "training.steps": 8,
    "training.learning_rate": 0.003,
    "training.log_every": 1,
    "training.evaluations": 1,
    "training.evaluation_images": 16,
    "training.checkpoints": 1,
}


def loss_curve(name: str, changes: dict[str, Any], folder: Path) -> list[float]:
    """The logged loss of every step."""
    settings = {**SETTINGS, **changes}
    if name in ("vae", "hyperspherical-vae"):  # no codebook to size
        del settings["quantizer.codebook_size"]
    arguments = [f"--{key}={value}" for key, value in settings.items()]
    train(load_config(f"sample/{name}", arguments), folder, quiet=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def record() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        curves = {name: loss_curve(name, {}, Path(folder) / name) for name in SAMPLE_SYSTEMS}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({"torch": torch.__version__, "losses": curves}, indent=2) + "\n")
    print(f"{GOLDEN}: {', '.join(curves)}")


if __name__ == "__main__":
    record()
