"""attach: its errors, the steps that it counts, and what it keeps alive."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from arcvq import ArcVQ, ArcvqError, Ball
from arcvq.quantizers import Restart


def attached_pair() -> tuple[ArcVQ, torch.optim.Optimizer]:
    quantizer = ArcVQ(4, 8)
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=0.1)
    quantizer.attach(optimizer)
    return quantizer, optimizer


def train_once(quantizer: ArcVQ, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    quantizer(torch.randn(12, 4)).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("zero_first", [True, False], ids=["zero_grad before forward", "zero_grad before backward"])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_step_skipped_by_grad_scaler_does_not_count(fused: bool, set_to_none: bool, zero_first: bool) -> None:
    """Only the skipped batch used code 0: if it counted, code 0 would not be restarted by the next step."""
    torch.manual_seed(1)
    quantizer = ArcVQ(2, 4, arc=None, ball=Ball(alpha=1.0), restart=Restart(decay=0.0, threshold=0.01))
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=1e-6, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    quantizer.attach(optimizer)
    directions = quantizer.codebook.detach().clone()

    def step(latents: torch.Tensor, spoil: bool) -> None:
        if zero_first:
            optimizer.zero_grad(set_to_none=set_to_none)
        out = quantizer(latents)
        if not zero_first:
            optimizer.zero_grad(set_to_none=set_to_none)
        scaler.scale(out.loss).backward()
        if spoil:
            quantizer.codebook.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()

    before = quantizer.codebook.detach().clone()
    step(1.5 * directions[[0]], spoil=True)
    assert quantizer.step.item() == 0
    assert torch.equal(quantizer.codebook.detach(), before)
    step(1.5 * directions[[1, 2, 3]], spoil=False)
    assert quantizer.step.item() == 1
    assert quantizer.usage_ema[0].item() == 0.25, "the skipped batch was counted: the dead code was not restarted"
    assert (quantizer.codebook.detach()[0] - before[0]).norm() > 0.5


def test_step_without_gradient_does_not_count() -> None:
    quantizer, optimizer = attached_pair()
    train_once(quantizer, optimizer)
    optimizer.zero_grad()
    optimizer.step()
    assert quantizer.step.item() == 1


def test_evaluation_and_no_grad_forwards_do_not_count() -> None:
    quantizer, optimizer = attached_pair()
    with torch.no_grad():
        quantizer(torch.randn(12, 4))
    quantizer.eval()
    quantizer(torch.randn(12, 4)).loss.backward()
    optimizer.step()
    assert quantizer.step.item() == 0


def test_output_used_only_through_quantized_counts() -> None:
    encoder, quantizer = nn.Linear(4, 4), ArcVQ(4, 8)
    optimizer = torch.optim.SGD([*encoder.parameters(), *quantizer.parameters()], lr=0.1)
    quantizer.attach(optimizer)
    quantizer(encoder(torch.randn(12, 4))).quantized.sum().backward()
    optimizer.step()
    assert quantizer.step.item() == 1


@pytest.mark.parametrize("backward", [True, False], ids=["after backward", "without backward"])
def test_attached_quantizer_keeps_no_graph_alive(backward: bool) -> None:
    quantizer, optimizer = attached_pair()
    encoder = nn.Linear(4, 4)
    gc.collect()
    gc.disable()
    try:
        latents = encoder(torch.randn(12, 4))
        alive = weakref.ref(latents)
        out = quantizer(latents)
        if backward:
            out.loss.backward()
            optimizer.step()
        del latents, out
        assert alive() is None
    finally:
        gc.enable()


def test_attaching_twice_raises() -> None:
    quantizer, optimizer = attached_pair()
    with pytest.raises(ArcvqError, match="already attached to an optimizer"):
        quantizer.attach(optimizer)


def test_after_step_on_attached_quantizer_raises() -> None:
    quantizer, _ = attached_pair()
    out = quantizer(torch.randn(12, 4))
    with pytest.raises(ArcvqError, match="do not call after_step as well"):
        quantizer.after_step(out)
    assert quantizer.step.item() == 0


def test_optimizer_without_quantizer_parameters_raises() -> None:
    quantizer = ArcVQ(4, 8)
    foreign = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ArcvqError, match="holds none of the quantizer's parameters"):
        quantizer.attach(foreign)
    out = quantizer(torch.randn(12, 4))
    foreign.step()
    quantizer.after_step(out)
    assert quantizer.step.item() == 1


def test_after_step_works_again_after_remove_attachment() -> None:
    quantizer, optimizer = attached_pair()
    train_once(quantizer, optimizer)
    quantizer.remove_attachment()
    train_once(quantizer, optimizer)
    assert quantizer.step.item() == 1
    quantizer.after_step(quantizer(torch.randn(12, 4)))
    assert quantizer.step.item() == 2
    quantizer.attach(optimizer)
    train_once(quantizer, optimizer)
    assert quantizer.step.item() == 3


def test_after_step_without_output_raises() -> None:
    with pytest.raises(ArcvqError, match="after_step needs the outputs"):
        ArcVQ(4, 8).after_step()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q))], ids=["copy", "pickle"])
def test_copy_of_attached_quantizer_is_not_attached(duplicate) -> None:  # type: ignore[no-untyped-def]
    quantizer, optimizer = attached_pair()
    train_once(quantizer, optimizer)
    twin = duplicate(quantizer)
    latents = torch.randn(12, 4)
    assert torch.equal(twin.eval()(latents).tokens, quantizer.eval()(latents).tokens)
    quantizer.train()
    twin.train()
    before = twin.codebook.detach().clone()
    train_once(quantizer, optimizer)
    assert (quantizer.step.item(), twin.step.item()) == (2, 1)
    assert torch.equal(twin.codebook.detach(), before)
    twin.after_step(twin(latents))
    assert (quantizer.step.item(), twin.step.item()) == (2, 2)
    twin.attach(torch.optim.SGD(twin.parameters(), lr=0.1))
    train_once(quantizer, optimizer)
    assert (quantizer.step.item(), twin.step.item()) == (3, 2)


def test_compiled_attached_quantizer_raises() -> None:
    quantizer, _ = attached_pair()
    torch._dynamo.reset()
    compiled = torch.compile(quantizer, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="attach is for eager loops"):
        compiled(torch.randn(12, 4))
    torch._dynamo.reset()


def test_wrapped_optimizer_is_unwrapped() -> None:
    class Wrapper(torch.optim.Optimizer):
        """Like Accelerate's: a subclass of Optimizer that does not call its constructor and forwards its steps."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, closure: None = None) -> None:
            self.optimizer.step()

    quantizer = ArcVQ(4, 8)
    wrapper = Wrapper(torch.optim.SGD(quantizer.parameters(), lr=0.1))
    quantizer.attach(wrapper)
    quantizer(torch.randn(12, 4)).loss.backward()
    wrapper.step()
    assert quantizer.step.item() == 1


def test_backward_through_named_losses_counts() -> None:
    quantizer, optimizer = attached_pair()
    out = quantizer(torch.randn(12, 4))
    sum(out.losses.values()).backward()
    optimizer.step()
    assert quantizer.step.item() == 1


def test_second_step_on_same_output_counts() -> None:
    quantizer, optimizer = attached_pair()
    out = quantizer(torch.randn(12, 4).requires_grad_())
    for _ in range(2):
        out.quantized.sum().backward(retain_graph=True)
        optimizer.step()
    assert quantizer.step.item() == 2
