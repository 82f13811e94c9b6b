"""Two and four processes train, in float64 and with a discriminator, what one process trains on whole batches."""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scaling import CASES, DETERMINISTIC, DRAWING, EVEN, OF_TWO, ROUNDED, STEPS, UNEVEN, run, train

from arcvq.config import parse
from arcvq.nets import DISCRIMINATORS
from arcvq.quantizers import QUANTIZERS

Result = dict[str, Any]
Alone = Callable[[str], Result]
# Processes differ from one by the order of sums, and where their shards differ in size by rounded weights.
TOLERANCES = dict.fromkeys([*EVEN, *OF_TWO], 1e-9) | dict.fromkeys(UNEVEN, 1e-7)
COMPARED = [(name, world) for world in (2, 4) for name in TOLERANCES if world == 2 or name not in OF_TWO]
LOSSES = ("l1", "l2", "codebook", "commitment", "arc", "adversarial", "discriminator", "lecam", "r1")
each_training = pytest.mark.parametrize(("name", "world"), COMPARED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all trainings of two and of four processes left. They run once, although several workers may have tests of this file."""
    several = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if several else base) / "scaling"
    script = Path(__file__).with_name("scaling.py")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            done = subprocess.run(
                [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stderr[-3000:]
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> dict[int, list[Result]]:
    """What each process ended with, by the number of processes."""
    return {world: [torch.load(folder / str(world) / f"{rank}.pt") for rank in range(world)] for world in (2, 4)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """The same training by one process, run when a test first asks for it."""
    folder = tmp_path_factory.mktemp("alone")
    results: dict[str, Result] = {}
    gc.freeze()  # as in scaling.py

    def result_of(name: str) -> Result:
        if name not in results:
            results[name] = train(CASES[name], folder / name)
        return results[name]

    yield result_of
    gc.unfreeze()


def assert_same_state(found: Result, expected: Result, tolerance: float = 0.0) -> None:
    assert found["parts"] == expected["parts"]
    names = [name for name, length in expected["parts"] for _ in range(length)]
    difference = (found["state"] - expected["state"]).abs().nan_to_num(torch.inf)
    assert difference.max() <= tolerance, f"{names[int(difference.argmax())]} differs by {difference.max():.1e}"


def test_every_kind_of_quantizer_is_compared_or_draws() -> None:
    """A new kind belongs in one of the two tables."""
    compared = {options["kind"] for options in DETERMINISTIC.values()}
    assert compared.isdisjoint(DRAWING)
    assert compared | DRAWING.keys() == set(QUANTIZERS)


@pytest.mark.parametrize("kind", DRAWING)
def test_kinds_that_are_not_compared_draw_in_training(kind: str) -> None:
    quantizer = QUANTIZERS.build(parse(QUANTIZERS.config(kind), DRAWING[kind]), 8)
    latents, before = torch.randn(2, 8, 3, 3), torch.get_rng_state()
    quantizer(latents)
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_kinds_that_are_compared_draw_nothing_in_training(name: str, alone: Alone) -> None:
    assert not alone(name)["drew"]


@each_training
def test_five_steps_end_with_the_state_of_one_process(
    name: str, world: int, ranks: dict[int, list[Result]], alone: Alone
) -> None:
    """Weights, codebooks, running statistics and averages of both networks."""
    assert_same_state(ranks[world][0][name], alone(name), TOLERANCES[name])


@each_training
def test_all_processes_end_with_the_same_bits(name: str, world: int, ranks: dict[int, list[Result]]) -> None:
    for rank in ranks[world][1:]:
        assert_same_state(rank[name], ranks[world][0][name])


@each_training
def test_numbers_of_each_step_average_to_those_of_one_process(
    name: str, world: int, ranks: dict[int, list[Result]], alone: Alone
) -> None:
    """Losses and statistics, as a line of metrics.jsonl has them: those of an accumulated step are of its last micro-batch."""
    for step, expected in enumerate(alone(name)["numbers"]):
        found = {key: mean(rank[name]["numbers"][step][key] for rank in ranks[world]) for key in expected}
        names = [key for key in expected if key in LOSSES or "micro-batches" not in name]
        assert [found[key] for key in names] == pytest.approx([expected[key] for key in names], rel=1e-5, abs=1e-7), (
            step
        )


def test_discriminator_learns_in_the_trainings_that_are_compared(alone: Alone) -> None:
    assert [{"adversarial", "discriminator", "lecam"} <= step.keys() for step in alone("vq")["numbers"]] == [False] + [
        True
    ] * (STEPS - 1)
    assert ["r1" in step for step in alone("vq")["numbers"]] == [False, False, True, False, True]


@pytest.mark.parametrize("options", [{"norm": "group", "groups": 4}, {"norm": "none"}, {"norm": "batch"}, None])
def test_discriminators_judge_images_alone_but_for_batch_norm_and_stylegan(options: dict[str, Any] | None) -> None:
    """Those two see the other images of their process: several processes do not train them as one does."""
    assert set(DISCRIMINATORS) == {"patch", "stylegan"}
    kind, settings = (
        ("stylegan", {"width": 4, "levels": 2}) if options is None else ("patch", {"width": 8, "layers": 1})
    )
    network = DISCRIMINATORS.build(parse(DISCRIMINATORS.config(kind), {**settings, **(options or {})}), 3).double()
    images = torch.randn(8, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    same = torch.allclose(network(images), torch.cat([network(half) for half in images.chunk(2)]), rtol=0, atol=1e-9)
    assert same == (options is not None and options["norm"] != "batch")


@pytest.mark.parametrize("world", [2, 4])
def test_bf16_gives_all_processes_the_same_weights_and_about_the_losses_of_one(
    world: int, ranks: dict[int, list[Result]], alone: Alone
) -> None:
    (name,) = ROUNDED
    results = [rank[name] for rank in ranks[world]]
    for other in results[1:]:
        assert_same_state(other, results[0])
    found, one = (
        [mean(step["l1"] for step in steps) for steps in zip(*(each["numbers"] for each in runs))]
        for runs in (results, [alone(name)])
    )
    assert found == pytest.approx(one, rel=1e-2)
    rounded, exact = (alone(each)["numbers"][0]["codebook"] for each in (name, "checkpointing"))
    assert rounded != pytest.approx(exact, rel=1e-4)  # the networks were rounded


def test_one_process_resumes_what_two_began(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "stopped", tmp_path / "run")
    assert run(tmp_path / "run") == ""
    whole, resumed = (load_file(each / "model" / "model.safetensors") for each in (folder / "whole", tmp_path / "run"))
    assert resumed.keys() == whole.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-9)


def test_more_processes_than_wrote_the_checkpoint_all_refuse_it(ranks: dict[int, list[Result]]) -> None:
    """All of them: one that went on would wait for the others."""
    for rank in ranks[4]:
        assert "2 of 4 processes: resume with 2" in rank["resumed"]


def test_all_processes_refuse_a_locked_run(ranks: dict[int, list[Result]]) -> None:
    for rank in ranks[2]:
        assert "another training is writing here" in rank["locked"]


def test_all_processes_refuse_a_run_of_other_settings(ranks: dict[int, list[Result]]) -> None:
    for rank in ranks[4]:
        assert "training.seed is 1 there and 2 here" in rank["other settings"]
