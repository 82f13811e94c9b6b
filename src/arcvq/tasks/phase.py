"""What is on at a step of a tokenizer's training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    stage: int = 0  # of the training, counted from 0
    quantized: bool = True  # False: the decoder gets the latents themselves, and the quantizer does not learn
    adversarial: bool = False  # the discriminator learns, and its term counts
    penalty: bool = False  # this step of the discriminator has the R1 penalty


def first_step(start: float, total_steps: int) -> int:
    """The step at which something begins: `start` steps, or, below 1, that share of the whole training."""
    return int(start) if start >= 1 else round(start * total_steps)
