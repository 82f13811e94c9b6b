"""A tokenizer in each precision: what is compared with what, and what cannot be had is said to be missing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import ArcvqError, Tokenizer
from arcvq.bench import run_tokens
from arcvq.cli import main
from arcvq.data import load_images, to_unit

CPU = torch.device("cpu")
LIMIT = 24


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return run_tokens("tiny", "sample", CPU, limit=LIMIT, batch_size=16, seconds=0.0, channels_last=True)


def test_every_precision_has_a_row_in_every_way(document: dict[str, Any]) -> None:
    names = [
        f"{precision} {way}" for way in ("plain", "channels last") for precision in ("fp32", "tf32", "fp16", "bf16")
    ]
    assert [row["name"] for row in document["rows"]] == names
    assert (document["model"], document["data"], document["images"], document["batch_size"]) == (
        "tiny",
        "sample",
        24,
        16,
    )
    assert document["device"].endswith("CPU")
    assert json.loads(json.dumps(document)) == document


def test_tf32_is_missing_on_a_cpu(document: dict[str, Any]) -> None:
    missing = [row for row in document["rows"] if row["precision"] == "tf32"]
    assert [row["missing"] for row in missing] == ["needs an NVIDIA GPU"] * 2
    assert not any("agreement" in row for row in missing)


def test_fp32_agrees_with_itself_and_the_others_nearly(document: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in document["rows"] if "missing" not in row}
    assert rows["fp32 plain"]["agreement"] == 1
    assert rows["fp32 plain"]["psnr_difference"] == 0
    for row in rows.values():
        assert row["agreement"] > 0.9
        assert row["psnr_difference"] == pytest.approx(row["psnr"] - rows["fp32 plain"]["psnr"])
        assert abs(row["psnr_difference"]) < 0.2
        assert min(row["encode_images_per_second"], row["decode_images_per_second"]) > 0
        assert min(row["encode_mebibytes"], row["decode_mebibytes"]) > 0


def test_agreement_is_the_share_of_equal_tokens(document: dict[str, Any]) -> None:
    images = to_unit(load_images("sample", split="test", limit=LIMIT).gather(torch.arange(LIMIT)))
    tokenizer = Tokenizer.from_pretrained("tiny")
    same = tokenizer.encode(images) == tokenizer.encode(images, precision="bf16")
    row = next(row for row in document["rows"] if row["name"] == "bf16 plain")
    assert row["agreement"] == pytest.approx(float(same.double().mean()), abs=2e-3)


def test_images_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    config = {**Tokenizer.from_pretrained("tiny").to_config(), "channels": 3}
    Tokenizer.from_config(config).save_pretrained(tmp_path / "colour")
    with pytest.raises(ArcvqError, match="has 1 channels but the tokenizer takes 3"):
        run_tokens(str(tmp_path / "colour"), "sample", CPU, limit=2)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tokens.json"
    options = ["--limit", "4", "--seconds", "0", "--device", "cpu", "--out", str(out)]
    assert main(["bench", "--suite", "tokens", "--model", "tiny", "--data", "sample", *options]) == 0
    said = capsys.readouterr().out
    assert "tiny on sample, 4 images, 4 at a time" in said
    assert "missing: needs an NVIDIA GPU" in said
    assert [row["precision"] for row in json.loads(out.read_text())["rows"]] == ["fp32", "tf32", "fp16", "bf16"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--suite tokens needs a tokenizer and images: --model RUN --data NAME"),
        (["--model", "tiny"], "--suite tokens needs a tokenizer and images: --model RUN --data NAME"),
        (["--model", "tiny", "--data", "sample", "--plot", "x.png"], "--suite tokens has no --plot"),
        (["--model", "tiny", "--data", "smaple"], "unknown data set 'smaple'"),
    ],
)
def test_a_wrong_call_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "tokens", "--device", "cpu", *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
