"""Codebook metrics of an evaluation: from token counts, and from the geometry of the codes."""

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.metrics import codebook as codebook_metrics

TOKEN_METRICS = ("usage", "perplexity", "tokens_per_image", "tokens_per_code", "bits_per_image", "coverage")
CODEBOOK_METRICS = (*TOKEN_METRICS, "geometry")
NEEDS_CODEBOOK_SIZE = ("usage", "tokens_per_code", "bits_per_image")


class TokenCounts:
    """Counts how often each code was chosen. Without a codebook size, the counts end at the largest token.

    `choices` is how many codes each token chooses from, if it is not the whole codebook.
    """

    def __init__(self, codebook_size: int | None, device: torch.device, choices: int | None = None) -> None:
        self.codebook_size, self.choices = codebook_size, choices
        self.device = device
        self.counts: Tensor | None = None

    def update(self, tokens: Tensor) -> None:
        """Count a batch of tokens; -1 is padding."""
        if tokens.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
            raise ArcvqError(f"tokens must be integers, but reconstruct returned {tokens.dtype}")
        flat = tokens.flatten().to(self.device, torch.int64)
        if len(flat) == 0:
            return
        smallest, largest = (int(value) for value in torch.aminmax(flat))
        if smallest < -1 or (self.codebook_size is not None and largest >= self.codebook_size):
            limit = "" if self.codebook_size is None else f" to {self.codebook_size - 1}"
            raise ArcvqError(f"tokens must lie in 0{limit}, or be -1 for padding, but go from {smallest} to {largest}")
        length = self.codebook_size or max(largest + 1, 1, 0 if self.counts is None else len(self.counts))
        new = torch.bincount(flat[flat >= 0], minlength=length)
        if self.counts is not None:
            new[: len(self.counts)] += self.counts
        self.counts = new

    def results(self, wanted: set[str], images: int) -> tuple[dict[str, float], dict[str, str]]:
        """The wanted token metrics, and the reasons for missing ones."""
        names = [name for name in TOKEN_METRICS if name in wanted]
        if self.counts is None or int(self.counts.sum()) == 0:
            return {}, dict.fromkeys(names, "not applicable: the model gave no tokens")
        measured: dict[str, float] = {}
        missing: dict[str, str] = {}
        tokens = int(self.counts.sum())
        for name in names:
            if name in NEEDS_CODEBOOK_SIZE and self.codebook_size is None:
                missing[name] = "the codebook size is unknown; pass codebook or codebook_size"
            elif name == "usage":
                measured[name] = codebook_metrics.usage(self.counts)
            elif name == "perplexity":
                measured[name] = codebook_metrics.perplexity(self.counts)
            elif name == "tokens_per_image":
                measured[name] = tokens / images
            elif name == "tokens_per_code":
                measured[name] = tokens / len(self.counts)
            elif name == "bits_per_image":
                measured[name] = codebook_metrics.bits_per_image(tokens / images, self.choices or len(self.counts))
            elif name == "coverage":
                covered = codebook_metrics.coverage(self.counts)
                measured.update({f"coverage_{percent}": float(codes) for percent, codes in covered.items()})
        return measured, missing


def geometry_results(
    wanted: set[str], codebook: Tensor | None, counts: Tensor | None
) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics of the codebook's geometry, and the reason if there are none. Both are empty if not wanted."""
    if "geometry" not in wanted:
        return {}, {}
    if codebook is None:
        return {}, {"geometry": "not applicable: the model has no codebook of vectors"}
    measured = codebook_metrics.geometry(codebook)
    if counts is not None and len(counts) == len(codebook) and bool((counts > 0).any()):
        lengths = codebook.detach().double().norm(dim=1)
        measured["norm_mean_used"] = float(lengths[(counts > 0).to(lengths.device)].mean())
    return measured, {}
