"""Which parameters learn, and how fast at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from arcvq.errors import ArcvqError
from arcvq.quantizers import Quantizer
from arcvq.systems import StageConfig, TrainingConfig
from arcvq.tokenizers import Tokenizer


def check_stages(tokenizer: Tokenizer, stages: Sequence[StageConfig]) -> None:
    parameters = [name for name, _ in tokenizer.named_parameters()]
    # A codebook may learn without a gradient, and then it is no parameter.
    names = parameters + [f"{name}.codebook" for name, each in _quantizers(tokenizer) if each.codebook is not None]
    for i, stage in enumerate(stages):
        for prefix in stage.train:
            if not any(_belongs(name, prefix) for name in names):
                parts = ", ".join(sorted({name.split(".")[0] for name in names}))
                raise ArcvqError(
                    f"training.stages[{i}].train: no parameter's name begins with {prefix!r}; the parts are {parts}"
                )
        if not any(_learns(name, stage) for name in parameters):
            raise ArcvqError(f"training.stages[{i}].train: nothing in {', '.join(stage.train)} learns by gradient")


def make_optimizer(
    tokenizer: Tokenizer, stage: StageConfig, training: TrainingConfig, *, captured: bool = False
) -> Optimizer:
    """Adam over what the stage trains; everything else is frozen, also to restarts, bounds and running means.

    Captured, it finds its learning rate on the device.
    """
    learning = []
    for name, parameter in tokenizer.named_parameters():
        parameter.requires_grad_(_learns(name, stage))
        if parameter.requires_grad:
            learning.append(parameter)
    for name, quantizer in _quantizers(tokenizer):
        learns = quantizer.codebook is not None and quantizer.codebook.requires_grad
        quantizer.frozen = not (learns or _learns(f"{name}.codebook", stage))
    assert stage.learning_rate is not None
    first, second = training.betas
    return torch.optim.AdamW(
        learning,
        lr=torch.tensor(stage.learning_rate, device=tokenizer.device) if captured else stage.learning_rate,
        betas=(first, second),
        weight_decay=training.weight_decay,
        fused=True,
        capturable=captured,
    )


def learning_rate(stage: StageConfig, training: TrainingConfig, step: int, steps: int) -> float:
    """A function of the step alone: nothing to save, nothing to restore."""
    assert stage.learning_rate is not None
    rate = stage.learning_rate
    if training.schedule == "cosine":
        floor, flat = training.final_rate, training.flat_share
        fallen = max(0.0, step / steps - flat) / (1 - flat)
        rate *= floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * fallen))
    if step < training.warmup_steps:
        rate *= (step + 1) / training.warmup_steps
    return rate


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """A captured optimizer's rate is a tensor, and stays the same one."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _quantizers(tokenizer: Tokenizer) -> list[tuple[str, Quantizer]]:
    return [(name, module) for name, module in tokenizer.named_modules() if isinstance(module, Quantizer)]


def _learns(name: str, stage: StageConfig) -> bool:
    return not stage.train or any(_belongs(name, prefix) for prefix in stage.train)


def _belongs(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")
