"""A tokenizer trained together with a discriminator, and one that begins without its quantizer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from arcvq.errors import ArcvqError, Stopped
from arcvq.functional.adversarial import discriminator_loss, generator_loss
from arcvq.systems import load_config
from arcvq.systems.train import make_trainer
from arcvq.tasks import AdversarialTask, Phase
from arcvq.training import Trainer

SETTINGS: dict[str, Any] = {
    "task": "tokenizer",
    "data": {"name": "sample", "batch_size": 8, "limit": 32},
    "autoencoder": {
        "kind": "vqgan",
        "width": 8,
        "groups": 4,
        "multipliers": [1, 2, 2],
        "attention": [4],
        "latent_dim": 8,
    },
    "quantizer": {"kind": "arcvq", "codebook_size": 32},
    "objective": {"kind": "reconstruction", "reconstruction": "l1", "normalise": "none"},
    "adversarial": {
        "discriminator": {"kind": "patch", "layers": 1, "width": 8, "norm": "group", "groups": 4},
        "start": 4,
        "lecam": 0.01,
        "r1": 10.0,
        "r1_every": 2,
    },
    "training": {
        "steps": 10,
        "learning_rate": 1e-3,
        "evaluations": 1,
        "evaluation_images": 16,
        "log_every": 1,
        "device": "cpu",
    },
}


def write_yaml(folder: Path, settings: dict[str, Any]) -> Path:
    path = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return path


def trainer_of(folder: Path, *arguments: str, settings: dict[str, Any] = SETTINGS) -> Trainer:
    config = load_config(str(write_yaml(folder, settings)), list(arguments))
    return make_trainer(config, folder / "run", quiet=True)


def task_of(trainer: Trainer) -> AdversarialTask:
    assert isinstance(trainer.task, AdversarialTask)
    return trainer.task


def lines(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "samples_per_second")} for line in read
    ]


def train_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if line["kind"] == "train"]


def one_step(task: AdversarialTask, phase: Phase) -> tuple[dict[str, Any], torch.Tensor, Any]:
    """The gradients of all tokenizer parameters by the task's loss; the images; its output."""
    tokenizer = task.tokenizer.double()
    task.discriminator.double().requires_grad_(False)
    pixels = torch.randint(256, (4, 1, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    output = task.loss("tokenizer", tokenizer, {"image": pixels}, {}, phase)
    gradients = torch.autograd.grad(output.loss, list(tokenizer.parameters()), allow_unused=True)
    names = [name for name, _ in tokenizer.named_parameters()]
    return dict(zip(names, gradients)), pixels.float() / 127.5 - 1, output


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_gradients_equal_those_of_the_joint_loss(adaptive: str, tmp_path: Path) -> None:
    task = task_of(trainer_of(tmp_path, f"--adversarial.adaptive={adaptive}"))
    gradients, images, output = one_step(task, Phase(adversarial=True))
    tokenizer = task.tokenizer
    decoded, quantized = tokenizer(images)
    other = (decoded.images - images).abs().mean()
    fooling = generator_loss(task.discriminator(decoded.images))
    weight = torch.tensor(0.8)
    if adaptive == "true":
        last = tokenizer.autoencoder.last_layer
        norms = [torch.autograd.grad(term, last, retain_graph=True)[0].norm() for term in (other, fooling)]
        weight = 0.8 * norms[0] / (norms[1] + 1e-4)
        assert output.stats["reconstruction_gradient"].item() == pytest.approx(norms[0].item(), rel=1e-4)
        assert output.stats["adversarial_gradient"].item() == pytest.approx(norms[1].item(), rel=1e-4)
    assert output.stats["adversarial_weight"].item() == pytest.approx(weight.item(), rel=1e-4)
    assert output.terms["adversarial"].item() == pytest.approx((weight * fooling).item(), rel=1e-4)
    joint = other + weight.detach() * fooling + quantized.loss
    expected = torch.autograd.grad(joint, list(tokenizer.parameters()))
    for (name, gradient), reference in zip(gradients.items(), expected):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-8, msg=lambda text, n=name: f"{n}: {text}")


def test_weight_is_the_factor_when_both_gradients_are_equally_long(tmp_path: Path) -> None:
    task = task_of(trainer_of(tmp_path))
    task.objective = lambda images, *_: {"same": generator_loss(task.discriminator(images))}  # type: ignore[assignment]
    _, _, output = one_step(task, Phase(adversarial=True))
    norm = output.stats["adversarial_gradient"].item()
    assert output.stats["reconstruction_gradient"].item() == pytest.approx(norm)
    assert output.stats["adversarial_weight"].item() == pytest.approx(0.8 * norm / (norm + 1e-4))


def test_discriminator_joins_at_its_start(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    before = {name: value.clone() for name, value in task_of(trainer).discriminator.state_dict().items()}
    with pytest.raises(Stopped):
        trainer.run(stop_after=4)
    after = task_of(trainer).discriminator.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    trainer_of(tmp_path).run()
    for name in ("adversarial", "discriminator", "lecam", "real_logits", "adversarial_weight"):
        assert [name in line for line in train_lines(tmp_path)] == [False] * 4 + [True] * 6, name
    assert ["r1" in line for line in train_lines(tmp_path)] == [False] * 5 + [True, False, True, False, True]
    assert all("tokenizer_loss" in line for line in train_lines(tmp_path))


def test_start_below_one_is_a_share_of_the_training(tmp_path: Path) -> None:
    assert task_of(trainer_of(tmp_path, "--adversarial.start", "0.3")).begins == 3


def test_ramp_raises_the_weight_linearly(tmp_path: Path) -> None:
    trainer_of(tmp_path, "--adversarial.adaptive=false", "--adversarial.ramp_steps=4").run()
    weights = [line["adversarial_weight"] for line in train_lines(tmp_path) if "adversarial_weight" in line]
    assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_lecam_averages_follow_the_logits(tmp_path: Path) -> None:
    discriminator = task_of(trainer_of(tmp_path)).discriminator
    for _ in range(2):
        # Two micro-batches: 1 logit of 1, 3 logits of 3; their reconstructions have −2.
        discriminator.after_step([torch.tensor([1.0, -2.0, 1.0]), torch.tensor([9.0, -6.0, 3.0])])
    assert discriminator.real_average.item() == pytest.approx(2.5 * (1 - 0.999**2), rel=1e-4)
    assert discriminator.fake_average.item() == pytest.approx(-2.0 * (1 - 0.999**2), rel=1e-4)
    assert int(discriminator.step) == 2


def test_discriminator_loss_sees_images_and_detached_reconstructions(tmp_path: Path) -> None:
    task = task_of(trainer_of(tmp_path, "--adversarial.lecam=0"))
    pixels = torch.randint(256, (4, 1, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    fake = torch.rand(4, 1, 16, 16) * 2 - 1
    network = task.discriminator
    output = task.loss("discriminator", network, {"image": pixels}, {"reconstruction": fake}, Phase(adversarial=True))
    expected = discriminator_loss(network(pixels.float() / 127.5 - 1), network(fake))
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    shared = task.loss("tokenizer", task.tokenizer, {"image": pixels}, {}, Phase(adversarial=True)).shared
    assert not shared["reconstruction"].requires_grad


@pytest.mark.parametrize("ema", ["null", "0.9"])
def test_stopped_training_goes_on_to_the_same_bits(ema: str, tmp_path: Path) -> None:
    arguments = [
        f"--training.ema={ema}",
        "--continuous_first",
        "2",
        "--quantizer.kind",
        "vq",
        "--quantizer.codebook_size=32",
    ]
    arguments += ["--quantizer.init=kmeans"] if ema == "null" else []
    trainer_of(tmp_path / "whole", *arguments).run()
    for stop in (1, 2, 3, 5, 6, 9):  # in each phase, and where one begins
        with pytest.raises(Stopped):
            trainer_of(tmp_path / "stopped", *arguments).run(stop_after=stop)
    trainer_of(tmp_path / "stopped", *arguments).run()
    assert lines(tmp_path / "whole") == lines(tmp_path / "stopped")
    whole, stopped = (
        load_file(tmp_path / name / "run" / "model" / "model.safetensors") for name in ("whole", "stopped")
    )
    assert all(torch.equal(tensor, stopped[name]) for name, tensor in whole.items())


def test_two_processes_give_the_curve_of_one(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "two", SETTINGS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "arcvq"]
    command = [
        *launch,
        "train",
        str(path),
        "--continuous_first",
        "2",
        "--quiet",
        "--out",
        str(tmp_path / "two" / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    trainer_of(tmp_path / "one", "--continuous_first", "2").run()
    for one, two in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert one.pop("kind") == two.pop("kind")
        assert two.pop("norm_quantiles", []) == pytest.approx(one.pop("norm_quantiles", []))
        assert two == pytest.approx(one, rel=2e-3, abs=1e-5)


def test_micro_batches_give_the_curve_of_the_whole_batch(tmp_path: Path) -> None:
    arguments = ["--adversarial.adaptive=false", "--quantizer.kind=vq", "--quantizer.codebook_size=32"]
    trainer_of(tmp_path / "whole", *arguments).run()
    trainer_of(tmp_path / "parts", *arguments, "--training.accumulate=2").run()
    for one, two in zip(train_lines(tmp_path / "whole"), train_lines(tmp_path / "parts"), strict=True):
        names = {"reconstruction", "adversarial", "tokenizer_loss", "discriminator_loss"} & one.keys()
        assert {name: one[name] for name in names} == pytest.approx(
            {name: two[name] for name in names}, rel=1e-3, abs=1e-5
        )


def test_training_may_start_from_another_run_with_its_discriminator(tmp_path: Path) -> None:
    trainer_of(tmp_path / "first").run()
    trainer = trainer_of(tmp_path / "second", "--training.init_from", str(tmp_path / "first" / "run"))
    trainer.begin()
    trained = load_file(
        next((tmp_path / "first" / "run" / "checkpoints").glob("step-*10")) / "discriminator.safetensors"
    )
    own = task_of(trainer).discriminator.state_dict()
    assert all(torch.equal(own[name], value) for name, value in trained.items() if name != "step")
    assert int(own["step"]) == 0


def test_quantizer_is_off_in_a_continuous_start(tmp_path: Path) -> None:
    arguments = (
        "--continuous_first",
        "0.4",
        "--quantizer.kind=vq",
        "--quantizer.init=kmeans",
        "--quantizer.codebook_size=32",
    )
    trainer = trainer_of(tmp_path, *arguments)
    codes = trainer.task.networks["tokenizer"].quantizer.codebook.detach().clone()
    with pytest.raises(Stopped):
        trainer.run(stop_after=4)
    quantizer = trainer.task.networks["tokenizer"].quantizer
    assert torch.equal(quantizer.codebook, codes)
    assert int(quantizer.step) == 0
    assert not bool(quantizer.initialized)
    trainer = trainer_of(tmp_path, *arguments)
    trainer.run()
    quantizer = trainer.task.networks["tokenizer"].quantizer
    assert bool(quantizer.initialized)
    assert int(quantizer.step) == 6
    assert quantizer.config.total_steps == 6
    assert ["commitment" in line for line in train_lines(tmp_path)] == [False] * 4 + [True] * 6
    evaluated = [line for line in lines(tmp_path) if line["kind"] == "eval"]
    assert ["usage" in line for line in evaluated] == [line["step"] > 4 for line in evaluated]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--training.accumulate=2"], "accumulate"),
        (["--training.precision=fp16"], "bf16"),
        (["--training.compile=true"], "compile"),
        (["--adversarial.weight=-1"], "weight"),
        (["--adversarial.discriminator.kind=nothing"], "patch"),
        (["--adversarial.loss=wasserstein"], "hinge, logistic"),
        (["--continuous_first=10"], "continuous_first"),
        (["--continuous_first=-1"], "continuous_first"),
        (["--continuous_first=2", "--training.select=test-best"], "set training.select to last"),
        (["--adversarial.discriminator.layers=4"], r"28×28: set adversarial\.discriminator\.layers to less"),
        (
            ['--adversarial.discriminator={"kind": "stylegan", "levels": 3}'],
            r"28×28: set adversarial\.discriminator\.levels to less",
        ),
        (["--continuous_first=2", "--training.ema=0.9", "--quantizer.kind=vq", "--quantizer.init=kmeans"], "ema"),
    ],
)
def test_wrong_settings_are_refused(arguments: list[str], fact: str, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=fact):
        trainer_of(tmp_path, *arguments)
    assert not (tmp_path / "run").exists()
