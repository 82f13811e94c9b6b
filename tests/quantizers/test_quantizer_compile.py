"""A compiled layer compiles once, in its first step, and equals the eager one."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from every_quantizer import CONTINUOUS, IMAGE, KINDS, build

from arcvq import ArcVQ, Ball
from arcvq.quantizers import Arc, Entropy, Restart

# Each of these compiles the same code as another kind of the list.
ALIKE = ("vq", "rotation under samp", "emavq", "cvq random", "simvq", "sq", "sq of tokens", "gaussian of images")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compile_once(function: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    """The first call compiles; a later one that would compile again raises."""
    compiled, stance = torch.compile(function, backend=backend, fullgraph=True), "default"

    def call(*arguments: Any) -> Any:
        nonlocal stance
        with torch.compiler.set_stance(stance):
            result = compiled(*arguments)
        stance = "fail_on_recompile"
        return result

    return call


@pytest.mark.parametrize(
    ("backend", "arc"),
    [("eager", Arc(decay=0.05)), ("aot_eager", Arc(schedule="adaptive"))],
    ids=["eager backend, decaying weight", "aot_eager backend, adaptive weight"],
)
def test_compiled_layer_compiles_once_and_equals_eager(backend: str, arc: Arc) -> None:
    # A mild entropy term and rate: steep ones enlarge a last-bit difference over many steps of Adam.
    entropy = Entropy(temperature=1.0)
    eager = ArcVQ(4, 8, arc=arc, ball=Ball(alpha=0.01), entropy=entropy, restart=Restart(decay=0.5))
    twin = copy.deepcopy(eager)
    compiled = compile_once(twin, backend)
    optimizers = [torch.optim.Adam(q.parameters(), lr=0.01) for q in (eager, twin)]
    for step in range(40):
        latents = torch.randn(2, 4, 4, 4) + step / 20
        outputs = []
        for layer, module, optimizer in zip((eager, compiled), (eager, twin), optimizers):
            random = torch.get_rng_state()
            out = layer(latents)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            module.after_step(out)
            outputs.append(out)
            if module is eager:
                torch.set_rng_state(random)
        assert torch.equal(outputs[0].tokens, outputs[1].tokens)
        for name in ("ball_radius", "arc_weight", "perplexity"):
            torch.testing.assert_close(outputs[0].stats[name], outputs[1].stats[name], rtol=1e-6, atol=1e-7)
    assert twin.step.item() == 40
    assert outputs[1].stats["ball_radius"].item() == pytest.approx(torch.tensor(0.39).exp().item(), rel=1e-5)
    torch.testing.assert_close(twin.codebook, eager.codebook, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ALIKE])
def test_every_kind_compiles_once_and_equals_eager(kind: str) -> None:
    eager = build(kind, 4, 8)
    twin = copy.deepcopy(eager)
    shape = IMAGE if "of images" in kind else (4, 4)
    compiled, after_step = compile_once(twin), compile_once(twin.after_step)
    optimizers = [
        torch.optim.SGD(list(q.parameters()), lr=0.01) if list(q.parameters()) else None for q in (eager, twin)
    ]
    for step in range(5):
        latents = torch.randn(2, 4, *shape).requires_grad_()
        outputs = []
        for layer, update, optimizer in zip((eager, compiled), (eager.after_step, after_step), optimizers):
            torch.manual_seed(step)
            out = layer(latents)
            if optimizer is not None:
                optimizer.zero_grad()
                (out.loss + out.quantized.square().mean()).backward()
                optimizer.step()
            update(out)
            outputs.append(out)
        assert kind in CONTINUOUS or torch.equal(outputs[0].tokens, outputs[1].tokens)
        torch.testing.assert_close(outputs[0].quantized, outputs[1].quantized, rtol=1e-4, atol=1e-5)
    assert twin.step.item() == 5
    torch.testing.assert_close(twin.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    # In eager mode this raises.
    latents.data[0, 1, 0, 0], latents.data[1, 3, 1, 2] = float("nan"), float("inf")
    assert outputs[1].stats["nonfinite"].item() == 0
    assert compiled(latents).stats["nonfinite"].item() == 2


def test_compiled_after_step_equals_eager() -> None:
    quantizer = ArcVQ(4, 8, ball=Ball(alpha=0.5), restart=Restart(decay=0.5, threshold=0.5))
    twin = copy.deepcopy(quantizer)
    out = quantizer(torch.randn(30, 4))
    after_step = compile_once(twin.after_step)
    for _ in range(5):
        torch.manual_seed(3)
        quantizer.after_step(out)
        torch.manual_seed(3)
        after_step(out)
    assert twin.step.item() == 5
    torch.testing.assert_close(twin.codebook, quantizer.codebook)


def test_compiled_decode_equals_eager() -> None:
    quantizer = ArcVQ(4, 8, heads=2)
    tokens = torch.randint(-1, 8, (3, 5, 2))
    decode = torch.compile(quantizer.decode, backend="eager", fullgraph=True)
    assert torch.equal(decode(tokens), quantizer.decode(tokens))
