"""What each command prints and writes."""

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
from arcvq.systems import SYSTEMS, load_config, parse_config, preset_names

Arcvq = Callable[..., Any]
COMMANDS = (
    "demo",
    "train",
    "evaluate",
    "report",
    "sample",
    "reconstruct",
    "shard",
    "encode",
    "decode",
    "import",
    "export",
    "reduce",
    "compress",
    "decompress",
    "systems",
    "presets",
)


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of the trained run that a test may write to."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_shows_example(command: str, arcvq: Arcvq) -> None:
    result = arcvq(command, "--help")
    assert result.code == 0
    assert f"example:\n  arcvq {command}" in result.output
    assert result.errors == ""


def test_help_lists_every_command(arcvq: Arcvq) -> None:
    result = arcvq("--help")
    assert result.code == 0
    listed = [line.split()[0] for line in result.output.splitlines() if line.startswith("    ") and line[4] != " "]
    assert listed == list(COMMANDS)
    assert "Begin with: arcvq demo" in result.output


def test_version_equals_package_version(arcvq: Arcvq) -> None:
    from arcvq import __version__

    assert arcvq("--version").output == f"arcvq {__version__}\n"


def test_systems_lists_every_system(arcvq: Arcvq) -> None:
    result = arcvq("systems")
    assert (result.code, result.errors) == (0, "")
    listed = json.loads(arcvq("systems", "--json").output)
    assert listed.keys() == SYSTEMS.keys()
    for name, row in listed.items():
        assert name in result.output
        assert row["summary"] in result.output
        assert row["citation"] in result.output


def test_presets_lists_all_or_prints_one(arcvq: Arcvq) -> None:
    result = arcvq("presets")
    assert (result.code, result.errors) == (0, "")
    assert [line.split()[0] for line in result.output.splitlines()] == list(preset_names())
    assert list(json.loads(arcvq("presets", "--json").output)) == list(preset_names())
    shown = arcvq("presets", "cifar10/arcvq-vae").output
    assert shown.startswith("# ArcVQ-VAE on CIFAR-10")
    assert yaml.safe_load(shown) == json.loads(arcvq("presets", "cifar10/arcvq-vae", "--json").output)


def test_train_writes_run_and_names_next_command(
    arcvq: Arcvq, tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    result = arcvq("train", "sample/vq-vae", *tiny_settings(), "--training.seed", "7", "--out", tmp_path / "run")
    assert result.code == 0
    assert f"{tmp_path / 'run'}: trained" in result.output
    assert f"arcvq evaluate {tmp_path / 'run'}\n" in result.output
    # Without a terminal there is no progress bar, but a line for each evaluation.
    assert [line.split(":")[0] for line in result.errors.splitlines()] == [f"run step {i}" for i in (0, 1, 2, 3, 6)]
    system = parse_config(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert (system.system, system.training.seed, system.training.steps) == ("vq-vae", 7, 6)
    assert (tmp_path / "run" / "training.json").is_file()


def test_train_accepts_yaml_file_and_quiet(
    arcvq: Arcvq, tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    (tmp_path / "mine.yaml").write_text("system: vq-vae-cosine\n")
    result = arcvq("train", tmp_path / "mine.yaml", "--quiet", *tiny_settings(), "--out", tmp_path / "run")
    assert (result.code, result.errors) == (0, "")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["name"] == "mine"


def test_train_leaves_finished_run_unchanged(
    arcvq: Arcvq, trained_run: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    result = arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--out", trained_run)
    assert result.code == 0
    assert f"{trained_run}: already trained" in result.output
    printed = arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--out", trained_run, "--json")
    assert json.loads(printed.output) == {"run": str(trained_run), "was_finished": True}
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before


def test_dry_run_prints_cost_and_writes_nothing(
    arcvq: Arcvq, tmp_path: Path, tiny_settings: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--dry-run", "--out", tmp_path / "run")
    assert (result.code, result.errors) == (0, "")
    for heading in ("parameters ", "tokens ", "memory ", "time "):
        assert f"\n{heading}" in result.output
    config, _ = result.output.split("\nparameters ")
    assert parse_config(yaml.safe_load(config)).training.steps == 6
    plan = json.loads(arcvq("train", "sample/arcvq-vae", *tiny_settings(), "--dry-run", "--json").output)
    assert (plan["steps"], plan["facts"]["tokens"][:3]) == (6, "49 ")
    assert parse_config(plan["config"]).title == "arcvq-vae"
    assert list(tmp_path.iterdir()) == []


def test_evaluate_prints_table_and_writes_result(arcvq: Arcvq, run: Path, tmp_path: Path) -> None:
    result = arcvq(
        "evaluate", run, "--protocol", "exact", "paper", "--limit", "20", "--metrics", "psnr", "usage", "lpips",
        "--out", tmp_path / "result.json",
    )  # fmt: skip
    assert (result.code, result.errors) == (0, "")
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["protocols"].keys() == {"exact", "paper"}
    for protocol, section in document["protocols"].items():
        assert f"{protocol} ({section['protocol_hash']})" in result.output
        assert f"{section['metrics']['psnr']:.2f}" in result.output
        assert section["metrics"].keys() == {"psnr", "usage"}
    assert "missing lpips: " in result.output


def test_evaluate_prints_json(arcvq: Arcvq, run: Path) -> None:
    result = arcvq("evaluate", run, "--limit", "8", "--metrics", "psnr", "--json")
    assert json.loads(result.output)["protocols"]["exact"]["metrics"].keys() == {"psnr"}


def test_evaluate_accepts_model_with_data(arcvq: Arcvq, run: Path) -> None:
    result = arcvq("evaluate", run / "model", "--data", "sample", "--limit", "8", "--metrics", "psnr")
    assert (result.code, result.errors) == (0, "")
    assert "on sample, 8 images" in result.output


def test_reduced_tokenizer_encodes_with_fewer_codes(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    smaller = tmp_path / "smaller"
    result = arcvq("reduce", "tiny", "--codes", "16", "--seed", "3", "--out", smaller)
    assert (result.code, result.errors) == (0, "")
    assert result.output == f"{smaller}: 16 codes instead of 256\n"
    assert "from 256 codes of tiny to 16, seed 3" in (smaller / "README.md").read_text()
    assert arcvq("encode", smaller, images, "--out", tmp_path / "tokens.npz").code == 0
    tokens = np.load(tmp_path / "tokens.npz")["tokens"]
    assert tokens.shape == (4, 7, 7)
    assert tokens.max() < 16
    again = arcvq("reduce", "tiny", "--codes", "16", "--seed", "3", "--out", tmp_path / "again", "--json")
    assert json.loads(again.output) == {"folder": str(tmp_path / "again"), "codes": 16, "codes_before": 256}
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (smaller / "model.safetensors").read_bytes()


@pytest.mark.parametrize("source", ["run", "model", "tiny"])
def test_decoded_tokens_equal_reconstructions(
    source: str, arcvq: Arcvq, run: Path, images: Path, tmp_path: Path
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


def test_embedded_tokenizer_reconstructs_images(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    arcvq("reconstruct", "tiny", images, "--out", tmp_path / "out")
    for path in images.iterdir():
        original, copy = (np.asarray(Image.open(file)).astype(float) for file in (path, tmp_path / "out" / path.name))
        assert np.square(original - copy).mean() < 0.2 * original.var()


def test_encode_is_deterministic(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    for name in ("one.npz", "two.npz"):
        arcvq("encode", "tiny", images, "--out", tmp_path / name)
    one, two = (np.load(tmp_path / name) for name in ("one.npz", "two.npz"))
    assert np.array_equal(one["tokens"], two["tokens"])
    assert list(one["names"]) == [f"image-{i}.png" for i in range(4)]


def test_inference_options_are_accepted(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    how = ("--precision", "bf16", "--batch-size", "3", "--channels-last", "--device", "cpu")
    tokens = tmp_path / "tokens.npz"
    assert arcvq("encode", "tiny", images, "--out", tokens, *how).code == 0
    assert arcvq("decode", "tiny", tokens, "--out", tmp_path / "decoded", *how).code == 0
    assert arcvq("reconstruct", "tiny", images, "--out", tmp_path / "rebuilt", *how).code == 0
    for name in (f"image-{i}.png" for i in range(4)):
        assert (tmp_path / "decoded" / name).read_bytes() == (tmp_path / "rebuilt" / name).read_bytes()


def test_token_commands_print_json(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
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
def test_on_error_skip_lists_unreadable_images(
    command: str, out: str, arcvq: Arcvq, images: Path, tmp_path: Path
) -> None:
    for name in ("image-1.png", "image-3.png"):
        (images / name).write_text("no image")
    options = ("--out", tmp_path / out, "--batch-size", 1, "--on-error", "skip")
    result = arcvq(command, "tiny", images, *options)
    assert result.code == 0
    assert result.errors.splitlines()[1:] == ["  image-1.png: not an image", "  image-3.png: not an image"]
    printed = json.loads(arcvq(command, "tiny", images, *options, "--json").output)
    assert printed["skipped"] == {f"image-{i}.png": "not an image" for i in (1, 3)}


def test_demo_trains_and_writes_report(arcvq: Arcvq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["--training.evaluations=1", "--training.evaluation_images=50", "--data.batch_size=16"]
    monkeypatch.setattr("arcvq.demo.load_config", lambda preset, steps: load_config(preset, [*steps, *settings]))
    result = arcvq("demo", "--out", tmp_path / "demo", "--steps", "6", "--json")
    assert (result.code, result.errors) == (0, "")
    summary = json.loads(result.output)
    assert summary["metrics"].keys() == {"vq-vae", "arcvq-vae"}
    assert all("psnr" in metrics and "usage" in metrics for metrics in summary["metrics"].values())
    assert summary["report"] == str(tmp_path / "demo" / "report" / "index.html")
    page = Path(summary["report"]).read_text()
    assert "<html" in page
    assert "arcvq-vae" in page
    assert "Generated images" in page
    assert "sneaker" in page
    for name in [*summary["metrics"], "gpt"]:
        record = json.loads((tmp_path / "demo" / name / "training.json").read_text())
        assert record["steps"] == 6


def test_report_prints_path_of_page(arcvq: Arcvq, trained_run: Path, tmp_path: Path) -> None:
    result = arcvq("report", trained_run, "--out", tmp_path / "page")
    assert (result.code, result.output) == (0, f"report: {tmp_path / 'page' / 'index.html'}\n")
    assert (tmp_path / "page" / "index.html").is_file()


def test_demo_prints_table_and_path_of_report(capfd: pytest.CaptureFixture[str]) -> None:
    rows = {"vq-vae": {"psnr": 20.126, "usage": 0.0625}, "arcvq-vae": {"psnr": 21.5, "usage": 1.0}}
    Demo(rows=rows, missing=["lpips: no network"], page=Path("out/index.html"), seconds=12.3).print()
    printed = capfd.readouterr().out
    for cell in ("PSNR", "20.13", "21.50", "6.2%", "100.0%", "vq-vae", "arcvq-vae"):
        assert cell in printed
    assert "missing lpips: no network\n" in printed
    assert printed.endswith("report: out/index.html   (12 s)\n")
