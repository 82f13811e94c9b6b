"""The adversarial part of an objective: its settings, and the discriminator with the averages that its losses need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.config import Choice
from arcvq.errors import ArcvqError
from arcvq.functional.adversarial import ramp
from arcvq.nets import DISCRIMINATORS, PatchConfig

# How slowly LeCam's averages of the logits follow.
LECAM_DECAY = 0.999


@dataclass(kw_only=True)
class AdversarialConfig:
    """A discriminator that learns to tell reconstructions from images, and a term of the tokenizer's loss that it gives.

    discriminator  kind and settings: patch or stylegan
    loss           hinge, or logistic (non-saturating)
    weight         of the term in the tokenizer's loss
    adaptive       multiply the weight by ‖∇ of all other terms‖ / ‖∇ of this term‖ at the decoder's last layer
    start          steps before the discriminator joins; below 1: a share of the whole training
    ramp_steps     steps after that over which the weight rises linearly
    discriminator_weight  on the discriminator's own loss
    r1             weight of the gradient penalty at real images; taken at each `r1_every`-th step, as many times heavier
    lecam          weight of LeCam's penalty, which holds the logits near the running means of the other side
    """

    discriminator: Annotated[object, Choice(DISCRIMINATORS, "patch")] = field(default_factory=PatchConfig)
    loss: Literal["hinge", "logistic"] = "hinge"
    weight: float = 0.8
    adaptive: bool = True
    start: float = 0.0
    ramp_steps: int = 0
    discriminator_weight: float = 1.0
    r1: float = 0.0
    r1_every: int = 16
    lecam: float = 0.0

    def __post_init__(self) -> None:
        for name in ("weight", "start", "ramp_steps", "discriminator_weight", "r1", "lecam"):
            if getattr(self, name) < 0:
                raise ArcvqError(f"adversarial.{name} must not be negative, got {getattr(self, name)}")
        if self.r1_every < 1:
            raise ArcvqError(f"adversarial.r1_every must be at least 1, got {self.r1_every}")


class Discriminator(nn.Module):
    """A network that gives logits of images (B, C, H, W), the number of its steps, and running means of its logits."""

    step: Tensor
    real_average: Tensor
    fake_average: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("real_average", torch.zeros(()))
        self.register_buffer("fake_average", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits

    def check_size(self, height: int, width: int) -> None:
        """Raise if the network says that it takes no images of this size."""
        check = getattr(self.network, "check_size", None)
        if check is not None:
            check(height, width)

    def ramp(self, steps: int) -> Tensor:
        """How much of the adversarial weight counts at this step, 0 to 1."""
        return ramp(self.step + 1, 0, steps)

    @torch.no_grad()
    def after_step(self, sums: Sequence[Tensor]) -> None:
        """Count the step, and move the running means towards this step's mean logits of images and reconstructions.

        `sums`, (3,) for each micro-batch: the sums of both and their number. They are summed over all processes, because shards and
        micro-batches may differ in size, and a shard may be empty.
        """
        self.step.add_(1)
        real, fake, count = distributed.sum_over_processes(torch.stack(list(sums)).sum(dim=0))
        for average, total in ((self.real_average, real), (self.fake_average, fake)):
            average.lerp_((total / count.clamp(min=1)).to(average.dtype), 1 - LECAM_DECAY)
