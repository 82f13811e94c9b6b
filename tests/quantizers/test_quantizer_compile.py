"""A compiled layer compiles once and behaves like the eager one."""

import copy
from collections.abc import Iterator

import pytest
import torch
from every_quantizer import CONTINUOUS, IMAGE, KINDS, ONE_OF_EACH, build
from torch._dynamo.testing import CompileCounterWithBackend

from arcvq import ArcVQ, Ball
from arcvq.quantizers import Arc, Entropy, Restart

# What others here compile already, in other combinations.
ALIKE = ("rotation under samp", "sq of tokens", "gaussian of images")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("backend", "arc"),
    [("eager", Arc(decay=0.05)), ("aot_eager", Arc(schedule="adaptive"))],
    ids=["eager backend, decaying weight", "aot_eager backend, adaptive weight"],
)
def test_one_compilation_serves_a_hundred_steps_and_equals_eager(backend: str, arc: Arc) -> None:
    # A mild entropy term and rate: steep ones blow a last-bit difference up over a hundred steps of Adam.
    entropy = Entropy(temperature=1.0)
    eager = ArcVQ(4, 8, arc=arc, ball=Ball(alpha=0.01), entropy=entropy, restart=Restart(decay=0.5))
    twin = copy.deepcopy(eager)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(twin, backend=counter, fullgraph=True)
    optimizers = [torch.optim.Adam(q.parameters(), lr=0.01) for q in (eager, twin)]
    for step in range(100):
        latents = torch.randn(2, 4, 4, 4) + step / 50
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
    assert counter.frame_count == 1
    assert twin.step.item() == 100
    assert outputs[1].stats["ball_radius"].item() == pytest.approx(torch.tensor(0.99).exp().item(), rel=1e-5)
    torch.testing.assert_close(twin.codebook, eager.codebook, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ALIKE])
def test_every_kind_compiles_once_whole_with_its_update_and_equals_eager(kind: str) -> None:
    eager = build(kind, 4, 8)
    twin = copy.deepcopy(eager)
    shape = IMAGE if "of images" in kind else (4, 4)
    forward, update = CompileCounterWithBackend("aot_eager"), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twin, backend=forward, fullgraph=True)
    after_step = torch.compile(twin.after_step, backend=update, fullgraph=True)
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
    assert (forward.frame_count, update.frame_count) == (1, 1)
    assert twin.step.item() == 5
    torch.testing.assert_close(twin.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


def test_update_compiles_too_and_reads_nothing_from_the_device() -> None:
    quantizer = ArcVQ(4, 8, ball=Ball(alpha=0.5), restart=Restart(decay=0.5, threshold=0.5))
    twin = copy.deepcopy(quantizer)
    out = quantizer(torch.randn(30, 4))
    counter = CompileCounterWithBackend("aot_eager")
    after_step = torch.compile(twin.after_step, backend=counter, fullgraph=True)
    for _ in range(5):
        torch.manual_seed(3)
        quantizer.after_step(out)
        torch.manual_seed(3)
        after_step(out)
    assert counter.frame_count == 1
    assert twin.step.item() == 5
    torch.testing.assert_close(twin.codebook, quantizer.codebook)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_compiled_the_count_of_nonfinite_latents_is_told_and_nothing_raises(kind: str) -> None:
    compiled = torch.compile(build(kind, 4, 8), backend="eager", fullgraph=True)
    latents = torch.randn(2, 4, *IMAGE)
    assert compiled(latents).stats["nonfinite"].item() == 0
    latents[0, 1, 2, 0] = float("nan")
    latents[1, 3, 0, 0] = float("inf")
    assert compiled(latents).stats["nonfinite"].item() == 2


def test_compiled_decoding_equals_eager() -> None:
    quantizer = ArcVQ(4, 8, heads=2)
    tokens = torch.randint(-1, 8, (3, 5, 2))
    decode = torch.compile(quantizer.decode, backend="eager", fullgraph=True)
    assert torch.equal(decode(tokens), quantizer.decode(tokens))
