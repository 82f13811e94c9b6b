"""Studies of large images and of generation: their lists, tiny runs of them, and their tables."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from arcvq.data import write_png
from arcvq.errors import ArcvqError
from arcvq.storage import read_json
from arcvq.systems import PriorRunConfig, TokenizerConfig
from reproduction import generation, large
from reproduction.__main__ import main
from reproduction.documents import measured_line, result_sections
from reproduction.results import GENERATION, Results
from reproduction.rows import csv_text
from reproduction.runs import ROOT, RUNS_FILE, Measuring, Run, select_runs
from reproduction.tables import bits_of, printed_rows

LIST: dict[str, Any] = read_json(RUNS_FILE, "the list of runs")
IN_FOLDERS = [key for key, table in LIST["tables"].items() if "folder" in table]
# Settings that make the presets of photographs small enough for a test.
SMALL = [
    "--autoencoder.width=8",
    "--autoencoder.groups=4",
    "--autoencoder.multipliers=[1, 2, 2]",
    "--data.image_size=32",
]
SMALL += ["--autoencoder.attention=[4]", "--adversarial.discriminator.width=8", "--adversarial.discriminator.layers=1"]
SMALL += ["--adversarial.discriminator.groups=4", "--quantizer.codebook_size=64", "--data.batch_size=4"]
SMALL += ["--data.holdout_every=3", "--training.steps=2", "--training.evaluations=1", "--training.checkpoints=1"]
SMALL += ["--training.precision=fp32", "--training.device=cpu"]
PRIOR = ["--prior.width=16", "--prior.layers=1", "--prior.heads=2", "--data.limit=48", "--data.batch_size=20"]
PRIOR += ["--training.steps=2", "--training.evaluations=1", "--training.evaluation_images=16", "--training.device=cpu"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "photographs"
    generator = torch.Generator().manual_seed(0)
    for index in range(12):
        coarse = torch.rand(1, 3, 4, 4, generator=generator)
        pixels = nn.functional.interpolate(coarse, size=(36, 40), mode="bilinear")[0]
        write_png(folder / f"{index:02}.png", (pixels * 255).to(torch.uint8))
    return folder


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch, lpips_weights: Path) -> None:
    """Small networks in place of those of LPIPS and FID."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten())
    for module in ("paired", "generation_features"):
        monkeypatch.setattr(f"arcvq.metrics.{module}.fid_network", lambda device, download: network)
    monkeypatch.setattr("arcvq.metrics.fid.INPUT_SIZE", 16)


def test_every_run_on_a_folder_loads() -> None:
    assert {"table2", "table3", "table5", "faces", "table10"} <= set(IN_FOLDERS)
    for key in IN_FOLDERS:
        for run in select_runs(key, seeds=[1], folder="/images"):
            config = run.config(Path("runs"))
            assert (config.name, config.data.name) == (run.name, "folder:/images")
            assert isinstance(config, PriorRunConfig if run.samples else TokenizerConfig)


def test_printed_rows_and_lists_name_the_same_runs() -> None:
    for key in ("table2", "table3", "table10", "table13"):
        assert {row["run"] for row in printed_rows(key) if "run" in row} == set(LIST["tables"][key]["runs"])
    assert {row["run"] for row in printed_rows("table5")} == set(LIST["tables"]["faces"]["runs"])
    priors = {
        f"{prior}-{name}"
        for prior in LIST["tables"]["priors"]["labels"]
        for name in LIST["tables"]["priors"]["columns"]
    }
    assert priors == set(LIST["tables"]["priors"]["runs"])


def test_every_system_of_the_rates_has_three_at_the_same_effort() -> None:
    runs = select_runs("photos-128-rates")
    rates: dict[str, list[float]] = {}
    for run in runs:
        config = run.config(Path("runs"))
        assert isinstance(config, TokenizerConfig)
        assert (config.training.steps, config.data.holdout, run.abroad) == (500, 512, False)
        assert config.adversarial is None
        rates.setdefault(run.preset, []).append(config.training.learning_rate)
    assert list(rates) == [LIST["runs"][name]["preset"] for name in LIST["tables"]["photos-128"]["runs"]]
    assert all(each == [1e-4, 2e-4, 4e-4] for each in rates.values())


def test_trials_of_the_discriminator_have_an_evaluation_before_it_joins() -> None:
    for run in select_runs("photos-128-discriminator"):
        config = run.config(Path("runs"))
        assert isinstance(config, TokenizerConfig)
        assert config.adversarial is not None
        assert (config.training.steps, config.training.evaluations, config.adversarial.start) == (500, 2, 0.5)


def test_table_of_the_discriminator_shows_both_evaluations() -> None:
    rows = large.discriminators_table(LIST, Results(ROOT / "results"))
    (row,) = (row for row in rows if "`arcvq-vqgan`" in row)
    log = (ROOT / "results/photos-128/joining-arcvq-vqgan-lr1e-4-seed1.metrics.jsonl").read_text().splitlines()
    psnr = {line["step"]: f"{line['psnr']:.2f}" for line in map(json.loads, log)}
    assert [cell.strip() for cell in row.strip("|").split("|")][2] == f"{psnr[250]} → {psnr[500]}"


@pytest.mark.parametrize("key", ["photos-128", "photos-128-others", "photos"])
def test_bits_of_a_study_are_those_of_the_tokenizers(key: str) -> None:
    for run in select_runs(key, seeds=[1]):
        config = run.config(Path("runs"))
        assert isinstance(config, TokenizerConfig)
        side = config.data.image_size
        assert side is not None
        with torch.device("meta"):
            tokenizer = config.build_tokenizer(3, (side, side), 100)
        bits = tokenizer.tokens_per_image(side, side) * math.log2(tokenizer.quantizer.config.codebook_size)
        assert large.bits_per_image(LIST, run.data, run.name) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("chosen", "fact"),
    [
        ({"table": "table2"}, "--folder"),
        ({"table": "aim", "settings": ["--tokenizer=tiny"]}, "set by the list"),
    ],
)
def test_wrong_selection_raises(chosen: dict[str, Any], fact: str) -> None:
    with pytest.raises(ArcvqError, match=fact):
        select_runs(**chosen)


def test_wrong_foreign_set_is_refused_before_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "photos", "--foreign", str(tmp_path), "--out", str(tmp_path / "runs")]) == 2
    assert "expected folder:DIR" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("small_networks")
def test_study_of_photographs_is_trained_measured_and_shown(
    tmp_path: Path, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    words = ["run", "photos-128-others", "--seeds", "1", "--only", "vqgan-ema", "simvq", "--folder", str(photographs)]
    words += ["--foreign", f"folder:{photographs}", "--out", str(tmp_path / "runs"), "--results", str(results), *SMALL]
    assert main(words) == 0
    text = (results / "photos-128/simvq-seed1.json").read_text()
    document = json.loads(text)
    exact, abroad = document["protocols"]["exact"], document["foreign"]["photographs"]["exact"]
    assert {"psnr", "lpips", "rfid", "kid", "kid_std", "usage"} <= exact["metrics"].keys()
    assert (document["data"], exact["images"], abroad["images"]) == ("photos-128", 4, 12)
    assert document["config"]["data"]["name"] == "folder:photographs"
    assert str(tmp_path) not in text
    assert str(photographs) not in text

    assert main(["tables", "--results", str(results)]) == 0
    page = (results / "RESULTS.md").read_text()
    psnr = exact["metrics"]["psnr"]
    assert f"| SimVQ | 2,560 | 1 | {psnr:.2f} |" in page
    assert "rFID, photographs ↓" in page
    assert "Images: 4 of the test images and 12 of photographs." in page
    rows = list(csv.DictReader(io.StringIO((results / "runs.csv").read_text())))
    assert [row["protocol"] for row in rows] == ["exact", "exact, photographs"] * 2
    capsys.readouterr()
    assert main(words) == 0
    assert "2 of 2 runs had a result" in capsys.readouterr().out


@pytest.mark.usefixtures("small_networks")
def test_codebook_is_reduced_after_its_run_is_trained(tmp_path: Path, photographs: Path) -> None:
    words = ["run", "table10", "--seeds", "1", "--only", "vqgan-lc-32-codes", "--folder", str(photographs)]
    words += ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), *SMALL]
    assert main(words) == 0
    assert (tmp_path / "runs/faces/vqgan-lc-seed1/training.json").is_file()
    document = read_json(tmp_path / "results/faces/vqgan-lc-32-codes-seed1.json", "a result")
    metrics = document["protocols"]["exact"]["metrics"]
    assert document["reduced"] == 32
    assert metrics["bits_per_image"] == metrics["tokens_per_image"] * 5
    (line,) = [line for line in large.reduction_table(Results(tmp_path / "results")) if line.startswith("| 32 |")]
    assert f"| 1 | {metrics['rfid']:.2f} (79.20) |" in line
    assert main(words) == 0  # the result is found again


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a tiny prior over a run that is trained before it."""
    folder = tmp_path_factory.mktemp("made")
    tokenizer = Run("sample", "base", 1, "tiny", tuple(each for each in PRIOR if "prior" not in each))
    run = Run("sample", "gpt-base", 1, "gpt", tuple(PRIOR), base=tokenizer, samples=50_000, sampling=(("top_k", 9),))
    run.train_and_measure(folder / "runs", folder / "results", Measuring(limit=6))
    assert run.is_measured(folder / "runs", folder / "results")
    assert (folder / "runs/sample/base-seed1/training.json").is_file()
    return read_json(folder / "results/sample/gpt-base-seed1.json", "a result")


def write_made(results: Path, made: dict[str, Any], name: str, seed: int = 1, **metrics: float) -> None:
    """A result of a prior under another name, with these metrics."""
    settings = {**made["config"], "training": {**made["config"]["training"], "seed": seed}}
    section = {**made[GENERATION], "metrics": metrics}
    document = {**made, "data": "cifar10", "name": name, "seed": seed, "config": settings, GENERATION: section}
    path = results / "cifar10" / f"{name}-seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def test_prior_is_measured_by_its_images(made: dict[str, Any]) -> None:
    assert "protocols" not in made
    assert made[GENERATION]["images"] == 6
    assert made[GENERATION]["protocol"]["sampler"]["top_k"] == 9
    assert made["config"]["tokenizer"] == "base-seed1"


def test_results_of_priors_are_rows_and_cells_of_their_own(tmp_path: Path, made: dict[str, Any]) -> None:
    for seed, gfid in ((1, 50.0), (2, 54.0)):
        write_made(tmp_path, made, "pixelcnn-vq-vae", seed, gfid=gfid, precision=0.5)
    write_made(tmp_path, made, "gpt-arcvq-vae", gfid=33.25)
    results = Results(tmp_path)
    rows = list(csv.DictReader(io.StringIO(csv_text(results))))
    assert [(row["name"], row["protocol"], row["gfid"], row["images"]) for row in rows] == [
        ("gpt-arcvq-vae", GENERATION, "33.25", "6"),
        ("pixelcnn-vq-vae", GENERATION, "50.0", "6"),
        ("pixelcnn-vq-vae", GENERATION, "54.0", "6"),
    ]
    table = "\n".join(generation.pixelcnn_table(LIST, results))
    assert "| VQ-VAE | 576 | – | 2 | 52.00 ± 2.83 (57.36) | 0.500 |" in table
    assert "| ArcVQ-VAE | 576 | – | not measured | – (43.13) |" in table
    priors = generation.priors_table(LIST, results)
    assert "| PixelCNN | 52.00 ± 2.83 | not measured | not measured | not measured |" in priors
    assert "| GPT | not measured | 33.25 | not measured | not measured |" in priors
    line = measured_line(LIST, results, "cifar10", "pixelcnn")
    assert line.startswith("# Measured: gFID 52.00 ± 2.83 over vq-vae; 6 images against train;")
    assert measured_line(LIST, results, "cifar10", "vq-vae") == "# Measured: not yet."


def test_tokenizer_and_prior_are_not_averaged(tmp_path: Path, made: dict[str, Any]) -> None:
    write_made(tmp_path, made, "pixelcnn-vq-vae", 1, gfid=50.0)
    write_made(tmp_path, made, "pixelcnn-vq-vae", 2, gfid=50.0)
    path = tmp_path / "cifar10/pixelcnn-vq-vae-seed2.json"
    document = json.loads(path.read_text())
    section = document.pop(GENERATION)
    path.write_text(json.dumps({**document, "protocols": {"exact": section}}))
    with pytest.raises(ArcvqError, match="one is of a tokenizer, the other of a prior"):
        Results(tmp_path)


def test_aim_has_the_minutes_of_both_trainings(tmp_path: Path, made: dict[str, Any]) -> None:
    training = {**made["training"], "seconds": 240.0}
    write_made(tmp_path, {**made, "training": training}, "arcvq-gan", rfid=7.0)
    assert "not measured" in generation.aim_table(LIST, Results(tmp_path))[2]
    write_made(tmp_path, {**made, "training": training}, "gpt-arcvq-gan", gfid=14.0)
    assert generation.aim_table(LIST, Results(tmp_path))[2].startswith("| `gpt-arcvq-gan` | 8.0 | – | 1 | 14.00 |")


def test_tables_without_results_say_not_measured(tmp_path: Path) -> None:
    sections = result_sections(LIST, Results(tmp_path))
    for key in ("table2", "table3", "table5", "table10", "table13", "photos-128", "photos", "priors", "aim"):
        lines = [line for line in sections[key] if line.startswith("| ")][1:]
        assert lines
        assert all("not measured" in line for line in lines if "rFID of the tokenizer" not in line), key


@pytest.mark.parametrize("key", ["table2", "table3", "table5", "table10", "table13"])
def test_printed_cells_are_those_of_print(tmp_path: Path, key: str) -> None:
    """Every number in brackets, row by row; the rows of ours without print have none."""
    about = ("method", "prior", "tokens", "codes", "width", "run", "meant", "note")
    expected = sorted(
        sorted(float(value) for name, value in row.items() if name not in about) for row in printed_rows(key)
    )
    lines = [line for line in result_sections(LIST, Results(tmp_path))[key] if line.startswith("| ")][1:]
    found = []
    for line in lines:
        texts = re.findall(r"\(([\d.]+)(%?)\)", line)
        found.append(sorted(float(number) / (100 if percent else 1) for number, percent in texts))
    assert sorted(row for row in found if row) == [pytest.approx(row) for row in expected]


def test_rows_of_print_are_sorted_by_bits() -> None:
    bits = {row["run"]: bits_of(row) for row in printed_rows("table2")}
    assert (bits["vqgan-f16"], bits["rq-vae"], bits["movq"], bits["vqgan-ema"]) == (2560, 14336, 10240, 3584)
    shown = [float(each.replace(",", "")) for each in re.findall(r"\| ([\d,]+) \| not", "\n".join(imagenet_lines()))]
    assert shown == sorted(shown)
    assert len(shown) == len(bits)


def imagenet_lines() -> list[str]:
    return large.imagenet_table(Results(RUNS_FILE.parent.parent / "results"))
