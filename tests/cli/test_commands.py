"""Every command does what it says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from arcvq.demo import Demo
from arcvq.systems import SYSTEMS, load_system, parse_system, preset_names

Run = Callable[..., Any]
COMMANDS = (
    "demo",
    "train",
    "evaluate",
    "report",
    "reconstruct",
    "encode",
    "decode",
    "systems",
    "presets",
)


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy that an evaluation may write to."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_an_example(command: str, arcvq: Run) -> None:
    said = arcvq(command, "--help")
    assert said.code == 0
    assert f"example:\n  arcvq {command}" in said.output
    assert said.errors == ""


def test_the_help_names_every_command_and_where_to_begin(arcvq: Run) -> None:
    said = arcvq("--help")
    assert said.code == 0
    listed = [line.split()[0] for line in said.output.splitlines() if line.startswith("    ") and line[4] != " "]
    assert listed == list(COMMANDS)
    assert "Begin with: arcvq demo" in said.output


def test_the_version_is_the_packages(arcvq: Run) -> None:
    from arcvq import __version__

    assert arcvq("--version").output == f"arcvq {__version__}\n"


def test_systems_lists_every_system(arcvq: Run) -> None:
    said = arcvq("systems")
    assert (said.code, said.errors) == (0, "")
    listed = json.loads(arcvq("systems", "--json").output)
    assert listed.keys() == SYSTEMS.keys()
    for name, row in listed.items():
        assert name in said.output
        assert row["summary"] in said.output
        assert row["citation"] in said.output


def test_presets_lists_every_preset_and_shows_one(arcvq: Run) -> None:
    said = arcvq("presets")
    assert (said.code, said.errors) == (0, "")
    assert [line.split()[0] for line in said.output.splitlines()] == preset_names()
    assert list(json.loads(arcvq("presets", "--json").output)) == preset_names()
    shown = arcvq("presets", "cifar10/arcvq-vae").output
    assert shown.startswith("# ArcVQ-VAE on CIFAR-10")
    assert yaml.safe_load(shown) == json.loads(arcvq("presets", "cifar10/arcvq-vae", "--json").output)


def test_train_makes_a_run_and_says_what_to_do_next(
    arcvq: Run, tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    said = arcvq("train", "sample/vq-vae", *tiny_settings(), "--training.seed", "7", "--out", tmp_path / "run")
    assert said.code == 0
    assert said.output == f"{tmp_path / 'run'}: trained; measure it with: arcvq evaluate {tmp_path / 'run'}\n"
    # A line for each look, where there is no terminal to draw a bar on.
    assert [line.split(":")[0] for line in said.errors.splitlines()] == [f"run step {i}" for i in (0, 1, 2, 3, 6)]
    system = parse_system(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert (system.system, system.training.seed, system.training.steps) == ("vq-vae", 7, 6)
    assert (tmp_path / "run" / "training.json").is_file()


def test_train_takes_a_yaml_of_ones_own_and_is_quiet_when_asked(
    arcvq: Run, tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    (tmp_path / "mine.yaml").write_text("system: vq-vae-cosine\n")
    said = arcvq("train", tmp_path / "mine.yaml", "--quiet", *tiny_settings(), "--out", tmp_path / "run")
    assert (said.code, said.errors) == (0, "")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["name"] == "mine"


def test_a_finished_training_is_not_trained_again(
    arcvq: Run, trained_run: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    said = arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--out", trained_run)
    assert said.code == 0
    assert f"{trained_run}: already trained" in said.output
    printed = arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--out", trained_run, "--json")
    assert json.loads(printed.output) == {"run": str(trained_run), "was_finished": True}
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before


def test_a_dry_run_prints_what_a_training_would_take_and_writes_nothing(
    arcvq: Run, tmp_path: Path, tiny_settings: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--dry-run", "--out", tmp_path / "run")
    assert (said.code, said.errors) == (0, "")
    for heading in ("parameters ", "tokens ", "memory ", "time "):
        assert f"\n{heading}" in said.output
    config, _ = said.output.split("\nparameters ")
    assert parse_system(yaml.safe_load(config)).training.steps == 6
    plan = json.loads(arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--dry-run", "--json").output)
    assert (plan["steps"], plan["tokens_per_image"]) == (6, 49)
    assert parse_system(plan["config"]).title == "arcvq-vae"
    assert list(tmp_path.iterdir()) == []


def test_evaluate_prints_a_table_and_writes_the_document(arcvq: Run, run: Path, tmp_path: Path) -> None:
    said = arcvq(
        "evaluate", run, "--protocol", "exact", "paper", "--limit", "20", "--metrics", "psnr", "usage", "lpips",
        "--out", tmp_path / "result.json",
    )  # fmt: skip
    assert (said.code, said.errors) == (0, "")
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["protocols"].keys() == {"exact", "paper"}
    for protocol, section in document["protocols"].items():
        assert f"{protocol} ({section['protocol_hash']})" in said.output
        assert f"{section['metrics']['psnr']:.2f}" in said.output
        assert section["metrics"].keys() == {"psnr", "usage"}
    assert "missing lpips: " in said.output


def test_evaluate_prints_json_when_asked_for(arcvq: Run, run: Path) -> None:
    said = arcvq("evaluate", run, "--limit", "8", "--metrics", "psnr", "--json")
    assert json.loads(said.output)["protocols"]["exact"]["metrics"].keys() == {"psnr"}


def test_evaluate_takes_a_model_when_told_on_what(arcvq: Run, run: Path) -> None:
    said = arcvq("evaluate", run / "model", "--data", "sample", "--limit", "8", "--metrics", "psnr")
    assert (said.code, said.errors) == (0, "")
    assert "on sample, 8 images" in said.output


@pytest.mark.parametrize("source", ["run", "model", "tiny"])
def test_decoded_tokens_are_the_reconstructions_byte_for_byte(
    source: str, arcvq: Run, run: Path, images: Path, tmp_path: Path
) -> None:
    model = {"run": run, "model": run / "model", "tiny": "tiny"}[source]
    encoded = arcvq("encode", model, images, "--out", tmp_path / "tokens.npz")
    assert (encoded.code, encoded.errors) == (0, "")
    assert encoded.output == f"{tmp_path / 'tokens.npz'}: 4 images as 7×7 tokens each\n"
    decoded = arcvq("decode", model, tmp_path / "tokens.npz", "--out", tmp_path / "decoded")
    rebuilt = arcvq("reconstruct", model, images, "--out", tmp_path / "rebuilt")
    assert (decoded.code, decoded.errors, rebuilt.code, rebuilt.errors) == (0, "", 0, "")
    names = [f"image-{i}.png" for i in range(4)]
    assert decoded.output.splitlines() == [str(tmp_path / "decoded" / name) for name in names]
    assert sorted(path.name for path in (tmp_path / "decoded").iterdir()) == names
    for name in names:
        assert (tmp_path / "decoded" / name).read_bytes() == (tmp_path / "rebuilt" / name).read_bytes()


def test_the_embedded_tokenizer_gives_back_something_like_the_image(arcvq: Run, images: Path, tmp_path: Path) -> None:
    arcvq("reconstruct", "tiny", images, "--out", tmp_path / "out")
    for path in images.iterdir():
        original, copy = (np.asarray(Image.open(file)).astype(float) for file in (path, tmp_path / "out" / path.name))
        assert np.square(original - copy).mean() < 0.2 * original.var()


def test_encoding_twice_gives_the_same_tokens(arcvq: Run, images: Path, tmp_path: Path) -> None:
    for name in ("one.npz", "two.npz"):
        arcvq("encode", "tiny", images, "--out", tmp_path / name)
    one, two = (np.load(tmp_path / name) for name in ("one.npz", "two.npz"))
    assert np.array_equal(one["tokens"], two["tokens"])
    assert list(one["names"]) == [f"image-{i}.png" for i in range(4)]


def test_the_commands_take_a_precision_a_batch_size_and_a_layout(arcvq: Run, images: Path, tmp_path: Path) -> None:
    how = ("--precision", "bf16", "--batch-size", "3", "--channels-last", "--device", "cpu")
    tokens = tmp_path / "tokens.npz"
    assert arcvq("encode", "tiny", images, "--out", tokens, *how).code == 0
    assert arcvq("decode", "tiny", tokens, "--out", tmp_path / "decoded", *how).code == 0
    assert arcvq("reconstruct", "tiny", images, "--out", tmp_path / "rebuilt", *how).code == 0
    for name in (f"image-{i}.png" for i in range(4)):
        assert (tmp_path / "decoded" / name).read_bytes() == (tmp_path / "rebuilt" / name).read_bytes()


def test_json_is_printed_when_asked_for(arcvq: Run, images: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npz"
    encoded = json.loads(arcvq("encode", "tiny", images / "image-0.png", "--out", tokens, "--json").output)
    assert encoded == {"file": str(tokens), "images": 1, "grid": [7, 7], "skipped": {}}
    decoded = json.loads(arcvq("decode", "tiny", tokens, "--out", tmp_path / "out", "--json").output)
    assert decoded == {"files": [str(tmp_path / "out" / "image-0.png")]}
    rebuilt = json.loads(
        arcvq("reconstruct", "tiny", images / "image-0.png", "--out", tmp_path / "out", "--json").output
    )
    assert rebuilt == {**decoded, "skipped": {}}


@pytest.mark.parametrize(("command", "out"), [("encode", "tokens.npz"), ("reconstruct", "out")])
def test_images_that_cannot_be_read_are_left_out_and_listed(
    command: str, out: str, arcvq: Run, images: Path, tmp_path: Path
) -> None:
    for name in ("image-1.png", "image-3.png"):
        (images / name).write_text("no image")
    options = ("--out", tmp_path / out, "--batch-size", 1, "--on-error", "skip")
    said = arcvq(command, "tiny", images, *options)
    assert said.code == 0
    assert said.errors.splitlines()[1:] == ["  image-1.png: not an image", "  image-3.png: not an image"]
    printed = json.loads(arcvq(command, "tiny", images, *options, "--json").output)
    assert printed["skipped"] == {f"image-{i}.png": "not an image" for i in (1, 3)}


def test_the_demo_trains_compares_and_writes_a_report(
    arcvq: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seldom = ["--training.evaluations=1", "--training.evaluation_images=50", "--data.batch_size=16"]
    monkeypatch.setattr("arcvq.demo.load_system", lambda preset, settings: load_system(preset, [*settings, *seldom]))
    said = arcvq("demo", "--out", tmp_path / "demo", "--steps", "6", "--json")
    assert (said.code, said.errors) == (0, "")
    result = json.loads(said.output)
    assert result["metrics"].keys() == {"vq-vae", "arcvq-vae"}
    assert all("psnr" in metrics and "usage" in metrics for metrics in result["metrics"].values())
    assert result["report"] == str(tmp_path / "demo" / "report" / "index.html")
    page = Path(result["report"]).read_text()
    assert "<html" in page
    assert "arcvq-vae" in page
    for name in result["metrics"]:
        record = json.loads((tmp_path / "demo" / name / "training.json").read_text())
        assert record["steps"] == 6


def test_report_of_a_run_says_where_the_page_is(arcvq: Run, trained_run: Path, tmp_path: Path) -> None:
    said = arcvq("report", trained_run, "--out", tmp_path / "page")
    assert (said.code, said.output) == (0, f"report: {tmp_path / 'page' / 'index.html'}\n")
    assert (tmp_path / "page" / "index.html").is_file()


def test_the_demo_ends_with_a_table_and_where_the_report_is(capfd: pytest.CaptureFixture[str]) -> None:
    rows = {"vq-vae": {"psnr": 20.126, "usage": 0.0625}, "arcvq-vae": {"psnr": 21.5, "usage": 1.0}}
    Demo(rows=rows, missing=["lpips: no network"], page=Path("out/index.html"), seconds=12.3).print()
    printed = capfd.readouterr().out
    for cell in ("PSNR", "20.13", "21.50", "6.2%", "100.0%", "vq-vae", "arcvq-vae"):
        assert cell in printed
    assert "missing lpips: no network\n" in printed
    assert printed.endswith("report: out/index.html   (12 s)\n")
