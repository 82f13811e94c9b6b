"""Two processes train what one trains, on the same global batches."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from run_records import assert_nothing_half_written, assert_same_run, last_checkpoint, read_lines
from safetensors.torch import load_file

from arcvq.systems import TokenizerConfig, train

MakeConfig = Callable[..., TokenizerConfig]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]

# The last batch of an epoch has 5 images: 2 for one process and 3 for the other.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vq-vae, uneven last batch": ("vq-vae", {"data.limit": 37}),
    "arcvq-vae, uneven last batch": ("arcvq-vae", {"data.limit": 37}),
    # One process has no image of the last batch.
    "arcvq-vae, last batch of one image": ("arcvq-vae", {"data.limit": 33}),
    "vq-vae, micro-batches": ("vq-vae", {"data.limit": 37, "training.accumulate": 3}),
    "arcvq-vae, stages": (
        "arcvq-vae",
        {
            "data.limit": 37,
            "training.steps": None,
            "training.stages": "[{train: [autoencoder.encoder, quantizer], steps: 3}, "
            "{train: [autoencoder.decoder], steps: 3}]",
        },
    ),
    "vq-vae, kmeans and clipping": (
        "vq-vae",
        {"data.limit": 37, "quantizer.init": "kmeans", "training.gradient_clip": 0.5},
    ),
    "vq-vae-ema, micro-batches": ("vq-vae-ema", {"data.limit": 37, "training.accumulate": 3}),
    "simvq, uneven last batch": ("simvq-samp", {"data.limit": 37}),
    "vq-vae, likelihood": ("vq-vae", {"data.limit": 37, "objective.reconstruction": "likelihood"}),
    # With one code there is nothing to draw.
    "hvq-vae, one code": ("hvq-vae", {"data.limit": 37, "quantizer.codebook_size": 1}),
}
# Its draws are random, so no other run is the same.
STACK: tuple[str, dict[str, Any]] = ("hvq-vae", {"data.limit": 37})
# Its codes lie on latents, where the last bit of a distance decides: only the first step is the same.
ANCHORED: tuple[str, dict[str, Any]] = ("cvq-vae", {"data.limit": 13, "training.steps": 1})


@pytest.fixture(scope="module")
def two_process_runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Callable[..., list[str]]) -> Path:
    """All those trainings by two processes, and one that was stopped, lost its newest checkpoint, and went on."""
    folder = tmp_path_factory.mktemp("two")
    jobs: list[dict[str, Any]] = [
        {"preset": f"sample/{preset}", "arguments": tiny_settings(changes), "out": str(folder / name)}
        for name, (preset, changes) in CASES.items()
    ]
    for preset, changes in (STACK, ANCHORED):
        jobs.append({"preset": f"sample/{preset}", "arguments": tiny_settings(changes), "out": str(folder / preset)})
    preset, changes = CASES["arcvq-vae, uneven last batch"]
    again = {"preset": f"sample/{preset}", "arguments": tiny_settings(changes), "out": str(folder / "stopped")}
    torn = str(folder / "stopped" / "checkpoints" / "step-00000004" / "state.json")
    jobs += [{**again, "stop_after": 2}, {**again, "stop_after": 4}, {**again, "remove": torn}]
    jobs.append(skipping_job(folder, tiny_settings))
    run_in_two_processes(jobs, folder)
    return folder


@pytest.fixture(scope="module")
def one_process_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeConfig) -> Callable[[str], Path]:
    """The same training by one process, made when a test first asks for it."""
    folder = tmp_path_factory.mktemp("one")

    def run_of(case: str) -> Path:
        if not (folder / case).exists():
            train(tiny_system(*CASES[case]), folder / case, quiet=True)
        return folder / case

    return run_of


def skipping_job(folder: Path, tiny_settings: Callable[..., list[str]]) -> dict[str, Any]:
    """A training on nine image files, each read when a batch needs it, of which two are damaged."""
    for index in range(9):
        path = folder / "photos" / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (28, 28), 20 * index).save(path)
        if index in (3, 4):
            path.write_bytes(path.read_bytes()[:-20])
    changes = {"data.name": f"folder:{folder / 'photos'}", "data.holdout_every": 9, "data.on_error": "skip"}
    arguments = tiny_settings({**changes, "data.batch_size": 4, "data.limit": None, "data.memory": 0})
    return {"preset": "sample/vq-vae", "arguments": arguments, "out": str(folder / "skipping")}


def run_in_two_processes(jobs: list[dict[str, Any]], folder: Path) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = str(Path(__file__).with_name("two_processes.py"))
    done = subprocess.run([*LAUNCH, script, str(folder / "jobs.json")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def assert_close_weights(one: Path, two: Path) -> None:
    left, right = (load_file(run / "model" / "model.safetensors") for run in (one, two))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        difference = (tensor.double() - right[name].double()).abs()
        # Six steps of Adam move a weight by up to 6e-3. The two differ in the order of sums: a few weights with gradients
        # near zero feel that, the rest agree to seven digits.
        assert difference.mean() < 2e-6, name
        assert difference.max() < 2e-4, name


@pytest.mark.parametrize("case", CASES)
def test_two_processes_end_with_the_weights_of_one(
    case: str, two_process_runs: Path, one_process_run: Callable[[str], Path]
) -> None:
    assert_close_weights(one_process_run(case), two_process_runs / case)
    record = json.loads((two_process_runs / case / "training.json").read_text())
    assert record["processes"] == 2


@pytest.mark.parametrize("case", CASES)
def test_two_processes_log_the_global_losses_of_one(
    case: str, two_process_runs: Path, one_process_run: Callable[[str], Path]
) -> None:
    one, two = read_lines(one_process_run(case)), read_lines(two_process_runs / case)
    assert [(line["kind"], line["step"]) for line in two] == [(line["kind"], line["step"]) for line in one]
    for line, other in zip(one, two):
        for name in ("reconstruction", "codebook", "commitment", "arc", "loss", "mse", "perplexity"):
            # The perplexity of a training line is that of the last micro-batch.
            if name in line and not (name == "perplexity" and "micro" in case):
                assert other[name] == pytest.approx(line[name], rel=1e-4), (line["step"], name)


def test_stack_standardizes_by_the_latents_of_all_processes(two_process_runs: Path) -> None:
    weights = load_file(two_process_runs / "hvq-vae" / "model" / "model.safetensors")
    # Three batches of the upper level: 16, 16 and 5 images.
    assert int(weights["lower.0.standardize.count"]) == 37 * 14 * 14
    assert (int(weights["lower.0.quantizer.step"]), int(weights["quantizer.step"])) == (3, 3)


def test_each_process_draws_for_its_own_images(two_process_runs: Path) -> None:
    checkpoint = last_checkpoint(two_process_runs / "hvq-vae")
    seeds = []
    for rank in range(2):
        generator = torch.Generator()
        generator.set_state(load_file(checkpoint / f"random-{rank}.safetensors")["cpu"])
        seeds.append(generator.initial_seed())
    assert seeds == [1, 2]


def test_two_processes_move_codes_onto_the_latents_of_both(
    two_process_runs: Path, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    preset, changes = ANCHORED
    train(tiny_system(preset, changes), tmp_path / "one", quiet=True)
    assert_close_weights(tmp_path / "one", two_process_runs / preset)


def test_two_stopped_processes_resume_to_the_same_bits(two_process_runs: Path) -> None:
    assert_same_run(two_process_runs / "stopped", two_process_runs / "arcvq-vae, uneven last batch")
    newest = max((two_process_runs / "stopped" / "checkpoints").iterdir())
    assert sorted(path.name for path in newest.glob("random-*")) == ["random-0.safetensors", "random-1.safetensors"]


def test_interruption_stops_all_processes_after_the_same_step(
    tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    settings = tiny_settings({"training.steps": 2000, "training.checkpoints": 0, "training.log_every": 5})
    command = [*LAUNCH, "-m", "arcvq", "train", "sample/arcvq-vae", "--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not (tmp_path / "run" / "codebooks" / "step-00000016.safetensors").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode != 0
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    state = json.loads((checkpoint / "state.json").read_text())
    assert 16 <= state["position"]["step"] < 2000
    assert (checkpoint / "random-1.safetensors").is_file()
    assert_nothing_half_written(tmp_path / "run")


def test_images_that_any_process_skips_are_listed(two_process_runs: Path) -> None:
    lines = (two_process_runs / "skipping" / "skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["image"] for line in lines] == [
        str(two_process_runs / "photos" / f"{i}.jpg") for i in (3, 4)
    ]
    assert json.loads((two_process_runs / "skipping" / "training.json").read_text())["skipped_images"] == 2
