"""Which parameters learn, and how fast at each step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from arcvq.training.config import OptimizerSettings, TrainingConfig


def make_optimizer(network: nn.Module, config: OptimizerSettings, *, captured: bool = False) -> Optimizer:
    """AdamW over all parameters; those without a gradient do not change. `captured`: the learning rate is a tensor."""
    first, second = config.betas
    device = next(network.parameters()).device
    return torch.optim.AdamW(
        list(network.parameters()),
        lr=torch.tensor(config.learning_rate, device=device) if captured else config.learning_rate,
        betas=(first, second),
        weight_decay=config.weight_decay,
        fused=True,
        capturable=captured,
    )


def scheduled_rate(rate: float, training: TrainingConfig, step: int, steps: int) -> float:
    """The learning rate at step `step` of `steps`: a function of the step alone."""
    if training.schedule == "cosine":
        floor, flat = training.final_rate, training.flat_share
        done = max(0.0, step / steps - flat) / (1 - flat)
        rate *= floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))
    if step < training.warmup_steps:
        rate *= (step + 1) / training.warmup_steps
    return rate


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of all groups; where it is a tensor (captured steps), in place."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
