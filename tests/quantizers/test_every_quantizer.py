"""The contract of every kind of quantizer: purity, determinism, no host reads, saving."""

import inspect
import json
from typing import Any

import pytest
import torch
from every_quantizer import CONTINUOUS, IMAGE, KINDS, STOCHASTIC, build
from torch import Tensor

from arcvq import ArcvqError, Quantizer
from arcvq.config import parse, to_dict
from arcvq.quantizers import QUANTIZERS

DIM, SIZE = 8, 16
pytestmark = pytest.mark.parametrize("kind", KINDS)


def build_small(kind: str, **options: Any) -> Any:
    torch.manual_seed(1)
    return build(kind, DIM, SIZE, **options)


def random_latents(batch: int = 4) -> Tensor:
    return torch.randn(batch, DIM, *IMAGE)


def state_bytes(quantizer: Quantizer) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in quantizer.state_dict().items()}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward_and_backward_change_nothing(kind: str, training: bool) -> None:
    quantizer = build_small(kind).train(training)
    quantizer.after_step(quantizer(random_latents()))  # not the initial state
    before, latents, random = state_bytes(quantizer), random_latents().requires_grad_(), torch.get_rng_state()
    out = quantizer(latents)
    drew = not torch.equal(torch.get_rng_state(), random)
    assert drew == (training and kind in STOCHASTIC)
    (out.loss + out.quantized.square().sum()).backward()
    assert state_bytes(quantizer) == before
    assert torch.isfinite(latents.grad).all()
    assert latents.grad.abs().sum() > 0 or not training
    assert not out.update_inputs.latents.requires_grad
    torch.testing.assert_close(out.loss, sum(out.losses.values(), start=torch.zeros(())))
    if kind in CONTINUOUS:
        assert (quantizer.codebook, out.tokens, out.update_inputs.tokens) == (None, None, None)


def test_detached_output_equals_output_without_graph(kind: str) -> None:
    out = build_small(kind)(random_latents().requires_grad_())
    off = out.detach()
    assert out.loss.requires_grad or not out.losses
    pairs = [(out.quantized, off.quantized), (out.loss, off.loss)]
    for terms, others in ((out.losses, off.losses), (out.stats, off.stats)):
        assert terms.keys() == others.keys()
        pairs += [(terms[name], others[name]) for name in terms]
    assert all(torch.equal(on, off) and not off.requires_grad for on, off in pairs)
    assert off.tokens is out.tokens
    assert off.update_inputs is out.update_inputs


def test_same_seed_gives_same_output(kind: str) -> None:
    quantizer, latents = build_small(kind), random_latents()
    outputs = []
    for seed in (3, 4, 3):
        torch.manual_seed(seed)
        outputs.append(quantizer(latents))
    assert torch.equal(outputs[0].quantized, outputs[2].quantized)
    assert torch.equal(outputs[0].loss, outputs[2].loss)
    assert torch.equal(outputs[0].quantized, outputs[1].quantized) != (kind in STOCHASTIC)


def test_channel_last_equals_channel_first(kind: str) -> None:
    latents = random_latents()
    a, b = build_small(kind).eval()(latents), build_small(kind, channel_last=True).eval()(latents.movedim(1, -1))
    torch.testing.assert_close(a.quantized.movedim(1, -1), b.quantized)
    torch.testing.assert_close(a.loss, b.loss)


def test_nonfinite_latents_raise(kind: str) -> None:
    latents = random_latents()
    latents[1, 2, 0, 0] = float("nan")
    with pytest.raises(ArcvqError, match="latents hold 1 non-finite values"):
        build_small(kind)(latents)


def test_frozen_quantizer_only_increments_step(kind: str) -> None:
    quantizer = build_small(kind)
    quantizer.frozen = True
    before = state_bytes(quantizer)
    quantizer.after_step(quantizer(random_latents()))
    after = state_bytes(quantizer)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if name.rsplit(".", 1)[-1] == "step"}


def test_saved_and_loaded_quantizer_continues_identically(kind: str) -> None:
    quantizer = build_small(kind)
    for _ in range(3):
        quantizer.after_step(quantizer(random_latents()))
    torch.manual_seed(99)
    written = json.loads(json.dumps(to_dict(quantizer.config)))
    loaded = QUANTIZERS.build(parse(type(quantizer.config), written), DIM)
    assert loaded.config == quantizer.config
    loaded.load_state_dict(quantizer.state_dict())
    latents, states = random_latents(), []
    for each in (quantizer, loaded):
        torch.manual_seed(4)
        each.after_step(each(latents))
        states.append(state_bytes(each))
    assert states[0] == states[1]
    assert loaded.step.item() == 4
    assert torch.equal(quantizer.eval()(latents).quantized, loaded.eval()(latents).quantized)


def test_zero_latents_and_codes_give_no_nan(kind: str) -> None:
    quantizer = build_small(kind)
    learnt = getattr(quantizer, "basis", quantizer.codebook)
    if learnt is not None and kind not in ("fsq", "lfq"):
        with torch.no_grad():
            learnt[3] = 0
    latents = random_latents()
    latents[0] = 0
    latents.requires_grad_()
    out = quantizer(latents)
    (out.loss + out.quantized.sum()).backward()
    quantizer.after_step(out)
    assert torch.isfinite(out.loss)
    assert torch.isfinite(latents.grad).all()
    assert all(torch.isfinite(value).all() for value in quantizer.state_dict().values())
    assert all(torch.isfinite(p.grad).all() for p in quantizer.parameters() if p.grad is not None)


def test_capturable_quantizer_reads_nothing_from_device(kind: str, as_if_captured: Any) -> None:
    quantizer, latents = build_small(kind), random_latents().requires_grad_()
    assert quantizer.capturable
    for _ in range(2):
        with as_if_captured():
            out = quantizer(latents)
            (out.loss + out.quantized.sum()).backward()
            quantizer.after_step(out)
    assert quantizer.step.item() == 2


def test_attached_quantizer_counts_steps(kind: str) -> None:
    quantizer, encoder = build_small(kind), torch.nn.Conv2d(3, DIM, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *quantizer.parameters()], lr=0.01)
    quantizer.attach(optimizer)
    for _ in range(2):
        out = quantizer(encoder(torch.randn(4, 3, *IMAGE)))
        optimizer.zero_grad()
        (out.loss + out.quantized.square().sum()).backward()
        optimizer.step()
    assert quantizer.step.item() == 2


def test_signature_lists_options_and_registry_has_class(kind: str) -> None:
    cls, options = KINDS[kind]
    parameters = inspect.signature(cls).parameters
    assert list(parameters)[:2] == ["dim", "codebook_size"]
    assert set(options) <= set(parameters)
    assert {each for each, _ in KINDS.values()} == {QUANTIZERS[name] for name in QUANTIZERS}
