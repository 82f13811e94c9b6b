"""Result files made up for the purpose."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PRINTED = {
    "mnist": {},
    "cifar10": {"vq-vae": {"psnr": 23.32, "rfid": 39.67}, "arcvq-vae": {"psnr": 24.78, "ssim": 0.8989}},
    "appendix": {"cifar10": {"arcvq-vae": {"psnr": 24.71}}},
    "table2": [{"method": "VQGAN", "tokens": "16²", "codes": 1024, "usage": 0.44, "rfid": 7.94}],
}


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the paper prints, cut short."""
    (tmp_path / "printed.json").write_text(json.dumps(PRINTED))
    monkeypatch.setattr("arcvq.tables.rows.PRINTED", tmp_path / "printed.json")
    return tmp_path / "printed.json"


@pytest.fixture
def folder(tmp_path: Path, printed: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def add(folder: Path) -> Callable[..., None]:
    """`add("vq-vae", 1, paper={"psnr": 24.0})` → results/cifar10/vq-vae-seed1.json; `looks`, PSNR by epoch, lie beside it."""

    def write(
        name: str,
        seed: int = 1,
        data: str = "cifar10",
        rate: float = 3e-4,
        missing: Any = None,
        looks: dict[float, float] | None = None,
        holdout: int | None = None,
        epochs: int = 500,
        precision: str = "fp32",
        at_a_time: int | None = None,
        diverged: str | None = None,
        **protocols: Any,
    ) -> None:
        document: dict[str, Any] = {
            "name": name,
            "seed": seed,
            "data": data,
            "protocols": {
                p: {"images": 10000, "metrics": metrics, "missing": missing or {}, "seconds": 30.0}
                for p, metrics in protocols.items()
            },
            "config": {"system": name, "name": name, "data": {"name": data, "batch_size": 1024, "root": f"/{seed}", "holdout": holdout},
                       "training": {"seed": seed, "learning_rate": rate, "precision": precision, "epochs": epochs,
                                    "evaluation_images": 2000}},
            "training": {"steps": 49 * epochs, "seconds": 0.18 * epochs, "device": "A GPU"},
            "measured": {"date": f"2026-01-0{seed}", "device": "A GPU"},
        }  # fmt: skip
        if at_a_time is not None:  # older results do not tell
            document["training"] |= {"at_a_time": at_a_time, "seconds": 0.4 * epochs}
        if diverged is not None:
            document["diverged"] = diverged
        (folder / data).mkdir(exist_ok=True)
        (folder / data / f"{name}-seed{seed}.json").write_text(json.dumps(document))
        if looks:
            lines = [{"kind": "eval", "epoch": epoch, "psnr": psnr, "usage": 0.5} for epoch, psnr in looks.items()]
            file = folder / data / f"{name}-seed{seed}.metrics.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return write
