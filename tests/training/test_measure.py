"""A measured run as one JSON document."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from arcvq import ArcvqError
from arcvq.config import to_dict
from arcvq.metrics import EXACT, PAPER
from arcvq.systems import measure, read_run
from arcvq.tokenizers.saving import to_config
from arcvq.training import RunFolder

CHEAP = ("l1", "mse", "psnr", "ssim", "usage", "perplexity", "tokens_per_image", "bits_per_image")


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy that a measurement may write to."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def test_document_has_the_numbers_and_the_configuration(run: Path) -> None:
    measured = measure(run, ["exact", "paper"], metrics=CHEAP, limit=40)
    document = json.loads(json.dumps(measured.document, allow_nan=False))
    assert document.keys() == {
        "name",
        "system",
        "data",
        "seed",
        "protocols",
        "parameters",
        "config",
        "training",
        "measured",
    }
    assert (document["name"], document["system"]) == ("arcvq-vae", "arcvq-vae")
    assert (document["data"], document["seed"]) == ("sample", 1)
    assert document["config"] == json.loads(json.dumps(to_dict(read_run(RunFolder(run)))))
    assert document["training"] == json.loads((run / "training.json").read_text())
    assert document["parameters"] == sum(parameter.numel() for parameter in measured.tokenizer.parameters())
    assert document["measured"].keys() == {"date", "device", "versions"}
    for name, protocol in (("exact", EXACT), ("paper", PAPER)):
        section = document["protocols"][name]
        assert (section["protocol"], section["protocol_hash"]) == (name, protocol.hash)
        assert section["images"] == 40
        assert section["metrics"].keys() == set(CHEAP)
        assert section["missing"] == {}
        assert section["metrics"]["tokens_per_image"] == 49
        assert section["metrics"]["bits_per_image"] == 245
    assert document["protocols"]["exact"]["metrics"]["psnr"] != document["protocols"]["paper"]["metrics"]["psnr"]


def test_measurement_is_recorded_in_the_run(run: Path) -> None:
    measured = measure(run, ["exact"], metrics=CHEAP, limit=40, record=True)
    kept = json.loads((run / "evaluation-exact.json").read_text())
    assert kept == measured.document["protocols"]["exact"]
    assert not (run / "evaluation-paper.json").exists()
    measure(run, ["exact"], metrics=["psnr"], limit=3)  # without `record`, the file stays
    assert json.loads((run / "evaluation-exact.json").read_text()) == kept


def test_measurement_agrees_with_the_last_evaluation_of_the_training(run: Path) -> None:
    metrics = measure(run, metrics=CHEAP, limit=32).evaluations[0].metrics
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    for name in ("l1", "mse", "psnr", "usage", "perplexity"):
        assert metrics[name] == pytest.approx(last[name], rel=1e-6)


def test_metric_that_cannot_be_measured_is_missing_with_its_reason(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cache without the networks of LPIPS and FID.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    section = measure(run, metrics=["psnr", "lpips", "rfid"], limit=8).document["protocols"]["exact"]
    for name, value in section["metrics"].items():
        assert math.isfinite(value), name
    assert section["metrics"].keys() | section["missing"].keys() == {"psnr", "lpips", "rfid"}
    assert not section["metrics"].keys() & section["missing"].keys()
    assert "lpips" in section["missing"]  # 28 pixels are too few for its network
    assert all(isinstance(reason, str) and reason for reason in section["missing"].values())


def test_model_without_a_run_needs_a_data_set(run: Path) -> None:
    with pytest.raises(ArcvqError) as raised:
        measure(run / "model", metrics=CHEAP)
    assert str(raised.value).startswith(f"{run / 'model'}: ")
    assert "--data" in str(raised.value)
    of_model = measure(run / "model", metrics=CHEAP, data="sample", limit=16)
    assert of_model.evaluations[0].metrics == measure(run, metrics=CHEAP, limit=16).evaluations[0].metrics
    assert of_model.document["training"] is None
    assert of_model.document["seed"] is None
    assert of_model.document["config"] == to_config(of_model.tokenizer)
    assert not list((run / "model").glob("evaluation-*"))


def test_other_data_set_is_named_in_the_document(run: Path, tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.new("L", (40, 30), 60 * i).save(tmp_path / "images" / f"{i}.png")
    name = f"folder:{tmp_path / 'images'}"
    measured = measure(run, metrics=CHEAP, data=name)
    assert measured.document["data"] == name
    assert (measured.images.height, measured.images.width) == (28, 28)
    assert not (run / "evaluation-exact.json").exists()


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """Six grey images of which one has no header and one only half of its pixels."""
    folder = tmp_path / "damaged" / "test"
    for path in (folder, folder.parent / "train"):
        path.mkdir(parents=True)
        for i in range(6):
            Image.new("L", (28, 28), 40 * i).save(path / f"{i}.png")
    (folder / "1.png").write_text("no image")
    noise = torch.randint(0, 256, (28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    Image.fromarray(noise.numpy()).save(folder / "2.png")
    (folder / "2.png").write_bytes((folder / "2.png").read_bytes()[:300])
    return f"folder:{folder.parent}"


def test_unreadable_images_are_left_out_only_if_asked_to(run: Path, damaged: str, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"cannot read 2 images: .*1\.png .*2\.png"):
        measure(run, metrics=CHEAP, data=damaged)
    measured = measure(run, metrics=CHEAP, data=damaged, on_error="skip")
    assert [Path(name).name for name in measured.skipped] == ["1.png", "2.png"]
    assert measured.skipped[str(tmp_path / "damaged" / "test" / "1.png")] == "not an image"
    assert measured.document["skipped_images"] == 2
    assert measured.evaluations[0].images == 4
    for name in ("1.png", "2.png"):
        (tmp_path / "damaged" / "test" / name).unlink()
    whole = measure(run, metrics=CHEAP, data=damaged)
    assert "skipped_images" not in whole.document
    assert whole.evaluations[0].metrics == measured.evaluations[0].metrics
    assert whole.images.pixel_variance() == measured.images.pixel_variance()


def test_run_that_skipped_images_keeps_skipping_on_its_own_data(run: Path, damaged: str, tmp_path: Path) -> None:
    config = RunFolder(run).read_config()
    for on_error in ("stop", "skip"):
        data = {**config["data"], "name": damaged, "on_error": on_error, "limit": None}
        RunFolder(run).write_config({**config, "data": data})
        if on_error == "stop":
            with pytest.raises(ArcvqError, match="cannot read 2 images"):
                measure(run, metrics=CHEAP)
    assert measure(run, metrics=CHEAP, record=True).document["skipped_images"] == 2
    assert json.loads((run / "evaluation-exact.json").read_text())["skipped_images"] == 2
    with pytest.raises(ArcvqError, match="cannot read 2 images"):
        measure(run, metrics=CHEAP, on_error="stop")
    (tmp_path / "other").mkdir()
    for name in ("0.png", "1.png"):
        (tmp_path / "other" / name).write_bytes((tmp_path / "damaged" / "test" / "2.png").read_bytes())
    with pytest.raises(ArcvqError, match="cannot read"):
        measure(run, metrics=CHEAP, data=f"folder:{tmp_path / 'other'}")


def test_images_with_other_channels_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(2):
        Image.new("RGB", (28, 28), (60 * i, 0, 255)).save(tmp_path / "images" / f"{i}.png")
    with pytest.raises(ArcvqError, match="3 channels"):
        measure(run, data=f"folder:{tmp_path / 'images'}", metrics=CHEAP)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocols": ["precise"]}, "unknown protocol 'precise'"),
        ({"metrics": ["snr"]}, "unknown metric 'snr'"),
        ({"data": "imagenet"}, "unknown data set 'imagenet'"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_unknown_name_is_refused_with_the_known_ones(run: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        measure(run, **options)  # type: ignore[arg-type]
    assert str(raised.value).startswith(message)


def test_progress_is_reported(run: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    measure(run, ["exact", "paper"], metrics=["psnr"], limit=12, progress=lambda *now: reported.append(now))
    assert reported == [("exact and paper", 12, 12)]


def test_unfinished_run_is_refused(tmp_path: Path, trained_run: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(trained_run / "config.yaml", tmp_path / "run")
    with pytest.raises(ArcvqError, match="holds no model"):
        measure(tmp_path / "run")
