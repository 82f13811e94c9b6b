"""Synthetic run folders: one with a collapsed codebook, one with a healthy one. No model is trained."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from arcvq.analysis import RunHistory

SNAPSHOT_STEPS = (0, 1, 4, 16, 40, 100, 200, 400)
TOKENS = 20_000
NEAR_DUPLICATES = {"near_duplicate_share": 0.01, "near_duplicate_share_distance": 0.02}


def write_run(
    folder: Path,
    *,
    system: str,
    codes: int = 96,
    dimension: int = 8,
    used: int = 9,
    bounded: bool = False,
    evaluation: dict[str, Any] | None = None,
) -> Path:
    """A run folder whose last snapshot uses exactly `used` of `codes` codes."""
    generator = torch.Generator().manual_seed(used)
    (folder / "codebooks").mkdir(parents=True)
    quantizer: dict[str, Any] = {"codebook_size": codes, "init": "uniform", "restart": None, "arc": None, "ball": None}
    if bounded:
        quantizer |= {"arc": {"scale": 10, "margin": 0.1, "top_k": 3}, "ball": {"alpha": 3.0e-4}}
    config = {
        "system": system,
        "data": {"name": "sample", "batch_size": 64},
        "autoencoder": {"kind": "small", "latent_dim": dimension},
        "quantizer": quantizer,
        "objective": {"reconstruction": "mse"},
        "training": {"steps": 400, "learning_rate": 3.0e-4, "seed": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    directions = torch.nn.functional.normalize(torch.randn(codes, dimension, generator=generator), dim=1)
    usages: dict[int, tuple[int, float]] = {}
    for step in SNAPSHOT_STEPS:
        progress = step / SNAPSHOT_STEPS[-1]
        in_use = round(used * math.sqrt(progress)) if step else max(used // 2, 1)
        in_use = max(in_use, 1)
        counts = torch.zeros(codes, dtype=torch.int64)
        weights = torch.arange(1, in_use + 1, dtype=torch.float64).pow(-0.6)
        shares = (weights / weights.sum() * TOKENS).long().clamp(min=1)
        places = torch.randperm(codes, generator=torch.Generator().manual_seed(7))[:in_use]
        counts[places] = shares
        if bounded:
            lengths = math.exp(3e-4 * step) * (1.0 - 0.35 * progress * torch.rand(codes, 1, generator=generator))
        else:
            # As in a plain codebook: the used codes grow, the others stay at their initial norm.
            lengths = torch.full((codes, 1), 0.01)
            lengths[places] = 0.01 + 3.0 * progress * (0.6 + 0.8 * torch.rand(in_use, 1, generator=generator))
        file = folder / "codebooks" / f"step-{step:08d}.safetensors"
        save_file({"codebook": (directions * lengths).contiguous(), "counts": counts}, file)
        shares_used = counts[counts > 0].double() / counts.sum()
        usages[step] = (in_use, float(torch.exp(-(shares_used * shares_used.log()).sum())))

    lines: list[dict[str, Any]] = []
    for step in range(401):
        noise = float(torch.randn((), generator=generator)) * 0.08
        reconstruction = (0.03 if bounded else 0.06) + 0.5 * math.exp(-step / 60) * (1 + noise) + 0.004 * abs(noise)
        line = {
            "kind": "train", "step": step, "epoch": step / 40, "reconstruction": reconstruction,
            "codebook": 0.1 * reconstruction, "commitment": 0.025 * reconstruction, "perplexity": 5.0,
            "images_per_second": 900.0,
        }  # fmt: skip
        if bounded:
            line |= {"arc": 4.0 * math.exp(-step / 200) * (1 + noise), "arc_weight": 1.0 - step / 400}
            line["ball_radius"] = math.exp(3e-4 * step)
        line["loss"] = sum(line.get(term, 0.0) for term in ("reconstruction", "codebook", "commitment", "arc"))
        if step:
            lines.append(line)
        if step in usages:
            in_use, perplexity = usages[step]
            lines.append({
                "kind": "eval", "step": step, "epoch": step / 40, "usage": in_use / codes, "perplexity": perplexity,
                "psnr": (21.0 if bounded else 18.0) + math.log(step + 1), "l1": (0.15 if bounded else 0.2) / (1 + math.log(step + 1)),
                "norm_quantiles": [0.01, 0.1, 0.5, 1.0, 2.0], "clipped_share": 0.4 if bounded else None,
            })  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "training.json").write_text("{}", encoding="utf-8")
    if evaluation is not None:
        (folder / "evaluation-exact.json").write_text(json.dumps(evaluation), encoding="utf-8")
    return folder


def evaluation(psnr: float, l1: float, usage: float, **missing: str) -> dict[str, Any]:
    """The content of evaluation-exact.json."""
    return {
        "metrics": {"psnr": psnr, "ssim": 0.71, "l1": l1, "usage": usage, "uniformity": -2.5, **NEAR_DUPLICATES},
        "missing": missing,
        "protocol": "exact",
        "protocol_hash": "abc123def456",
        "images": 512,
        "seconds": 3.2,
    }


@pytest.fixture(scope="session")
def write_run_folder() -> Callable[..., Path]:
    return write_run


@pytest.fixture(scope="session")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> RunHistory:
    folder = tmp_path_factory.mktemp("collapsed") / "vq-vae"
    content = evaluation(22.1, 0.051, 9 / 96, rfid="the Inception weights are not on this machine")
    return RunHistory.load(write_run(folder, system="vq-vae", used=9, evaluation=content))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> RunHistory:
    folder = tmp_path_factory.mktemp("healthy") / "arcvq-vae"
    content = evaluation(25.4, 0.034, 90 / 96, rfid="the Inception weights are not on this machine")
    return RunHistory.load(write_run(folder, system="arcvq-vae", used=90, bounded=True, evaluation=content))


@pytest.fixture(scope="session")
def pictures() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Originals, and reconstructions that are worse for the collapsed run."""
    rows = torch.arange(32).view(1, 1, 32, 1)
    columns = torch.arange(32).view(1, 1, 1, 32)
    phase = torch.arange(8).view(8, 1, 1, 1)
    channel = torch.arange(3).view(1, 3, 1, 1)
    wave = torch.sin((rows * (1 + channel) + columns * phase) / 9.0) * 100 + 128
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(wave.shape, generator=generator)
    originals = wave.to(torch.uint8)
    return originals, {
        "vq-vae": (wave + 30 * noise).clamp(0, 255).to(torch.uint8),
        "arcvq-vae": (wave + 8 * noise).clamp(0, 255).to(torch.uint8),
    }
