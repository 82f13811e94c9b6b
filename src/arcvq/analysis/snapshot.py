"""One saved codebook of a run: the codes, and how many evaluation tokens each received."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from arcvq.errors import ArcvqError
from arcvq.metrics import near_duplicate_shares
from arcvq.storage import read_tensors

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Snapshot:
    """The codebook at one training step. The file is read on first use."""

    step: int
    path: Path

    @property
    def counts(self) -> IntArray:
        """Tokens per code over the evaluation set, (K,)."""
        return self._arrays[1]

    @property
    def codebook(self) -> FloatArray:
        """The codes, (K, D)."""
        return self._arrays[0]

    @cached_property
    def norms(self) -> FloatArray:
        """The ℓ2 norm of each code, (K,)."""
        return np.asarray(np.linalg.norm(self.codebook, axis=1), dtype=np.float64)

    @property
    def used(self) -> BoolArray:
        """Mask of the codes with at least one token, (K,)."""
        return np.asarray(self.counts > 0, dtype=np.bool_)

    @property
    def finite(self) -> BoolArray:
        """Mask of the codes without NaN or infinity, (K,); figures of a diverged run show only these."""
        return np.asarray(np.isfinite(self.codebook).all(axis=1), dtype=np.bool_)

    @property
    def size(self) -> int:
        """Number of codes, K."""
        return int(self.counts.shape[0])

    @property
    def used_count(self) -> int:
        return int(self.used.sum())

    @property
    def token_count(self) -> int:
        return int(self.counts.sum())

    @property
    def usage(self) -> float:
        """Share of codes with at least one token."""
        return self.used_count / self.size

    @property
    def perplexity(self) -> float:
        """Effective number of codes: exp of the entropy of the token counts. NaN without tokens."""
        if self.token_count == 0:
            return float("nan")
        shares = self.counts[self.used] / self.token_count
        return float(np.exp(-(shares * np.log(shares)).sum()))

    @cached_property
    def near_duplicate_count(self) -> int:
        """Number of finite codes with another code close by, as counted by the metric `near_duplicate_share_distance`."""
        codes = torch.from_numpy(self.codebook[self.finite])
        return round(near_duplicate_shares(codes)["distance"] * len(codes)) if len(codes) > 1 else 0

    def most_used_first(self) -> IntArray:
        """Indices of the finite codes by falling count; ties keep the codebook's order."""
        order = np.argsort(-self.counts, kind="stable")
        return np.asarray(order[self.finite[order]], dtype=np.int64)

    @cached_property
    def _arrays(self) -> tuple[FloatArray, IntArray]:
        """Codebook and counts, read from the file and checked."""
        tensors = read_tensors(self.path, "a codebook snapshot")
        codebook, counts = (tensors.get(name, torch.zeros(0)) for name in ("codebook", "counts"))
        whole = not counts.is_floating_point() and bool((counts >= 0).all())
        if codebook.ndim != 2 or counts.shape != codebook.shape[:1] or not whole or len(counts) == 0:
            raise ArcvqError(
                f"{self.path}: expected a codebook (K, D) and K counts, whole and none negative; "
                f"found {tuple(codebook.shape)} and {counts.dtype} {tuple(counts.shape)}"
            )
        return codebook.double().numpy(), counts.long().numpy()


def evenly_spaced(indices: IntArray, limit: int) -> IntArray:
    """At most `limit` of the indices, evenly spaced along their order; always the same ones."""
    if len(indices) <= limit:
        return indices
    return indices[np.linspace(0, len(indices) - 1, limit).round().astype(np.int64)]
