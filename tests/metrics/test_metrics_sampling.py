"""The protocol of generated images, and the classes to generate."""

import json
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
import torch

from arcvq.errors import ArcvqError
from arcvq.metrics import GenerationProtocol, balanced_labels

PROTOCOL = GenerationProtocol(
    images=50_000,
    data="cifar10",
    split="train",
    reference_images=50_000,
    classes="balanced",
    seed=0,
    sampler={"steps": 8, "guidance": 1.5, "order": "random"},
)


def test_hash_depends_on_every_field() -> None:
    changed: dict[str, Any] = {
        "images": 10_000,
        "data": "cifar100",
        "split": "test",
        "reference_images": 10_000,
        "classes": "none",
        "seed": 1,
        "sampler": {"steps": 9, "guidance": 1.5, "order": "random"},
        "rounding": "floor",
        "fid_resize": 229,
        "fid_interpolation": "torch",
        "kid_subsets": 50,
        "kid_subset_size": 500,
        "inception_splits": 1,
        "neighbours": 5,
        "reference_features": 10_000,
        "metric_seed": 0,
        "revision": 2,
    }
    only_one_choice = {"inception", "vgg"}
    assert changed.keys() | only_one_choice == {field.name for field in fields(PROTOCOL)}
    hashes = {replace(PROTOCOL, **{name: value}).hash for name, value in changed.items()} | {PROTOCOL.hash}
    assert len(hashes) == len(changed) + 1
    # Saved with results: an unchanged protocol must keep its hash.
    assert PROTOCOL.hash == "da8c4f0aa494"


def test_hash_does_not_depend_on_how_settings_are_written() -> None:
    again = replace(PROTOCOL, sampler={"order": "random", "guidance": 1.5, "steps": 8.0})
    assert again.hash == PROTOCOL.hash
    assert again.line == PROTOCOL.line
    assert replace(PROTOCOL, sampler={**PROTOCOL.sampler, "top_k": None}).hash != PROTOCOL.hash


def test_later_changes_of_the_settings_given_do_not_reach_the_protocol() -> None:
    sampler = {"steps": 8}
    protocol = replace(PROTOCOL, sampler=sampler)
    before = protocol.hash
    sampler["steps"] = 9
    assert protocol.hash == before


def test_line_states_what_a_reader_must_know() -> None:
    for text in ("50,000 images", "balanced", "50,000 of cifar10 train", "steps 8", "guidance 1.5", PROTOCOL.hash):
        assert text in PROTOCOL.line
    assert "biased" not in PROTOCOL.line


@pytest.mark.parametrize("side", ["images", "reference_images"])
def test_line_warns_of_few_images(side: str) -> None:
    few = replace(PROTOCOL, **{side: 9_999})  # type: ignore[arg-type]
    assert few.few_images
    assert "FID is biased upwards" in few.line


def test_json_has_all_fields_with_hash_and_line() -> None:
    assert PROTOCOL.to_json() == {**asdict(PROTOCOL), "hash": PROTOCOL.hash, "line": PROTOCOL.line}
    saved = {name: value for name, value in PROTOCOL.to_json().items() if name not in ("hash", "line")}
    assert GenerationProtocol(**json.loads(json.dumps(saved))) == PROTOCOL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": 0}, "images is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"kid_subset_size": 1}, "kid_subset_size is 1; it must be at least 2"),
        ({"fid_resize": 0}, "fid_resize is 0"),
        ({"split": "val"}, "unknown split 'val'; choose one of train, test, holdout"),
        ({"classes": "random"}, "unknown classes 'random'.*balanced, none"),
        ({"inception": "v2"}, "unknown inception 'v2'"),
        ({"sampler": {"top_k": [1, 2]}}, "the sampler's top_k is a list"),
        ({"sampler": {"guidance": float("inf")}}, "the sampler's guidance is inf"),
    ],
)
def test_wrong_protocols_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        replace(PROTOCOL, **change)


@pytest.mark.parametrize(("count", "classes"), [(100, 10), (103, 10), (3, 10), (50_000, 1000)])
def test_balanced_labels_differ_by_at_most_one(count: int, classes: int) -> None:
    labels = balanced_labels(count, classes, seed=0)
    assert (labels.shape, labels.dtype) == ((count,), torch.int64)
    counts = torch.bincount(labels, minlength=classes)
    assert len(counts) == classes
    assert int(counts.max() - counts.min()) <= 1


def test_balanced_labels_are_shuffled_by_the_seed() -> None:
    labels = balanced_labels(100, 10, seed=3)
    assert torch.equal(labels, balanced_labels(100, 10, seed=3))
    assert not torch.equal(labels, balanced_labels(100, 10, seed=4))
    assert len(labels[:10].unique()) > 1
    assert not torch.equal(labels, torch.arange(100) % 10)


def test_wrong_labels_are_refused() -> None:
    with pytest.raises(ArcvqError, match="at least 1 image and 1 class, but got 5 and 0"):
        balanced_labels(5, 0, seed=0)
