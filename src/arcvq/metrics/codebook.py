"""Codebook statistics: its use, from token counts (K,), and its geometry, from the codes (K, D)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from arcvq.errors import ArcvqError, Diverged

# Codes that are compared with all others at a time: BLOCK_ROWS x K float64, 800 MB at K = 100,000.
BLOCK_ROWS = 1024
COVERAGE_PERCENT = (50, 90, 99)
NEAR_DUPLICATE_COSINE = 0.99
NEAR_DUPLICATE_DISTANCE = 0.1


def usage(counts: Tensor) -> float:
    """Share of codes with at least one token, 0 to 1. It grows with the number of tokens."""
    check_counts(counts)
    return float((counts > 0).double().mean())


def perplexity(counts: Tensor) -> float:
    """exp of the entropy of the code frequencies: the number of equally frequent codes with the same entropy."""
    check_counts(counts)
    shares = counts.double() / counts.sum()
    return float(torch.special.entr(shares).sum().exp())


def bits_per_image(tokens_per_image: float, codebook_size: int) -> float:
    """Bits of an image's tokens at log2(K) bits per token."""
    if codebook_size < 1:
        raise ArcvqError(f"a codebook has at least one code, but codebook_size is {codebook_size}")
    return tokens_per_image * math.log2(codebook_size)


def coverage(counts: Tensor) -> dict[int, int]:
    """How many of the most frequent codes are needed for 50, 90 and 99 percent of all tokens."""
    check_counts(counts)
    descending = counts.to(torch.int64).sort(descending=True).values.cumsum(0)
    total = int(descending[-1])
    # Integers on both sides, so that exactly half of the tokens counts as half.
    return {percent: int((descending * 100 < total * percent).sum()) + 1 for percent in COVERAGE_PERCENT}


def check_counts(counts: Tensor) -> None:
    """Raise unless counts are (K,), not negative, and not all 0."""
    if counts.ndim != 1 or len(counts) == 0:
        raise ArcvqError(f"token counts are one number per code, (K,), but got shape {tuple(counts.shape)}")
    if bool((counts < 0).any()) or float(counts.sum()) <= 0:
        raise ArcvqError("token counts must not be negative, and at least one token must have been counted")


@dataclass(frozen=True)
class Neighbours:
    """Nearest neighbour of every code, and the uniformity of the codebook."""

    distance: Tensor  # (K,) Euclidean distance to the nearest other code
    cosine: Tensor  # (K,) largest cosine with another code; 0 for a zero code
    uniformity: float


def neighbours(codebook: Tensor) -> Neighbours:
    """Distance and cosine of every code to its nearest other code, and the uniformity, in float64 and in blocks of rows."""
    codes = check_codebook(codebook)
    size = len(codes)
    if size < 2:
        raise ArcvqError(f"distances between codes need at least 2 codes, but the codebook has {size}")
    directions = torch.nn.functional.normalize(codes, dim=1)
    squared_norms = codes.square().sum(1)
    distance = torch.empty(size, dtype=torch.float64, device=codes.device)
    cosine = torch.empty_like(distance)
    potential = torch.zeros((), dtype=torch.float64, device=codes.device)
    for first in range(0, size, BLOCK_ROWS):
        rows = torch.arange(first, min(first + BLOCK_ROWS, size), device=codes.device)
        itself = (rows - first, rows)

        cosines = directions[rows] @ directions.T  # (R, K)
        cosines[itself] = -torch.inf  # a code is not its own neighbour
        cosine[rows] = cosines.amax(1)

        squared_directions = directions.square().sum(1)  # 1, or 0 for a zero code
        gaps = squared_directions[rows, None] + squared_directions - 2 * cosines  # ‖û - v̂‖²; infinite on the diagonal
        potential += (-2 * gaps).exp().sum()

        squared = squared_norms[rows, None] + squared_norms - 2 * (codes[rows] @ codes.T)
        squared[itself] = torch.inf
        # The expanded square is inexact for close codes: use it only to find the neighbour, then subtract.
        distance[rows] = (codes[rows] - codes[squared.argmin(1)]).norm(dim=1)
    mean_potential = float(potential) / (size * (size - 1))
    return Neighbours(distance, cosine.clamp(-1.0, 1.0), math.log(mean_potential))


def uniformity(codebook: Tensor) -> float:
    """Uniformity of the code directions: log mean exp(-2 ‖û - v̂‖²) over pairs (Wang & Isola, t = 2).

    Lower is more uniform: -8 for two opposite codes, -4 for orthogonal ones, 0 for equal directions.
    """
    return neighbours(codebook).uniformity


def norms(codebook: Tensor) -> dict[str, float]:
    """Mean, quantiles and spread (standard deviation over mean) of the codes' norms."""
    lengths = check_codebook(codebook).norm(dim=1)
    mean = float(lengths.mean())
    quantiles = lengths.quantile(torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0], dtype=torch.float64, device=lengths.device))
    minimum, low, median, high, maximum = quantiles.tolist()
    return {
        "mean": mean,
        "min": minimum,
        "q05": low,
        "median": median,
        "q95": high,
        "max": maximum,
        "spread": float(lengths.std(correction=0)) / mean if mean > 0 else 0.0,
    }


def near_duplicate_shares(
    codebook: Tensor, *, min_cosine: float = NEAR_DUPLICATE_COSINE, max_distance: float = NEAR_DUPLICATE_DISTANCE
) -> dict[str, float]:
    """Shares of codes with a near duplicate: {"cosine": share, "distance": share}.

    `cosine`: the cosine with another code is above `min_cosine` (0.99: within about 8 degrees), whatever its norm. `distance`:
    another code is closer than `max_distance` times the mean norm of all codes.
    """
    return duplicate_shares(
        neighbours(codebook), float(check_codebook(codebook).norm(dim=1).mean()), min_cosine, max_distance
    )


def duplicate_shares(nearest: Neighbours, mean_norm: float, cosine: float, distance: float) -> dict[str, float]:
    """Shares of codes whose neighbour has a larger cosine, or is closer than `distance` times the mean norm."""
    return {
        "cosine": float((nearest.cosine > cosine).double().mean()),
        "distance": float((nearest.distance < distance * mean_norm).double().mean()),
    }


def geometry(codebook: Tensor) -> dict[str, float]:
    """Norms, uniformity, nearest neighbours and near duplicates in one flat dict; only norms for a single code."""
    lengths = norms(codebook)
    result = {f"norm_{key}": value for key, value in lengths.items()}
    if len(codebook) < 2:
        return result
    nearest = neighbours(codebook)
    shares = duplicate_shares(nearest, lengths["mean"], NEAR_DUPLICATE_COSINE, NEAR_DUPLICATE_DISTANCE)
    return result | {
        "uniformity": nearest.uniformity,
        "nearest_neighbour_mean": float(nearest.distance.mean()),
        "nearest_neighbour_median": float(nearest.distance.quantile(0.5)),
        "near_duplicate_share": shares["cosine"],
        "near_duplicate_share_distance": shares["distance"],
    }


def check_codebook(codebook: Tensor) -> Tensor:
    """Check that codes are (K, D) and finite; returns them as float64, detached."""
    if codebook.ndim != 2 or len(codebook) == 0:
        raise ArcvqError(f"a codebook is (K, D) with at least one code, but got shape {tuple(codebook.shape)}")
    codes = codebook.detach().double()
    if not bool(codes.isfinite().all()):
        raise Diverged("the codebook has codes that are not finite; training has diverged")
    return codes
