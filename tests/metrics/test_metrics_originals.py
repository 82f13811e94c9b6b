"""FID's statistics of the originals, cached on disk."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from arcvq.data import InMemoryImages
from arcvq.metrics import EXACT, PAPER, Protocol, evaluate, evaluate_under


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    use_small_network(monkeypatch, 1.0)
    return tmp_path / "fid"


def use_small_network(monkeypatch: pytest.MonkeyPatch, weight: float) -> list[int]:
    """Replace the Inception network by a small one; the returned list collects its batch sizes."""
    linear = nn.Linear(12, 5)
    nn.init.constant_(linear.weight, weight)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), linear)
    seen: list[int] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    monkeypatch.setattr(import_module("arcvq.metrics.paired"), "fid_network", lambda device, download: network)
    return seen


def toy_images(seed: int = 0) -> InMemoryImages:
    generator = torch.Generator().manual_seed(seed)
    return InMemoryImages("toy", torch.randint(20, 200, (8, 3, 16, 16), generator=generator).byte())


def rfid(images: InMemoryImages, protocol: Protocol = EXACT, **options: int) -> float:
    return evaluate(lambda x: (0.9 * x, None), images, protocol=protocol, metrics=["rfid"], **options).metrics["rfid"]  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", [EXACT, PAPER], ids=["exact", "paper"])
def test_cached_statistics_give_same_rfid(folder: Path, monkeypatch: pytest.MonkeyPatch, protocol: Protocol) -> None:
    seen = use_small_network(monkeypatch, 1.0)
    fresh = rfid(toy_images(), protocol, batch_size=3)
    assert sum(seen) == 16
    assert rfid(toy_images(), protocol, batch_size=3) == fresh
    assert sum(seen) == 24  # only the reconstructions
    assert len(list(folder.iterdir())) == 1


def test_every_choice_has_its_own_cache_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rfid(toy_images())
    rfid(toy_images(1))
    rfid(toy_images(), PAPER)
    rfid(toy_images(), replace(EXACT, fid_interpolation="torch"))
    rfid(toy_images(), batch_size=3)
    use_small_network(monkeypatch, 2.0)
    rfid(toy_images())
    assert len(list(folder.iterdir())) == 6


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_damaged_cache_file_is_rewritten(folder: Path, damage: object) -> None:
    fresh = rfid(toy_images())
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))  # type: ignore[operator]
    assert rfid(toy_images()) == fresh
    assert file.read_bytes() == whole


def test_missing_cache_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "file"))
    use_small_network(monkeypatch, 1.0)
    assert rfid(toy_images()) > 0
    monkeypatch.setenv("ARCVQ_CACHE", "n" * 300)  # checking this name raises, like a folder without permission
    assert rfid(toy_images()) > 0

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ARCVQ_CACHE")
    monkeypatch.setattr(Path, "home", no_home)
    assert rfid(toy_images()) > 0


def test_several_protocols_share_one_pass(folder: Path) -> None:
    calls: list[int] = []

    def reconstruct(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(len(x))
        return 0.9 * x, torch.zeros(len(x), 2, dtype=torch.int64)

    names, metrics = ["exact", "paper"], ["l1", "ssim", "rfid", "perplexity"]
    both = evaluate_under(names, reconstruct, toy_images(), metrics=metrics, batch_size=3)
    assert calls == [3, 3, 2]
    for name, found in zip(names, both):
        alone = evaluate(reconstruct, toy_images(), protocol=name, metrics=metrics, batch_size=3)
        assert (found.protocol, found.metrics, found.missing) == (name, alone.metrics, alone.missing)
