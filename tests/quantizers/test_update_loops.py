"""Training loops of all kinds: attach and after_step give the same state."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from arcvq import ArcVQ, Ball, Quantized
from arcvq.quantizers import Arc, Restart

STEPS = 4


class Training:
    """A small autoencoder whose quantizer has every kind of update on."""

    def __init__(self, attached: bool) -> None:
        torch.manual_seed(7)
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 6)
        self.quantizer = ArcVQ(
            4,
            16,
            ball=Ball(alpha=0.1),
            arc=Arc(schedule="adaptive", smoothing=0.5),
            restart=Restart(decay=0.5, threshold=0.3),
        )
        modules = (self.encoder, self.quantizer, self.decoder)
        self.optimizer = torch.optim.Adam([p for m in modules for p in m.parameters()], lr=0.05)
        self.attached = attached
        if attached:
            self.quantizer.attach(self.optimizer)
        self.data = torch.Generator().manual_seed(3)

    def batch(self) -> Tensor:
        return torch.randn(24, 6, generator=self.data)

    def quantize(self, images: Tensor) -> Quantized:
        return self.quantizer(self.encoder(images))

    def loss(self, images: Tensor, out: Quantized) -> Tensor:
        return (self.decoder(out.quantized) - images).square().mean() + out.loss

    def step(self, *outputs: Quantized) -> None:
        self.optimizer.step()
        if not self.attached:
            self.quantizer.after_step(*outputs)

    def validate(self) -> None:
        self.quantizer.eval()
        self.quantize(torch.randn(50, 6, generator=torch.Generator().manual_seed(1)))  # with gradients on
        self.quantizer.train()
        with torch.no_grad():
            self.quantize(torch.ones(50, 6))


def plain_step(training: Training) -> None:
    images = training.batch()
    out = training.quantize(images)
    training.optimizer.zero_grad()
    training.loss(images, out).backward()
    training.step(out)


def accumulated_step(training: Training) -> None:
    training.optimizer.zero_grad()
    outputs = []
    for _ in range(3):
        images = training.batch()
        outputs.append(training.quantize(images))
        (training.loss(images, outputs[-1]) / 3).backward()
    training.step(*outputs)


def two_forwards_step(training: Training) -> None:
    first, second = training.batch(), training.batch()
    a, b = training.quantize(first), training.quantize(second)
    training.optimizer.zero_grad()
    (training.loss(first, a) + training.loss(second, b)).backward()
    training.step(b, a)  # the order of their gradients


def checkpointed_step(training: Training, reentrant: bool) -> None:
    images, outputs = training.batch(), []

    def trunk(x: Tensor) -> tuple[Tensor, Tensor]:
        out = training.quantize(x)
        outputs.append(out)
        return out.quantized, out.loss

    quantized, loss = checkpoint(trunk, images.requires_grad_(), use_reentrant=reentrant)
    training.optimizer.zero_grad()
    ((training.decoder(quantized) - images.detach()).square().mean() + loss).backward()
    assert len(outputs) == 2 or not reentrant, "forward was not recomputed"
    training.step(outputs[0])


def fully_checkpointed_step(training: Training, reentrant: bool) -> None:
    """Decoder and losses inside, too: the quantizer is recomputed before any gradient exists."""
    images, outputs = training.batch(), []

    def whole(x: Tensor) -> Tensor:
        out = training.quantize(x)
        outputs.append(out)
        return out.loss + (training.decoder(out.quantized) - x.detach()).square().mean()

    training.optimizer.zero_grad()
    with set_checkpoint_early_stop(False):
        checkpoint(whole, images.requires_grad_(), use_reentrant=reentrant).backward()
    assert len(outputs) == 2, "forward was not recomputed"
    training.step(outputs[0])


def checkpointed_step_without_decoder(training: Training) -> None:
    """The loss's gradient comes first and recomputation follows, before any parameter has a gradient."""
    images, outputs = training.batch(), []

    def trunk(x: Tensor) -> tuple[Tensor, Tensor]:
        out = training.quantize(x)
        outputs.append(out)
        return out.quantized, out.loss

    training.optimizer.zero_grad()
    with set_checkpoint_early_stop(False):
        quantized, loss = checkpoint(trunk, images.requires_grad_(), use_reentrant=False)
        (quantized.square().mean() + loss).backward()
    assert len(outputs) == 2, "forward was not recomputed"
    training.step(outputs[0])


def adversarial_step(training: Training, judge: nn.Module, judge_optimizer: torch.optim.Optimizer) -> None:
    images = training.batch()
    out = training.quantize(images)
    restored = training.decoder(out.quantized)
    training.optimizer.zero_grad()
    ((restored - images).square().mean() + out.loss - judge(restored).mean()).backward()
    training.step(out)

    again = training.quantize(images)  # the discriminator's own pass: gradients on, result detached
    fake = training.decoder(again.quantized).detach()
    judge_optimizer.zero_grad()
    (judge(fake).relu().mean() + (1 - judge(images)).relu().mean()).backward()
    judge_optimizer.step()


def step_with_validation(training: Training) -> None:
    images = training.batch()
    out = training.quantize(images)
    training.validate()
    training.optimizer.zero_grad()
    training.loss(images, out).backward()
    training.validate()
    training.step(out)


def adaptive_adversarial_weight_step(training: Training) -> None:
    """The gradient at the decoder's last layer is computed first, as VQGAN does to balance its losses."""
    images = training.batch()
    out = training.quantize(images)
    loss = training.loss(images, out)
    torch.autograd.grad(loss, training.decoder.weight, retain_graph=True)
    training.optimizer.zero_grad()
    loss.backward()
    training.step(out)


def train_steps(loop: Callable[[Training], None], attached: bool) -> Training:
    training = Training(attached)
    if loop is adversarial_step:
        judge = nn.Linear(6, 1)
        judge_optimizer = torch.optim.Adam(judge.parameters(), lr=0.05)
        for _ in range(STEPS):
            adversarial_step(training, judge, judge_optimizer)
    else:
        for _ in range(STEPS):
            loop(training)
    return training


LOOPS: dict[str, Callable[..., None]] = {
    "plain": plain_step,
    "gradient accumulation over three micro-batches": accumulated_step,
    "two forwards, one backward": two_forwards_step,
    "reentrant checkpointing": lambda training: checkpointed_step(training, True),
    "checkpointing": lambda training: checkpointed_step(training, False),
    "reentrant checkpointing of everything": lambda training: fully_checkpointed_step(training, True),
    "checkpointing of everything": lambda training: fully_checkpointed_step(training, False),
    "checkpointing without a decoder": checkpointed_step_without_decoder,
    "a generator's and a discriminator's pass": adversarial_step,
    "validation between forward and step": step_with_validation,
    "an adaptive adversarial weight": adaptive_adversarial_weight_step,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_attach_and_after_step_give_same_state(loop: Callable[[Training], None]) -> None:
    attached, explicit = train_steps(loop, attached=True), train_steps(loop, attached=False)
    assert attached.quantizer.step.item() == STEPS
    ours, theirs = attached.quantizer.state_dict(), explicit.quantizer.state_dict()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "after_step"])
@pytest.mark.parametrize(
    "loop",
    [
        LOOPS["reentrant checkpointing"],
        LOOPS["checkpointing"],
        LOOPS["checkpointing of everything"],
        step_with_validation,
        adversarial_step,
    ],
    ids=["reentrant", "checkpointing", "everything", "validation", "adversarial"],
)
def test_work_around_step_does_not_change_update(loop: Callable[[Training], None], attached: bool) -> None:
    if loop is adversarial_step:  # the discriminator changes the generator's gradient: compare only step and bound
        training = train_steps(loop, attached)
        radius = torch.tensor(0.1 * STEPS).exp() * (1 + 1e-6)
        assert training.quantizer.step.item() == STEPS
        assert training.quantizer.codebook.detach().norm(dim=1).max() <= radius
        return
    quiet, eventful = train_steps(plain_step, attached).quantizer, train_steps(loop, attached).quantizer
    for name, value in quiet.state_dict().items():
        torch.testing.assert_close(eventful.state_dict()[name], value, msg=lambda text, name=name: f"{name}: {text}")


def test_accumulation_counts_tokens_of_every_micro_batch() -> None:
    quantizer = ArcVQ(2, 4, restart=Restart(decay=0.0, threshold=0.01), ball=None)
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    before = quantizer.codebook.detach().clone()
    outputs = [quantizer(direction.repeat(4, 1)) for direction in before]
    quantizer.after_step(*outputs)
    assert torch.equal(quantizer.codebook.detach(), before), "a code used in one micro-batch was restarted"
    assert torch.equal(quantizer.usage_ema, torch.full((4,), 0.25))
