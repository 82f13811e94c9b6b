"""One saved codebook of a run: the codes, and how many evaluation tokens fell on each."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.metrics import near_duplicate_share

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Snapshot:
    """The codebook at one training step. Nothing is read from disk until it is asked for."""

    step: int
    path: Path

    @cached_property
    def counts(self) -> IntArray:
        """Tokens per code over the evaluation set, (K,). Read alone, so that a usage curve does not load the codes."""
        counts = self._read("counts")
        if counts.ndim != 1 or len(counts) == 0 or counts.is_floating_point() or bool((counts < 0).any()):
            raise ArcvqError(
                f"{self.path}: counts must be K whole numbers, none negative; "
                f"found shape {tuple(counts.shape)}, {counts.dtype}"
            )
        return np.asarray(counts.numpy(), dtype=np.int64)

    @cached_property
    def codebook(self) -> FloatArray:
        """The codes, (K, D)."""
        codebook = self._read("codebook")
        if codebook.ndim != 2 or codebook.shape[0] != self.counts.shape[0]:
            raise ArcvqError(
                f"{self.path}: codebook must be (K, D) with one count per code; "
                f"found {tuple(codebook.shape)} and {self.counts.shape[0]} counts"
            )
        return np.asarray(codebook.to(torch.float64).numpy(), dtype=np.float64)

    @cached_property
    def norms(self) -> FloatArray:
        """The ℓ2 norm of each code, (K,)."""
        return np.asarray(np.linalg.norm(self.codebook, axis=1), dtype=np.float64)

    @property
    def used(self) -> BoolArray:
        """Which codes have at least one token, (K,)."""
        return np.asarray(self.counts > 0, dtype=np.bool_)

    @property
    def finite(self) -> BoolArray:
        """Which codes are free of NaN and infinity, (K,): a diverged run still deserves its figures."""
        return np.asarray(np.isfinite(self.codebook).all(axis=1), dtype=np.bool_)

    @property
    def size(self) -> int:
        """K."""
        return int(self.counts.shape[0])

    @property
    def used_count(self) -> int:
        return int(self.used.sum())

    @property
    def token_count(self) -> int:
        return int(self.counts.sum())

    @property
    def usage(self) -> float:
        return self.used_count / self.size

    @property
    def perplexity(self) -> float:
        """exp of the entropy of code use: how many codes an even use would need to be as varied. NaN without tokens."""
        if self.token_count == 0:
            return float("nan")
        shares = self.counts[self.used] / self.token_count
        return float(np.exp(-(shares * np.log(shares)).sum()))

    @cached_property
    def near_duplicates(self) -> int:
        """How many finite codes have another close by, as the metric `near_duplicate_share_distance` counts them."""
        codes = torch.from_numpy(self.codebook[self.finite])
        return round(near_duplicate_share(codes)["distance"] * len(codes)) if len(codes) > 1 else 0

    def most_used_first(self) -> IntArray:
        """Indices of the finite codes by falling count; a stable sort, so that ties keep the codebook's order."""
        order = np.argsort(-self.counts, kind="stable")
        return np.asarray(order[self.finite[order]], dtype=np.int64)

    def _read(self, name: str) -> Tensor:
        try:
            with safe_open(self.path, framework="pt") as file:
                if name not in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    raise ArcvqError(f"{self.path}: no tensor called {name}; a snapshot has codebook and counts")
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ArcvqError(f"{self.path}: not a readable codebook snapshot ({reason})") from error


def evenly_spaced(indices: IntArray, limit: int) -> IntArray:
    """At most `limit` of the indices, evenly spaced along their order: the same choice every time."""
    if len(indices) <= limit:
        return indices
    return indices[np.linspace(0, len(indices) - 1, limit).round().astype(np.int64)]
