"""Parts of one's own: registered by a Python file, picked by `kind` or `task`, trained and measured by the command line."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from arcvq import ArcvqError
from arcvq.cli import main
from arcvq.nets.features import FEATURES
from arcvq.quantizers import QUANTIZERS
from arcvq.systems import import_parts, load_config, parse_config, register, train
from arcvq.systems.parsing import TASKS

QUANTIZER = """
from dataclasses import dataclass

from arcvq.quantizers import VQ, VQConfig
from arcvq.systems import register


@dataclass(kw_only=True)
class PlainConfig(VQConfig):
    factor: float = 0.5


class Plain(VQ):
    Config = PlainConfig


register("quantizer", "plain", Plain)
"""
TASK = """
from dataclasses import dataclass

import torch
from torch import nn

from arcvq.data import TensorSource
from arcvq.storage import write_json
from arcvq.systems import RunConfig, register
from arcvq.tasks import Task, sum_of_terms


class Regression(Task):
    def __init__(self):
        super().__init__({"line": nn.Linear(3, 1)})

    def loss(self, name, network, batch, shared, phase):
        return sum_of_terms({"squares": (network(batch["x"]) - batch["y"]).square().mean()})

    def save(self, folder, notes):
        write_json(folder / "notes.json", notes)


@dataclass(kw_only=True)
class LineConfig(RunConfig):
    task: str = "line"
    samples: int = 16

    def load(self):
        x = torch.ones(self.samples, 3)
        source = TensorSource({"x": x, "y": x.sum(dim=1, keepdim=True)}, self.data.batch_size)
        return source, source

    def build(self, source):
        return Regression()


register("task", "line", LineConfig)
"""


@pytest.fixture(autouse=True)
def restored_registries() -> Iterator[None]:
    """Undo what a test registers."""
    kinds, tasks, features, modules = dict(QUANTIZERS._kinds), dict(TASKS), dict(FEATURES), set(sys.modules)
    yield
    FEATURES.clear()
    FEATURES.update(features)
    QUANTIZERS._kinds = kinds
    TASKS.clear()
    TASKS.update(tasks)
    for name in set(sys.modules) - modules:
        if name in ("quantizer_part", "task_part"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """`write("mine.py", text)` → its path."""

    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_registered_kind_is_picked_by_a_configuration(write: Callable[[str, str], Path]) -> None:
    import_parts(write("quantizer_part.py", QUANTIZER))
    config: Any = parse_config({"task": "tokenizer", "quantizer": {"kind": "plain", "factor": 2}})
    assert config.quantizer.factor == 2.0
    assert type(config.build_tokenizer(1, (8, 8), 1).quantizer).__name__ == "Plain"


@pytest.mark.parametrize(
    "data", [{"task": "line"}, {"task": "tokenizer", "quantizer": {"kind": "plain"}}], ids=["task", "kind"]
)
def test_unregistered_part_is_refused_with_what_to_do(data: dict[str, Any]) -> None:
    with pytest.raises(ArcvqError, match=r"unknown .*--import"):
        parse_config(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (\n", "line 2: SyntaxError"),
        ("import math\n\nmath.sqrt('two')\n", "line 3: TypeError"),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError"),
        ("from arcvq.systems import register\nregister('quantiser', 'mine', int)\n", "did you mean quantizer"),
    ],
)
def test_file_that_fails_is_refused_with_its_line(text: str, message: str, write: Callable[[str, str], Path]) -> None:
    with pytest.raises(ArcvqError) as raised:
        import_parts(write("quantizer_part.py", text))
    assert "quantizer_part.py" in str(raised.value)
    assert message in str(raised.value)


def test_task_that_is_no_run_configuration_is_refused() -> None:
    with pytest.raises(ArcvqError, match="derives from RunConfig"):
        register("task", "mine", dict)


def test_registered_features_become_the_codebook(tiny_settings: Callable[..., list[str]], tmp_path: Path) -> None:
    class Corners(nn.Module):
        feature_dim = 4

        def forward(self, images: Tensor) -> Tensor:
            return images[:, 0, :2, :2].reshape(-1, 4, 1, 1)

    register("features", "corners", lambda device: Corners())
    with pytest.raises(ArcvqError, match="there are features 'corners' already"):
        register("features", "corners", lambda device: Corners())
    config = load_config(
        "sample/vq-vae",
        tiny_settings({"quantizer": "{kind: projected, features: corners, feature_dim: 4, codebook_size: 8}"}),
    )
    basis = load_file(train(config, tmp_path / "run", quiet=True) / "model.safetensors")["quantizer.basis"]
    assert basis.shape == (8, 4)
    assert (basis < -0.9).all()  # the corners of the sample's images are black


def test_tokenizer_with_a_registered_quantizer_is_trained_and_measured(
    write: Callable[[str, str], Path],
    tmp_path: Path,
    tiny_settings: Callable[..., list[str]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    part, run = str(write("quantizer_part.py", QUANTIZER)), str(tmp_path / "run")
    recipe = str(write("mine.yaml", yaml.safe_dump({"task": "tokenizer", "quantizer": {"kind": "plain"}})))
    assert main(["train", recipe, "--import", part, *tiny_settings(), "--out", run, "--quiet"]) == 0
    assert main(["evaluate", run, "--limit", "8", "--metrics", "psnr"]) == 0
    assert main(["report", run, "--out", str(tmp_path / "report")]) == 0
    capfd.readouterr()
    assert ">None<" not in (tmp_path / "report" / "index.html").read_text()
    del QUANTIZERS._kinds["plain"]
    assert main(["evaluate", run, "--limit", "8", "--metrics", "psnr"]) == 2
    assert "--import" in capfd.readouterr().err


def test_run_of_another_task_is_trained_and_not_measured(
    write: Callable[[str, str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    part, run = str(write("task_part.py", TASK)), str(tmp_path / "run")
    recipe = str(write("line.yaml", "task: line\ndata: {batch_size: 8}\ntraining: {steps: 3}\n"))
    assert main(["train", recipe, "--import", part, "--samples", "24", "--out", run, "--quiet"]) == 0
    assert capfd.readouterr().out == f"{run}: trained\n"
    assert main(["evaluate", run]) == 2
    assert "run of the task line, and no tokenizer" in capfd.readouterr().err
    assert main(["encode", run, run, "--out", str(tmp_path / "tokens.npz")]) == 2
    assert "holds no model" in capfd.readouterr().err
