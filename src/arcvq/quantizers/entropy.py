"""The entropy term of a quantizer: low for tokens with one likely code each, spread evenly over the codes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import entropy_loss
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.options import check_weights


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """mean_i H(p_i) − H(mean_i p_i) over soft assignments p = softmax(score / temperature), times weight."""

    weight: float = 0.1
    temperature: float = 0.01

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        if not self.temperature > 0:
            raise ArcvqError(f"entropy: the temperature must be positive, got {self.temperature}")


def entropy_term(
    quantizer: Quantizer, entropy: Entropy, sums: tuple[Tensor, Tensor], latents: Tensor, valid: Tensor | None
) -> Tensor:
    """The weighted entropy term over all processes, from the `entropy_statistics` of this one."""
    entropies, probabilities = sums
    count = quantizer.token_count(latents, valid)
    if quantizer.synchronizes:
        entropies, probabilities = (distributed.gather(part).sum(0) for part in sums)
        count = distributed.sum_over_processes(count)
    return entropy.weight * entropy_loss(entropies, probabilities, count.clamp(min=1))
