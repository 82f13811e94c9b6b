"""Training without updates of the quantizer warns once, and nothing else warns."""

import pickle
import warnings
from copy import deepcopy

import pytest
import torch
from torch import nn

from arcvq import VQ, Arc, ArcVQ, Ball
from arcvq.compat import TamingQuantizer
from arcvq.quantizers import CVQ, EMAVQ, FSQ, HVQ, SQ, Quantizer, Restart

LATENTS = torch.randn(2, 8, 2, 2)


def train_steps(quantizer: nn.Module, steps: int, micro_batches: int = 1, update: bool = False) -> list[str]:
    """Train in a plain eager loop. Returns the warnings."""
    encoder = nn.Conv2d(8, 8, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *quantizer.parameters()], lr=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            outputs = []
            for _ in range(micro_batches):
                outputs.append(quantizer(encoder(LATENTS)))
                loss = outputs[-1][1] if isinstance(quantizer, TamingQuantizer) else outputs[-1].loss
                (loss + encoder(LATENTS).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if update:
                quantizer.after_step(*outputs)
    return [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


@pytest.mark.parametrize(
    "quantizer",
    [
        ArcVQ(8, 16),
        VQ(8, 16, ball=Ball()),
        VQ(8, 16, arc=Arc()),
        VQ(8, 16, restart=Restart()),
        EMAVQ(8, 16),
        CVQ(8, 16),
        SQ(8, 16),
        HVQ(8, 16),
    ],
    ids=["ArcVQ", "ball", "arc", "restart", "EMAVQ", "CVQ", "SQ", "HVQ"],
)
def test_training_without_updates_warns_once(quantizer: Quantizer) -> None:
    (warning,) = train_steps(quantizer, steps=60)
    assert "after_step" in warning
    assert "attach" in warning


@pytest.mark.parametrize("micro_batches", [1, 64])
def test_training_with_after_step_does_not_warn(micro_batches: int) -> None:
    assert train_steps(ArcVQ(8, 16), 192 // micro_batches, micro_batches, update=True) == []


def test_micro_batches_without_optimizer_step_do_not_warn() -> None:
    assert train_steps(ArcVQ(8, 16), steps=1, micro_batches=128) == []


def test_attached_quantizer_does_not_warn() -> None:
    quantizer = ArcVQ(8, 16)
    quantizer.attach(None)
    assert train_steps(quantizer, 140) == []


def test_compat_layers_do_not_warn() -> None:
    assert train_steps(TamingQuantizer(ArcVQ(8, 16)), 140) == []


@pytest.mark.parametrize("quantizer", [VQ(8, 16), FSQ(8, 512)], ids=["plain VQ", "FSQ"])
def test_quantizer_without_updates_does_not_warn(quantizer: Quantizer) -> None:
    assert train_steps(quantizer, 140) == []


def test_evaluation_does_not_warn() -> None:
    quantizer = ArcVQ(8, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(140):
            with torch.no_grad():
                quantizer(LATENTS)
        quantizer.eval()
        for _ in range(140):
            quantizer(LATENTS)


def test_compiled_forward_does_not_warn_and_compiles_once() -> None:
    quantizer, frames = ArcVQ(8, 16), 0

    def count(graph, example_inputs):
        nonlocal frames
        frames += 1
        return graph.forward

    compiled = torch.compile(quantizer, backend=count, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(140):
            compiled(LATENTS)
    assert frames == 1


def test_compiled_after_step_is_update_and_compiles_once() -> None:
    quantizer, frames = ArcVQ(8, 16), 0

    def count(graph, example_inputs):
        nonlocal frames
        frames += 1
        return graph.forward

    after_step = torch.compile(quantizer.after_step, backend=count, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(140):
            after_step(quantizer(LATENTS))
    assert frames == 1
    assert int(quantizer.step) == 140


def test_copies_and_pickles_keep_counts() -> None:
    quantizer = ArcVQ(8, 16)
    assert train_steps(quantizer, 15) == []
    for copy in (deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert len(train_steps(copy, 15)) == 1
