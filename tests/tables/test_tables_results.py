"""Result files and looks, read back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from study_results import named

from arcvq import ArcvqError
from arcvq.config import to_dict
from arcvq.systems import load_system
from arcvq.tables import Result, read_results
from arcvq.tables.results import of_run

Add = Callable[..., None]


def test_the_precision_with_the_most_seeds_is_taken(folder: Path, add: Add) -> None:
    add("vq-vae-bf16", exact={"psnr": 24.0})
    assert [result.name for result in of_run(named(folder), "vq-vae")] == ["vq-vae-bf16"]
    add("vq-vae", exact={"psnr": 24.0})
    assert [result.name for result in of_run(named(folder), "vq-vae")] == ["vq-vae"]
    add("vq-vae-bf16", 2, exact={"psnr": 24.0})  # more seeds
    assert [result.name for result in of_run(named(folder), "vq-vae")] == ["vq-vae-bf16"] * 2
    assert of_run(named(folder), "fsq") == []


def test_a_broken_file_of_looks_is_named(folder: Path, add: Add) -> None:
    add("vq-vae", exact={"psnr": 24.0})
    for text in ("{", "3", '{"kind": "eval"}'):
        (folder / "cifar10" / "vq-vae-seed1.metrics.jsonl").write_text(text)
        with pytest.raises(ArcvqError, match=r"vq-vae-seed1\.metrics\.jsonl: not a file of looks"):
            read_results(folder)


def test_an_option_that_came_later_leaves_the_hash(folder: Path, add: Add) -> None:
    add("vq-vae", exact={"psnr": 24.0})
    add("vq-vae", 2, exact={"psnr": 24.0})
    path = folder / "cifar10" / "vq-vae-seed2.json"
    document = json.loads(path.read_text())
    del document["config"]["data"]["holdout"]
    path.write_text(json.dumps(document))
    assert len({result.config_hash for result in read_results(folder)}) == 1


def test_an_option_counts_with_its_default_where_a_result_does_not_have_it() -> None:
    now, before, other = (json.loads(json.dumps(to_dict(load_system("cifar10/sq-vae")))) for _ in range(3))
    del before["quantizer"]["evaluation"]
    other["quantizer"]["evaluation"] = "sample"
    hashes = [Result("cifar10", {"config": config}).config_hash for config in (now, before, other)]
    assert hashes[0] == hashes[1] != hashes[2]
