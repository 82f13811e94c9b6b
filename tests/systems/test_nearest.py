"""The training images nearest to generated ones, beside those nearest to test images."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import ArcvqError, Generator
from arcvq.data import load_images, read_image, to_uint8, to_unit, write_png
from arcvq.priors.files import image_grid
from arcvq.systems import load_config, load_image_sets, train, write_nearest

SMALL = ["--tokenizer=tiny", "--prior.width=16", "--prior.layers=1", "--prior.heads=2", "--training.steps=1",
         "--training.evaluations=1", "--training.evaluation_images=4", "--data.batch_size=4"]  # fmt: skip


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator.from_pretrained("tiny")


@pytest.fixture(autouse=True)
def without_inception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ARCVQ_WEIGHTS", "TORCH_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "no weights"))


def write_images(folder: Path, pixels: torch.Tensor) -> list[Path]:
    files = [folder / f"{index:06}.png" for index in range(len(pixels))]
    for file, image in zip(files, pixels):
        write_png(file, image)
    return files


def nearest(generator: Generator, pixels: torch.Tensor, out: Path, k: int = 2) -> dict[str, Any]:
    sets = load_image_sets(generator, "tiny", data="sample", at_least=k)
    return write_nearest(generator, write_images(out, pixels), sets, k, out)


def test_a_generator_that_repeats_training_images_is_told_from_one_that_does_not(
    generator: Generator, tmp_path: Path
) -> None:
    """What a perfect memory gives is training images, as the tokenizer reconstructs them."""
    train, test = load_images("sample", split="train", limit=20), load_images("sample", split="test")
    repeated, fresh = (
        to_uint8(generator.tokenizer.reconstruct(to_unit(pixels)))
        for pixels in (train.gather(torch.arange(20)), test.gather(torch.arange(len(test) - 20, len(test))))
    )
    found = nearest(generator, repeated, tmp_path / "repeated")
    assert sum(image["indices"][0] == row for row, image in enumerate(found["images"])) >= 15
    assert found["generated"]["nearer_than_a_test_image"] > 0.7
    other = nearest(generator, fresh, tmp_path / "fresh")
    assert 0.3 < other["generated"]["nearer_than_a_test_image"] < 0.6


def test_exact_copies_are_nearer_than_all_test_images(generator: Generator, tmp_path: Path) -> None:
    found = nearest(generator, load_images("sample", split="train", limit=3).gather(torch.arange(3)), tmp_path)
    assert found["generated"] == {
        "images": 3,
        "least": 0.0,
        "median": 0.0,
        "nearer_than_a_test_image": 1.0,
        "nearer_than_5_percent_of_test": 1.0,
    }
    assert [image["indices"][0] for image in found["images"]] == [0, 1, 2]


def test_files_have_the_images_and_how_they_were_compared(generator: Generator, tmp_path: Path) -> None:
    train = load_images("sample", split="train", limit=500)
    pixels = train.gather(torch.tensor([7, 123])) // 2
    found = nearest(generator, pixels, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "nearest.json").read_text()) == found
    assert (found["data"], found["training_images"], found["test"]["images"]) == ("sample", 10_000, 1000)
    assert "28×28 pixels" in found["distance"]
    assert "Inception network of FID is not on this machine" in found["reason"]
    assert [image["file"] for image in found["images"]] == ["000000.png", "000001.png"]
    # The nearest one first, each beside its nearest training images.
    first = min((0, 1), key=lambda row: found["images"][row]["distances"][0])
    whole = load_images("sample", split="train")
    rows = [
        torch.cat([pixels[row, None], whole.gather(torch.tensor(found["images"][row]["indices"]))])
        for row in (first, 1 - first)
    ]
    assert torch.equal(read_image(tmp_path / "out" / "nearest.png", 1), image_grid(torch.cat(rows), columns=3))


def test_a_run_is_compared_with_the_images_that_it_was_trained_on(tmp_path: Path) -> None:
    train(load_config("sample/gpt", [*SMALL, "--data.limit=6", "--data.holdout=3"]), tmp_path / "run", quiet=True)
    run = Generator.from_pretrained(tmp_path / "run")
    sets = load_image_sets(run, tmp_path / "run", at_least=6)
    assert (sets.data, len(sets.train), len(sets.test)) == ("sample", 6, 2000)
    whole = load_images("sample", split="train", limit=6)
    assert torch.equal(sets.train.gather(torch.arange(6)), whole.gather(torch.arange(6)))
    with pytest.raises(ArcvqError, match="6 training images of sample; expected at least 7"):
        load_image_sets(run, tmp_path / "run", at_least=7)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_training_images_of_files_are_named_by_their_paths(
    generator: Generator, sample_pixels: torch.Tensor, tmp_path: Path, on_error: str
) -> None:
    """Some files are held out, so an index among the others would say nothing."""
    files = write_images(tmp_path / "photos" / "train", sample_pixels[:10])
    write_images(tmp_path / "photos" / "test", sample_pixels[10:])
    settings = [*SMALL, f"--data.name=folder:{tmp_path / 'photos'}", "--data.holdout=4", f"--data.on_error={on_error}"]
    if on_error == "skip":
        files.pop(0).write_text("no image")
    train(load_config("sample/gpt", settings), tmp_path / "run", quiet=True)
    sets = load_image_sets(generator, tmp_path / "run")
    shown = sets.train.gather(torch.arange(len(sets.train)))
    written = write_images(tmp_path / "out", shown)
    found = write_nearest(generator, written, sets, 1, tmp_path / "out")
    assert len(found["images"]) == len(files) - 4
    for pixels, image in zip(shown, found["images"]):
        (path,) = image["paths"]
        assert Path(path) in files
        assert torch.equal(read_image(path, 1), pixels)
        assert "indices" not in image


def test_a_model_without_a_run_needs_a_data_set(generator: Generator) -> None:
    with pytest.raises(ArcvqError, match="--data NAME"):
        load_image_sets(generator, "tiny")
