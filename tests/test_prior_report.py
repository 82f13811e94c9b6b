"""Reports of runs that train a prior."""

import json
import re
import shutil
from base64 import b64decode
from pathlib import Path

import pytest

from arcvq.data.files import encode_png, read_image
from arcvq.errors import ArcvqError
from arcvq.priors import Generator
from arcvq.priors.files import sample_files
from arcvq.report import make_report
from arcvq.systems import load_config, measure, measure_generator, train
from arcvq.tokenizers import Tokenizer

TINY = ["--prior.width=16", "--prior.layers=1", "--prior.heads=2", "--data.limit=32", "--data.batch_size=16", "--training.steps=4",
        "--training.log_every=1", "--training.evaluations=2", "--training.evaluation_images=16"]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tokenizer with an evaluation."""
    run = Path(shutil.copytree(trained_run, tmp_path_factory.mktemp("tokenizer") / "coder"))
    measure(run, metrics=["psnr", "usage"], limit=20, record=True)
    return run


@pytest.fixture(scope="module")
def finished(tokenizer_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("prior") / "prior"
    train(load_config("sample/gpt", [f"--tokenizer={tokenizer_run}", *TINY]), run, quiet=True)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "prior"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the drawing, and compare few images."""
    monkeypatch.setattr("arcvq.analysis.page.render_png", lambda figure, resolution: b"a figure")
    monkeypatch.setattr("arcvq.report.COMPARED_IMAGES", 20)


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="([\w-]+)">', page)


def test_page_has_samples_numbers_and_tokenizer(run: Path, tmp_path: Path) -> None:
    report = make_report([run], tmp_path / "page")
    page = report.page.read_text()
    assert sections(page) == [
        "summary",
        "generated-0",
        "metrics",
        "diagnosis",
        "training-bits-per-token",
        "tokenizer",
        "settings",
    ]
    assert "bits/token under the prior, training images" in page
    assert "bits/token under the prior, test images" in page
    assert "7×7 of 32 codes" in page
    assert "coder" in page
    assert "PSNR" in page
    found = json.loads(json.dumps(report.to_json()))["runs"]["prior"]
    assert found["metrics"]["training images"].keys() == {"bits_per_token"}
    assert found["metrics"]["test images"]["bits_per_token"] == pytest.approx(5.0, abs=0.2)  # of 32 codes
    assert (found["step"], found["findings"]) == (4, [])


def test_samples_are_the_grid_that_the_command_writes(run: Path, tmp_path: Path) -> None:
    page = make_report([run], tmp_path / "page").page.read_text()
    grid = sample_files(Generator.from_pretrained(run), tmp_path / "out", 64, seed=0).grid
    pictures = [b64decode(each) for each in re.findall(r"base64,([\w+/=]+)", page)]
    assert encode_png(read_image(grid, 1)) in pictures


def test_generation_metrics_are_shown_once_they_are_recorded(run: Path, tmp_path: Path) -> None:
    about = {"split": "test", "metrics": ["duplicate_share"], "chunk": 4}
    measure_generator(run, 4, **about)  # type: ignore[arg-type]
    assert "duplicates" not in make_report([run], tmp_path / "page").page.read_text()
    measure_generator(run, 4, record=True, **about)  # type: ignore[arg-type]
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "“generation”" in page
    assert "duplicates" in page
    assert "4 images (balanced classes, seed 0); against 2,000 of sample test" in page


def test_unfinished_run_has_curves_and_a_note(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "model")
    (run / "training.json").unlink()
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "generated-0" not in sections(page)
    assert "training-bits-per-token" in sections(page)
    assert "training has not finished" in page


def test_tokenizer_that_is_another_one_now_is_not_shown(run: Path, tokenizer_run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tokenizer_run, tmp_path / "coder"))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(tokenizer_run), str(other)))
    tokenizer = Tokenizer.from_pretrained(other)
    tokenizer.quantizer.codebook.data.mul_(2)
    tokenizer.save_pretrained(other / "model")
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "tokenizer" not in sections(page)
    assert "another tokenizer" in page


def test_tokenizer_that_is_no_run_has_a_note(run: Path, tokenizer_run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(tokenizer_run), "tiny"))
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "tokenizer" not in sections(page)
    assert "tiny is no run on this machine" in page


def test_two_priors_share_a_page(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "second"))
    page = make_report([run, other], tmp_path / "page").page.read_text()
    assert sections(page)[:3] == ["summary", "generated-0", "generated-1"]
    assert sections(page).count("tokenizer") == 1


def test_prior_and_tokenizer_are_refused_together(run: Path, tokenizer_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"prior trains a prior, coder a tokenizer: make a report of each"):
        make_report([run, tokenizer_run], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_prior_over_latents_is_said_to_model_latents(tokenizer_run: Path, tmp_path: Path) -> None:
    settings = ["--data.limit=32", "--data.batch_size=16", "--training.steps=1", "--training.evaluations=1",
                "--training.evaluation_images=16", "--prior.width=8", "--prior.head_width=8", "--prior.groups=4",
                "--prior.context_width=8", "--prior.steps=2"]  # fmt: skip
    run = tmp_path / "diffusion"
    train(load_config("sample/ldm", [f"--tokenizer={tokenizer_run}", *settings]), run, quiet=True)
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "7×7 of 8 channels" in page
    assert "7×7 of 32 codes" not in page


def test_prior_of_random_crops_is_not_measured_on_whole_images(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("crop: null\n", "crop: 28\n", 1))
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "was trained on random crops (data.crop 28)" in page
    assert "generated-0" in sections(page)
    assert "under the prior, training images" not in page


def test_missing_data_has_a_note(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("name: sample\n", "name: folder:/nowhere\n", 1))
    page = make_report([run], tmp_path / "page").page.read_text()
    assert "generated-0" in sections(page)
    assert "/nowhere" in page
    assert "under the prior, training images" not in page
