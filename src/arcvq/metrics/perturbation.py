"""pFID: FID of images decoded from perturbed tokens, which stands in for how a decoder takes a prior's mistakes.

Qiu et al., Robust Latent Matters: Boosting Image Generation with Sampling Error Synthesis, 2025. A share of the tokens of each image
is replaced by one of the codes nearest to it; the decoder's images are then compared with the originals as rFID's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcvq.data import Images
from arcvq.errors import ArcvqError
from arcvq.metrics.codebook import check_codebook
from arcvq.metrics.evaluate import Evaluation, evaluate_under
from arcvq.metrics.protocols import Protocol, hash_fields

if TYPE_CHECKING:
    from arcvq.tokenizers import Tokenizer

BLOCK_ROWS = 1024  # codes that are compared with all others at a time


@dataclass(frozen=True)
class Perturbation:
    """All choices of a perturbation of tokens. pFID can be compared only between the same ones."""

    # the probability that a token is replaced
    share: float = 0.5
    # how many of the nearest codes the new token is drawn from, its own among them
    neighbours: int = 16
    seed: int = 0
    # increased when the code is corrected so that numbers change
    revision: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ArcvqError(f"share is {self.share}; it must be from 0 to 1")
        if self.neighbours < 1 or self.seed < 0:
            raise ArcvqError(
                f"neighbours is {self.neighbours} and seed {self.seed}; they must be at least 1 and not negative"
            )

    @property
    def hash(self) -> str:
        """A hash of all fields, 12 hex digits."""
        return hash_fields({**asdict(self), "share": float(self.share)})

    def to_json(self) -> dict[str, Any]:
        """All fields and the hash, as plain values for a results file."""
        return {**asdict(self), "hash": self.hash}


def nearest_codes(codebook: Tensor, count: int) -> Tensor:
    """The `count` codes nearest to each of (K, D) by Euclidean distance, int64 (K, count): first itself, then from near to far."""
    codes = check_codebook(codebook)
    if not 1 <= count <= len(codes):
        raise ArcvqError(f"{count} nearest codes were asked for, but the codebook has {len(codes)}")
    norms = codes.square().sum(dim=1)
    nearest = []
    for first in range(0, len(codes), BLOCK_ROWS):
        rows = torch.arange(first, min(first + BLOCK_ROWS, len(codes)), device=codes.device)
        squared = norms[rows, None] + norms - 2 * (codes[rows] @ codes.T)
        squared[rows - first, rows] = -torch.inf  # itself, also among equal codes
        nearest.append(squared.topk(count, dim=1, largest=False).indices)
    return torch.cat(nearest)


def perturb_tokens(tokens: Tensor, nearest: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Replace each token, with probability `share`, by one of its nearest codes, drawn evenly; −1 (padding) stays.

    `nearest` (K, n) is from `nearest_codes`. Its own code is one of the n, so that of the drawn tokens 1 in n stays as it is. The
    numbers are drawn on the CPU, two for each token, so that they do not depend on the device or on how tokens are batched.
    """
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ArcvqError(f"tokens must be whole numbers, got {tokens.dtype}")
    if tokens.numel() and int(tokens.max()) >= len(nearest):
        raise ArcvqError(f"token {int(tokens.max())} is out of range: there are neighbours of {len(nearest)} codes")
    draws = torch.rand(*tokens.shape, 2, generator=generator, dtype=torch.float64).to(tokens.device)
    place = (draws[..., 1] * nearest.shape[1]).long()
    drawn = nearest.to(tokens.device)[tokens.clamp(min=0).long(), place].to(tokens.dtype)
    return torch.where((draws[..., 0] < share) & (tokens >= 0), drawn, tokens)


class PerturbedReconstructor:
    """images → what a tokenizer decodes from their perturbed tokens, for `evaluate`. Images are numbered as they come."""

    def __init__(self, tokenizer: Tokenizer, perturbation: Perturbation) -> None:
        quantizer = tokenizer.quantizer
        self.tokenizer, self.perturbation = tokenizer, perturbation
        self.generator = torch.Generator().manual_seed(perturbation.seed)
        # Neighbours within each codebook, as rows of all of them.
        self.offset = quantizer.config.codebook_size
        self.nearest = torch.cat(
            [
                nearest_codes(codes, perturbation.neighbours) + number * self.offset
                for number, codes in enumerate(quantizer.require_codebook().split(self.offset))
            ]
        )

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, None]:
        tokens = self.tokenizer.encode(images)
        rows = self.tokenizer.quantizer.code_indices(tokens)
        perturbed = perturb_tokens(rows, self.nearest, self.perturbation.share, self.generator)
        # Back from rows to tokens of their own codebook: neighbours never leave it.
        return self.tokenizer.decode(tokens + perturbed - rows).float(), None


def evaluate_perturbed(
    protocols: Sequence[Protocol | str],
    tokenizer: Tokenizer,
    images: Images,
    perturbation: Perturbation | None = None,
    *,
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Evaluation]:
    """Measure pFID under several protocols: their FID of the images that `tokenizer` decodes from perturbed tokens.

    A tokenizer without codes, or with fewer than `perturbation.neighbours`, has none: it is reported as missing.
    """
    perturbation = perturbation or Perturbation()
    size = tokenizer.quantizer.config.codebook_size
    reason = None
    if tokenizer.quantizer.codebook is None:
        reason = "not applicable: the model gives no tokens"
    elif size < perturbation.neighbours:
        reason = (
            f"tokens are replaced by one of the {perturbation.neighbours} nearest codes, but the codebook has {size}"
        )
    evaluations = evaluate_under(
        protocols,
        _unchanged if reason else PerturbedReconstructor(tokenizer, perturbation),
        images,
        batch_size=batch_size,
        device=device,
        metrics=[] if reason else ["rfid"],
        download=download,
        progress=progress,
    )
    return [
        replace(
            each,
            metrics={"pfid": each.metrics["rfid"]} if "rfid" in each.metrics else {},
            missing={} if "rfid" in each.metrics else {"pfid": reason or each.missing["rfid"]},
        )
        for each in evaluations
    ]


def _unchanged(images: Tensor) -> tuple[Tensor, None]:
    return images, None
