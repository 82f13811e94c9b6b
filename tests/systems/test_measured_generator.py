"""Which labels a measured generator is told, and what its document says of them."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import ArcvqError, Generator
from arcvq.data import Images, load_images, write_png
from arcvq.data.images import InMemoryImages
from arcvq.metrics.weights import MissingWeights
from arcvq.systems import measure_generator
from arcvq.systems.measure_generator import measure_prior, use_labels
from arcvq.terminal import print_generation


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator.from_pretrained("tiny")


@pytest.fixture(scope="module")
def images() -> Images:
    return load_images("sample", split="test", limit=16)


def with_classes(images: Images, names: list[str] | None, labelled: bool = True) -> Images:
    labels = images.labels if labelled else None
    return InMemoryImages("others", images.gather(torch.arange(len(images))), labels, names)


def measured(source: str | Path, **options: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"data": "sample", "split": "test", "chunk": 4, "metrics": ["duplicate_share"]}
    return measure_generator(source, 4, **(about | options)).document


def test_labels_are_used_where_the_class_names_agree(generator: Generator, images: Images) -> None:
    assert use_labels(generator, images, own_data=False)
    assert not use_labels(generator, with_classes(images, None, labelled=False), own_data=True)
    without_names = with_classes(images, None)
    assert use_labels(generator, without_names, own_data=True)
    assert not use_labels(generator, without_names, own_data=False)


@pytest.mark.parametrize("own_data", [True, False])
def test_other_classes_are_refused_by_name(generator: Generator, images: Images, own_data: bool) -> None:
    names = list(generator.class_names or [])
    for given, named in [
        (["abacus", *names[1:]], "class 0 is abacus, in the generator T-shirt"),
        ([names[0], *names[:0:-1]], "class 1 is boot, in the generator trouser"),
        (names[:-1], "class 9 is missing, in the generator boot"),
    ]:
        with pytest.raises(ArcvqError, match=rf"others has other classes than the generator \({named}\)"):
            use_labels(generator, with_classes(images, given), own_data)


def test_folder_of_a_generator_is_measured_with_labels_as_its_run_is(
    generator: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["arcvq.systems.measure_generator"], "PRIOR_IMAGES", 100)
    document = measured(generator.save_pretrained(tmp_path / "model"))
    assert document["prior"] == {"metric": "bits_per_token", "images": 100, "labels": True}
    whole = load_images("sample", split="test")
    with_labels = measure_prior(generator, whole, True)["bits_per_token"]
    assert document["generation"]["metrics"]["bits_per_token"] == pytest.approx(with_labels, rel=1e-6)
    assert measure_prior(generator, whole, False)["bits_per_token"] > with_labels + 0.01


def folder_of(path: Path, *classes: str) -> str:
    """A set of images with these classes."""
    for split in ("train", "test"):
        for index, name in enumerate(classes):
            write_png(path / split / name / f"{index}.png", torch.full((1, 28, 28), index, dtype=torch.uint8))
    return f"folder:{path}"


def test_prior_that_always_knew_the_class_is_refused_without_it(
    generator: Generator, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator.prior, "config", replace(generator.prior.config, label_dropout=0.0))
    assert use_labels(generator, images, own_data=False)
    for others in (with_classes(images, None, labelled=False), with_classes(images, None)):
        with pytest.raises(ArcvqError, match="label_dropout 0"):
            use_labels(generator, others, own_data=False)


def test_images_of_other_classes_give_all_metrics_but_the_priors_own(tmp_path: Path) -> None:
    document = measured("tiny", data=folder_of(tmp_path, "cat", "dog"))
    assert document["generation"]["metrics"].keys() == {"duplicate_share"}
    assert "class 0 is cat, in the generator T-shirt" in document["generation"]["missing"]["bits_per_token"]
    assert document["prior"] is None


def test_images_without_classes_are_measured_without_and_the_document_says_so(tmp_path: Path) -> None:
    document = measured("tiny", data=folder_of(tmp_path, ""))
    assert document["prior"] == {"metric": "bits_per_token", "images": 1, "labels": False}
    assert document["generation"]["metrics"]["bits_per_token"] > 0


def test_reason_that_metrics_are_missing_for_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_weights(**_: object) -> None:
        raise MissingWeights("no Inception here")

    monkeypatch.setattr("arcvq.metrics.generation_features.load_once", lambda key, load: load())
    monkeypatch.setattr("arcvq.metrics.generation_features.fid_network", no_weights)
    metrics = ["gfid", "kid", "duplicate_share", "precision_recall"]
    print_generation(measure_generator("tiny", 4, data="sample", split="test", chunk=4, metrics=metrics))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("missing ")]
    assert lines == ["missing gfid, kid, precision_recall: no Inception here"]
