"""arcvq sample, compress and decompress, and arcvq train of a prior."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import Generator
from arcvq.data import read_image, to_uint8, to_unit, write_png
from arcvq.priors.compression import compression_tile
from arcvq.priors.saving import generator_fingerprint
from arcvq.tokenizers import Tile

Arcvq = Callable[..., Any]
TINY = [
    "--prior.width=16",
    "--prior.layers=1",
    "--prior.heads=2",
    "--data.limit=32",
    "--data.batch_size=16",
    "--training.steps=2",
    "--training.evaluations=1",
    "--training.evaluation_images=16",
]


@pytest.fixture(scope="module")
def prior_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from arcvq.systems import load_config, train

    folder = tmp_path_factory.mktemp("prior") / "run"
    train(load_config("sample/gpt", ["--tokenizer=tiny", *TINY]), folder, quiet=True)
    return folder


def test_train_takes_the_tokenizer_and_says_how_to_go_on(arcvq: Arcvq, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = arcvq("train", "sample/gpt", "--tokenizer", "tiny", *TINY, "--out", run, "--quiet")
    assert (result.code, result.errors) == (0, "")
    assert f"arcvq sample {run}" in result.output
    dry = arcvq("train", "sample/gpt", "--tokenizer", "tiny", *TINY, "--dry-run")
    assert dry.code == 0
    assert "7×7 of 256 codes" in dry.output


def test_sample_writes_the_generators_images(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    arguments = ["--n", 3, "--class", "sneaker", "9", "--seed", 4, "--top-k", 20, "--guidance", 1.5, "--chunk", 4]
    result = arcvq("sample", prior_run, *arguments, "--out", tmp_path / "out", "--json")
    assert (result.code, result.errors) == (0, "")
    files = json.loads(result.output)["files"]
    assert [Path(file).name for file in files] == ["000000-sneaker.png", "000001-boot.png", "000002-sneaker.png"]
    generator = Generator.from_pretrained(prior_run)
    expected = to_uint8(generator(3, classes=[7, 9], seed=4, top_k=20, guidance=1.5, chunk=4))
    assert torch.equal(torch.stack([read_image(file, 1) for file in files]), expected)
    assert json.loads((tmp_path / "out" / "sampling.json").read_text()) == {
        "model": f"{generator_fingerprint(generator):016x}",
        "seed": 4,
        "images": 3,
        "classes": [7, 9],
        "chunk": 4,
        "precision": "fp32",
        "compiled": False,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": None,
        "guidance": 1.5,
    }


def test_nearest_training_images_are_written_beside_the_samples(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    about = ["--n", 2, "--chunk", 2, "--nearest", 3, "--out", tmp_path / "out"]
    result = arcvq("sample", prior_run, *about)
    assert (result.code, result.errors) == (0, "")
    found = json.loads((tmp_path / "out" / "nearest.json").read_text())
    assert [len(image["indices"]) for image in found["images"]] == [3, 3]
    assert found["training_images"] == 32  # data.limit of the run
    assert read_image(tmp_path / "out" / "nearest.png", 1).shape == (1, 2 * 30 - 2, 4 * 30 - 2)
    assert f"{tmp_path / 'out' / 'nearest.png'}" in result.output
    assert "32 training images" in result.output
    assert "(50% and 5% if generated images were distributed as test images are)" in result.output


def test_nearest_training_images_of_a_model_are_those_of_the_data_set_named(arcvq: Arcvq, tmp_path: Path) -> None:
    about = ["--n", 1, "--chunk", 1, "--nearest", 1, "--data", "sample", "--json", "--out", tmp_path / "out"]
    result = arcvq("sample", "tiny", *about)
    document = json.loads(result.output)
    assert document["nearest"]["file"] == str(tmp_path / "out" / "nearest.json")
    assert document["nearest"]["training_images"] == 10_000
    assert "images" not in document["nearest"]


def test_nearest_training_images_of_random_crops_are_refused(arcvq: Arcvq, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arcvq("train", "sample/gpt", "--tokenizer", "tiny", *TINY, "--data.crop", 16, "--out", run, "--quiet")
    result = arcvq("sample", run, "--n", 1, "--nearest", 1, "--out", tmp_path / "out")
    assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
    assert "was trained on random crops (data.crop 16)" in result.errors
    assert not (tmp_path / "out").exists()


def test_evaluation_of_all_metrics_is_recorded_for_the_report(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(prior_run, tmp_path / "run")
    about = ["evaluate", run, "--samples", 4, "--chunk", 4]
    assert arcvq(*about, "--metrics", "duplicate_share").code == 0
    assert not (run / "evaluation-generation.json").exists()
    assert arcvq(*about).code == 0
    assert json.loads((run / "evaluation-generation.json").read_text())["images"] == 4
    result = arcvq("report", run, "--out", tmp_path / "page")
    assert (result.code, result.errors) == (0, "")


@pytest.mark.parametrize(
    "unusual",
    [
        ["--split", "test"],
        ["--seed", 1],
        ["--top-k", 5],
        ["--temperature", 0.1],
        ["--precision", "bf16"],
        ["--samples", 2],
    ],
)
def test_recorded_evaluation_is_not_replaced_by_an_unusual_or_a_smaller_one(
    arcvq: Arcvq, prior_run: Path, tmp_path: Path, unusual: list[object]
) -> None:
    run = shutil.copytree(prior_run, tmp_path / "run")
    record = run / "evaluation-generation.json"
    before = json.dumps({"protocol": "generation", "images": 3})
    record.write_text(before)
    assert arcvq("evaluate", run, "--chunk", 4, "--samples", 4, *unusual).code == 0
    assert record.read_text() == before


@pytest.mark.parametrize("before", ['{"images": 4}', '{"images": null}', "not JSON"])
def test_recorded_evaluation_is_replaced_by_an_equally_large_one(
    arcvq: Arcvq, prior_run: Path, tmp_path: Path, before: str
) -> None:
    run = shutil.copytree(prior_run, tmp_path / "run")
    record = run / "evaluation-generation.json"
    record.write_text(before)
    assert arcvq("evaluate", run, "--chunk", 4, "--samples", 4, "--split", "train").code == 0
    assert json.loads(record.read_text())["protocol"] == "generation"


def test_sample_completes_and_continues_an_image(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    write_png(tmp_path / "photo.png", torch.randint(256, (1, 28, 28), dtype=torch.uint8))
    write_png(tmp_path / "mask.png", torch.full((1, 28, 28), 255, dtype=torch.uint8))
    about = ["--image", tmp_path / "photo.png", "--out", tmp_path / "out"]
    completed = arcvq("sample", prior_run, *about, "--mask", tmp_path / "mask.png")
    assert completed.output == f"{tmp_path / 'out' / 'photo.png'}\n"
    continued = arcvq("sample", prior_run, *about, "--extend", 3, "--json")
    assert read_image(json.loads(continued.output)["file"], 1).shape == (1, 40, 28)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--class", "sneakers"], "did you mean sneaker"),
        (["--class", "10"], "classes 0 to 9"),
        (["--steps", "4"], "no option steps"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--guidance", "inf"], "guidance"),
        (["--image", "photo.png", "--extend", "2", "--n", "64"], "--n is for new images"),
        (["--image", "photo.png", "--extend", "2", "--precision", "fp32"], "--precision is for new images"),
        (["--image", "photo.png", "--extend", "2", "--chunk", "64"], "--chunk is for new images"),
        (["--seed", "-1"], "seed"),
        (["--mask", "mask.png"], "--image"),
        (["--image", "photo.png", "--extend", "2", "--nearest", "1"], "--nearest is for new images"),
        (["--data", "sample"], "--data is for --nearest"),
        (["--root", "sets"], "--root is for --nearest"),
        (["--nearest", "33"], "expected at least 33"),
        (["--nearest", "0"], "expected a whole number above 0, got '0'"),
        (["--nearest", "101"], "expected at most 100, got 101"),
        (["--nearest", "1", "--data", "flowers"], "unknown data set 'flowers'"),
        (["--image", "nothing.png", "--extend", "2"], "nothing.png"),
        (["--image", "nothing.png"], "--mask"),
        (["--device", "tpu9"], "tpu9"),
        (["--precision", "fp8"], "fp8"),
    ],
)
def test_wrong_argument_is_one_line(
    arcvq: Arcvq, prior_run: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = arcvq("sample", prior_run, *arguments, "--out", tmp_path / "out")
    assert (result.code, result.output) == (2, "")
    assert message in result.errors
    assert result.errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_images_are_sampled_into_a_folder_once(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    about = ["sample", prior_run, "--n", 1, "--chunk", 1, "--out", tmp_path / "out"]
    assert arcvq(*about).code == 0
    again = arcvq(*about, "--seed", 1)
    assert (again.code, again.output, again.errors.count("\n")) == (2, "", 1)
    assert "is not empty" in again.errors
    assert len(list((tmp_path / "out").iterdir())) == 3


@pytest.mark.parametrize("command", ["sample", "compress", "decompress"])
def test_command_does_not_overwrite_its_input(arcvq: Arcvq, prior_run: Path, tmp_path: Path, command: str) -> None:
    photo = tmp_path / "photo.png"
    write_png(photo, torch.zeros(1, 28, 28, dtype=torch.uint8))
    before = photo.read_bytes()
    result = arcvq(*{
        "sample": ["sample", prior_run, "--image", photo, "--extend", 1, "--out", tmp_path],
        "compress": ["compress", prior_run, photo, "--out", photo],
        "decompress": ["decompress", prior_run, photo, "--out", photo],
    }[command])  # fmt: skip
    assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
    assert "would overwrite the input" in result.errors
    assert photo.read_bytes() == before


def test_picture_is_written_under_a_name_of_its_format(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    result = arcvq("decompress", prior_run, tmp_path / "photo.arcvq", "-o", tmp_path / "back.jpg")
    assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
    assert "expected a name that ends in .png" in result.errors


def test_tokenizer_without_prior_is_refused(arcvq: Arcvq, trained_run: Path, tmp_path: Path) -> None:
    result = arcvq("sample", trained_run, "--out", tmp_path / "out")
    assert result.code == 2
    assert "holds no prior" in result.errors


@pytest.mark.parametrize("mode", ["portable", "prior"])
def test_compressed_picture_decompresses_to_its_reconstruction(
    arcvq: Arcvq, prior_run: Path, tmp_path: Path, mode: str
) -> None:
    photo, file, out = tmp_path / "photo.png", tmp_path / "photo.arcvq", tmp_path / "back.png"
    write_png(photo, torch.randint(256, (1, 28, 56), dtype=torch.uint8))
    about = ["--class", "bag"] if mode == "prior" else []
    result = arcvq("compress", prior_run, photo, "-o", file, "--mode", mode, *about, "--json")
    assert (result.code, result.errors) == (0, "")
    sizes = json.loads(result.output)
    assert sizes["bytes"] == file.stat().st_size
    assert sizes["bits_per_pixel"] == pytest.approx(8 * sizes["bytes"] / (28 * 56))
    assert ("cross_entropy_bits_per_pixel" in sizes) == (mode == "prior")
    assert arcvq("decompress", prior_run, file, "-o", out).output == f"{out}\n"
    generator = Generator.from_pretrained(prior_run)
    tile = compression_tile(generator, 7, 14)
    assert tile == Tile(28, 4)
    expected = generator.tokenizer.reconstruct(to_unit(read_image(photo, 1))[None], tile=tile)[0]
    assert torch.equal(read_image(out, 1), to_uint8(expected))


def test_wrong_compressed_file_is_one_line(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    (tmp_path / "other.arcvq").write_bytes(b"something else")
    for file, message in [("other.arcvq", "not a picture compressed"), ("none.arcvq", "no such file")]:
        result = arcvq("decompress", prior_run, tmp_path / file, "-o", tmp_path / "out.png")
        assert (result.code, result.output) == (2, "")
        assert message in result.errors
        assert result.errors.count("\n") == 1
    write_png(tmp_path / "photo.png", torch.zeros(1, 28, 28, dtype=torch.uint8))
    for arguments, message in [(["--mode", "zip"], "portable, prior"), (["--class", "dress2"], "did you mean dress")]:
        result = arcvq("compress", prior_run, tmp_path / "photo.png", "-o", tmp_path / "x.arcvq", *arguments)
        assert result.code == 2
        assert message in result.errors
    assert not (tmp_path / "out.png").exists()
    assert not (tmp_path / "x.arcvq").exists()


def test_evaluate_measures_generated_images(arcvq: Arcvq, prior_run: Path, tmp_path: Path) -> None:
    about = ["--samples", 6, "--chunk", 4, "--top-k", 9, "--seed", 3, "--split", "test", "--metrics", "duplicate_share"]
    result = arcvq("evaluate", prior_run, *about, "--out", tmp_path / "result.json", "--json")
    assert (result.code, result.errors) == (0, "")
    document = json.loads(result.output)
    assert document == json.loads((tmp_path / "result.json").read_text())
    protocol = document["generation"]["protocol"]
    assert (protocol["images"], protocol["split"], protocol["classes"]) == (6, "test", "balanced")
    assert protocol["sampler"] == {
        "chunk": 4,
        "compiled": False,
        "guidance": 1,
        "precision": "fp32",
        "temperature": 1,
        "top_k": 9,
        "top_p": None,
    }
    metrics = document["generation"]["metrics"]
    assert metrics["duplicate_share"] == 0
    assert 0 < metrics["bits_per_token"] < 9
    assert document["prior"] == {"metric": "bits_per_token", "images": 2000, "labels": True}
    printed = arcvq("evaluate", prior_run, *about)
    assert protocol["hash"] in printed.output


@pytest.mark.parametrize("command", ["tokenizer", "generator"])
def test_evaluate_lists_the_images_that_it_leaves_out(
    arcvq: Arcvq, prior_run: Path, tmp_path: Path, command: str
) -> None:
    for split in ("train", "test"):
        for index in range(4):
            pixels = torch.full((1, 28, 28), 50 * index, dtype=torch.uint8)
            write_png(tmp_path / "photos" / split / f"{index}.png", pixels)
    damaged = tmp_path / "photos" / "test" / "2.png"
    damaged.write_text("no image")
    run = ["tiny", "--metrics", "psnr"] if command == "tokenizer" else [
        prior_run, "--samples", 4, "--split", "test", "--metrics", "duplicate_share"
    ]  # fmt: skip
    result = arcvq("evaluate", *run, "--data", f"folder:{tmp_path / 'photos'}")
    assert (result.code, result.output) == (2, "")
    assert f"cannot read the image {damaged}" in result.errors
    result = arcvq(
        "evaluate", *run, "--data", f"folder:{tmp_path / 'photos'}", "--on-error", "skip", "--json"
    )  # fmt: skip
    assert result.code == 0
    assert json.loads(result.output)["skipped_images"] == 1
    assert result.errors == f"1 images cannot be read and were left out:\n  {damaged}: not an image\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "0"], "above 0"),
        (["--samples", "4", "--split", "holdout"], "train or test"),
        (["--samples", "4", "--limit", "4"], "--samples"),
        (["--samples", "4", "--steps", "4"], "no option steps"),
        (["--samples", "4", "--data", "cifar"], "unknown data set"),
        (["--samples", "4", "--metrics", "fid"], "unknown metric"),
        (["--samples", "4", "--split", "all"], "train or test"),
        ([], "--samples N"),
    ],
)
def test_wrong_evaluation_is_one_line(arcvq: Arcvq, prior_run: Path, arguments: list[str], message: str) -> None:
    result = arcvq("evaluate", prior_run, *arguments)
    assert (result.code, result.output) == (2, "")
    assert message in result.errors
    assert result.errors.count("\n") == 1
