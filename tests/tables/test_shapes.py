"""Files of results that are JSON, but not what they should be, are told in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcvq import ArcvqError
from arcvq.tables import read_printed, read_results
from arcvq.tables.shapes import misfit

Add = Callable[..., None]


def change(path: Path, where: str, value: Any) -> None:
    """`where` is a dotted name in the document."""
    document = json.loads(path.read_text())
    *parents, last = where.split(".")
    part = document
    for key in parents:
        part = part[key]
    part[last] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("name", 3, "name is not text"),
        ("seed", "x", "seed is not a whole number"),
        ("seed", True, "seed is not a whole number"),
        ("protocols", [], "protocols is not an object"),
        ("protocols", {}, "protocols is empty"),
        ("protocols.exact", None, "protocols.exact is not an object"),
        ("protocols.exact", {}, "protocols.exact.images is missing"),
        ("protocols.exact.metrics.psnr", "x", "protocols.exact.metrics.psnr is not a number or null"),
        ("protocols.exact.missing", {"lpips": 3}, "protocols.exact.missing.lpips is not text"),
        ("config", [1], "config is not an object"),
        ("config.data", None, "config.data is not an object"),
        ("config.training", None, "config.training is not an object"),
        ("config.training.stages", [{"epochs": 3}, {"epochs": "x"}],
         "config.training.stages[1].epochs is not a whole number or null"),
        ("training", "x", "training is not an object"),
        ("training.device", None, "training.device is not text"),
        ("training.seconds", "x", "training.seconds is not a number"),
        ("protocols.exact.metrics.psnr", 10**400, "protocols.exact.metrics.psnr is not a number or null"),
        ("measured", 3, "measured is not an object"),
        ("measured", {"device": "A GPU"}, "measured.date is missing"),
        ("diverged", "at step 9", "it diverged, and yet has protocols"),
    ],
)  # fmt: skip
def test_a_result_of_another_shape_is_told(folder: Path, add: Add, where: str, value: Any, said: str) -> None:
    add("vq-vae", exact={"psnr": 24.0})
    path = folder / "cifar10" / "vq-vae-seed1.json"
    assert len(read_results(folder)) == 1
    change(path, where, value)
    with pytest.raises(ArcvqError) as error:
        read_results(folder)
    assert str(error.value) == f"{path}: not a result of arcvq evaluate: {said}; measure it again, or take it away"


@pytest.mark.parametrize("content", ["", '{"name": ', "[" * 100_000, '{"seed": ' + "9" * 5000 + "}"])
def test_a_result_or_a_look_that_no_json_reader_takes_is_told(folder: Path, add: Add, content: str) -> None:
    add("vq-vae", exact={"psnr": 24.0}, looks={1.0: 19.0})
    result = folder / "cifar10" / "vq-vae-seed1.json"
    looks = result.with_suffix(".metrics.jsonl")
    if content:  # without a line there is no look
        before = looks.read_text()
        looks.write_text(content)
        with pytest.raises(
            ArcvqError, match="not a file of looks along a training: expected a JSON object in each line"
        ):
            read_results(folder)
        looks.write_text(before)
    result.write_text(content)
    with pytest.raises(ArcvqError, match=r"vq-vae-seed1\.json: not readable as JSON"):
        read_results(folder)


@pytest.mark.parametrize(
    ("look", "said"),
    [
        ({"epoch": 2.0, "psnr": "x"}, "psnr is not a number"),
        ({"epoch": 2.0, "psnr": None}, "psnr is not a number"),
        ({"epoch": None, "psnr": 20.0}, "epoch is not a number"),
        ({"epoch": 2.0, "psnr": 20.0, "usage": "x"}, "usage is not a number or null"),
        ([2.0, 20.0], "it is not an object"),
    ],
)
def test_looks_of_another_shape_are_told(folder: Path, add: Add, look: Any, said: str) -> None:
    add("vq-vae", exact={"psnr": 24.0}, looks={1.0: 19.0})
    path = folder / "cifar10" / "vq-vae-seed1.metrics.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(look) + "\n")
    with pytest.raises(ArcvqError) as error:
        read_results(folder)
    assert str(error.value) == f"{path}: not a file of looks along a training: line 2: {said}"


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("cifar10", 3, "cifar10 is not an object"),
        ("cifar10.vq-vae.psnr", "x", "cifar10.vq-vae.psnr is not a number"),
        ("appendix.cifar10", [], "appendix.cifar10 is not an object"),
        ("table2", {}, "table2 is not a list"),
        ("table2", [{"method": "A", "rfid": "x"}], "table2[0].rfid is not a number"),
        ("table2", [{"method": "A"}, {"codes": 1.5}], "table2[1].codes is not a whole number"),
    ],
)
def test_print_of_another_shape_is_told(printed: Path, where: str, value: Any, said: str) -> None:
    assert read_printed()
    change(printed, where, value)
    with pytest.raises(ArcvqError) as error:
        read_printed()
    assert str(error.value) == f"{printed}: not what the paper prints: {said}"


def test_keys_that_nobody_reads_may_be_anything() -> None:
    assert misfit({"a": 1, "b": [None]}, {"a": "a number", "c?": "text"}) is None
    assert misfit({"a": 1, "b": [None]}, {"a": "a number", "*": "text"}) == "b is not text"
