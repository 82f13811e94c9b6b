"""The contract, kept by every registered quantizer: layouts, purity, precision, compilation, no host reads, files."""

import copy
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from arcvq import ArcvqError, Quantizer
from arcvq.config import to_dict
from arcvq.quantizers import QUANTIZERS, base, build_quantizer

DIM, SIZE = 8, 16
# name → variants; what is not named here is tried as it comes, with SIZE codes
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "sq": {type: {"codebook_size": SIZE, "type": type, "positions": 15} for type in ("I", "II", "III", "IV")},
    "fsq": {"eights": {"codebook_size": SIZE}, "levels": {"codebook_size": 15, "levels": [5, 3], "heads": 2}},
    "lfq": {"plain": {"codebook_size": SIZE}, "heads": {"codebook_size": SIZE, "heads": 2}},
    "gaussian": {"each position": {"latent_dim": 5}, "each image": {"latent_dim": 5, "positions": 15}},
    "vmf": {"each position": {"latent_dim": 5}, "implicit": {"latent_dim": 5, "gradient": "implicit", "positions": 15}},
}
CASES = {
    f"{name}, {variant}": (name, options)
    for name in QUANTIZERS
    for variant, options in VARIANTS.get(name, {"plain": {"codebook_size": SIZE}}).items()
}
# In training these draw at random.
STOCHASTIC = ("sq", "gaussian", "vmf")
CONTINUOUS = ("gaussian", "vmf")


@pytest.fixture(params=CASES, name="case")
def _case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def build(case: str, **more: Any) -> Quantizer:
    name, options = CASES[case]
    torch.manual_seed(1)
    return build_quantizer(name, DIM, {**options, **more})


def images(batch: int = 4) -> Tensor:
    return torch.randn(batch, DIM, 3, 5)


def bits(quantizer: Quantizer) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in quantizer.state_dict().items()}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_shapes_losses_and_decoding(case: str, training: bool) -> None:
    quantizer, latents = build(case).train(training), images()
    out = quantizer(latents)
    assert out.quantized.shape == latents.shape
    assert out.loss.shape == ()
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, sum(out.losses.values(), start=torch.zeros(())))
    if case.startswith(CONTINUOUS):
        assert out.tokens is None
        assert quantizer.codebook is None
        return
    heads = quantizer.config.heads
    assert out.tokens.shape == ((4, 3, 5) if heads == 1 else (4, 3, 5, heads))
    assert quantizer.codebook.shape == (quantizer.config.codebook_size, quantizer.code_dim)
    if not (training and case.startswith(STOCHASTIC)):
        assert torch.equal(quantizer.decode(out.tokens), out.quantized)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward_and_backward_change_nothing(case: str, training: bool) -> None:
    quantizer = build(case).train(training)
    before = bits(quantizer)
    latents = images().requires_grad_()
    out = quantizer(latents)
    (out.loss + out.quantized.sum()).backward()
    assert bits(quantizer) == before
    assert torch.isfinite(latents.grad).all()
    assert latents.grad.abs().sum() > 0
    assert not out.record.latents.requires_grad


def test_evaluation_is_deterministic_and_draws_nothing(case: str) -> None:
    quantizer, latents = build(case).eval(), images()
    random = torch.get_rng_state()
    first, second = quantizer(latents), quantizer(latents)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(first.quantized, second.quantized)
    assert torch.equal(first.loss, second.loss)


def test_training_draws_from_torchs_generator_or_not_at_all(case: str) -> None:
    quantizer, latents = build(case), images()
    torch.manual_seed(3)
    first = quantizer(latents).quantized
    again = quantizer(latents).quantized
    torch.manual_seed(3)
    assert torch.equal(quantizer(latents).quantized, first)
    assert torch.equal(again, first) != case.startswith(STOCHASTIC)


def test_channels_may_come_last(case: str) -> None:
    latents = images()
    a, b = build(case).eval()(latents), build(case, channel_last=True).eval()(latents.movedim(1, -1))
    torch.testing.assert_close(a.quantized.movedim(1, -1), b.quantized)
    torch.testing.assert_close(a.loss, b.loss)


def test_masked_positions_are_not_seen(case: str) -> None:
    quantizer, latents, mask = build(case).eval(), images(), torch.rand(4, 3, 5) > 0.4
    if getattr(quantizer, "positions", 1) > 1:
        with pytest.raises(ArcvqError, match="takes no mask"):
            quantizer(latents, mask)
        return
    spoilt = torch.where(mask.unsqueeze(1), latents, float("nan"))
    out, clean = quantizer(spoilt, mask), quantizer(latents, mask)
    assert torch.equal(out.loss, clean.loss)
    rows = out.quantized.movedim(1, -1)
    assert torch.equal(rows[~mask], torch.zeros_like(rows[~mask]))
    if out.tokens is not None:
        heads = out.tokens if out.tokens.dim() == 3 else out.tokens.amax(dim=-1)
        assert torch.equal(heads >= 0, mask)
    if "II" not in case or "III" in case:  # a mask that cuts images apart leaves type II no images
        kept = quantizer(latents.movedim(1, -1)[mask])
        for name, term in kept.losses.items():
            torch.testing.assert_close(out.losses[name], term, rtol=1e-5, atol=1e-6)
        for name, value in kept.stats.items():
            torch.testing.assert_close(out.stats[name], value, rtol=1e-5, atol=1e-6)


def test_a_batch_of_nothing_goes_through(case: str) -> None:
    quantizer = build(case).train(not case.startswith("arcvq"))  # the ArcLoss has nothing to contrast, and says so
    out = quantizer(images(0))
    assert out.quantized.shape == (0, DIM, 3, 5)
    assert out.loss.item() == 0.0


def test_latents_that_are_not_finite_are_refused(case: str) -> None:
    latents = images()
    latents[1, 2, 0, 0] = float("nan")
    with pytest.raises(ArcvqError, match="latents hold 1 non-finite values"):
        build(case)(latents)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_losses_are_float32(case: str, dtype: torch.dtype) -> None:
    quantizer, half = build(case).eval(), images().to(dtype)
    with torch.autocast("cpu", dtype):
        inside = quantizer(half)
    assert inside.quantized.dtype == dtype
    assert all(term.dtype == torch.float32 for term in inside.losses.values())
    if isinstance(quantizer.project_in, torch.nn.Identity) and not case.startswith(CONTINUOUS):
        outside = quantizer(half.float())
        assert torch.equal(inside.tokens, outside.tokens)
        assert torch.equal(inside.loss, outside.loss)


def test_double_latents_come_back_double(case: str) -> None:
    assert build(case)(images().double()).quantized.dtype == torch.float64


def test_written_down_and_saved_it_comes_back_the_same(case: str) -> None:
    quantizer = build(case)
    for _ in range(3):
        quantizer.after_step(quantizer(images()))
    torch.manual_seed(99)
    written = json.loads(json.dumps(to_dict(quantizer.config)))
    loaded = build_quantizer(CASES[case][0], DIM, written)
    assert loaded.config == quantizer.config
    loaded.load_state_dict(quantizer.state_dict())
    latents = images()
    assert torch.equal(quantizer.eval()(latents).quantized, loaded.eval()(latents).quantized)
    assert loaded.step.item() == 3


def test_one_compilation_serves_all_steps_and_equals_eager(case: str) -> None:
    eager = build(case)
    twin = copy.deepcopy(eager)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twin, backend=counter, fullgraph=True)
    latents = images()
    for step in range(3):
        outputs = []
        for layer, module in ((eager, eager), (compiled, twin)):
            torch.manual_seed(step)
            out = layer(latents)
            module.after_step(out)
            outputs.append(out)
        torch.testing.assert_close(outputs[0].quantized, outputs[1].quantized)
        torch.testing.assert_close(outputs[0].loss, outputs[1].loss)
    assert counter.frame_count == 1
    assert twin.step.item() == 3


class NoHostReads(TorchDispatchMode):
    """Refuses what cannot be captured: a value read by the host, a shape that depends on values."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal.default")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(function)
        assert not any(word in name for word in self.FORBIDDEN), name
        if name.startswith("aten.index."):
            assert not any(i is not None and i.dtype == torch.bool for i in args[1]), name
        return function(*args, **(kwargs or {}))


def test_a_training_step_reads_nothing_from_the_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer, latents = build(case), images().requires_grad_()
    monkeypatch.setattr(base, "host_may_read", lambda _: False)  # as while a graph is captured
    with NoHostReads():
        out = quantizer(latents)
        (out.loss + out.quantized.sum()).backward()
        quantizer.after_step(out)
    assert quantizer.step.item() == 1


def test_attached_it_counts_its_steps(case: str) -> None:
    quantizer, encoder = build(case), torch.nn.Conv2d(3, DIM, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *quantizer.parameters()], lr=0.01)
    quantizer.attach(optimizer)
    for _ in range(2):
        out = quantizer(encoder(torch.randn(4, 3, 3, 5)))
        optimizer.zero_grad()
        (out.loss + out.quantized.square().sum()).backward()
        optimizer.step()
    assert quantizer.step.item() == 2


def test_its_options_stand_in_its_signature(case: str) -> None:
    parameters = inspect.signature(type(build(case))).parameters
    assert list(parameters)[:2] == ["dim", "codebook_size"]
    assert set(CASES[case][1]) <= set(parameters)
