"""Two sets of features compared beyond FID: KID, precision and recall; and the Inception Score of one set's logits.

All are computed in float64, on the device of the features, and without a matrix of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from arcvq.errors import ArcvqError, Diverged

# torch-fidelity's defaults: the same subsets, order and splits, and so the same numbers.
SUBSETS, SUBSET_SIZE, SPLITS, SEED = 100, 1000, 10, 2020
# Rows and columns of a block of distances: 8 MiB of float64. On a CPU, blocks of 4096 take three times as long.
BLOCK = 1024
# Squared distances below this share of the squared norms are rounding errors of float64 products of equal features.
ROUNDING = 1e-12


class MeanAndStd(NamedTuple):
    """A metric's mean over subsets or splits, and its standard deviation over them."""

    mean: float
    std: float


def kernel_distance(
    real: Tensor, fake: Tensor, *, subsets: int = SUBSETS, subset_size: int = SUBSET_SIZE, seed: int = SEED
) -> MeanAndStd:
    """Kernel inception distance (KID) of features (N, D) and (M, D): the unbiased squared MMD with the kernel (x·y / D + 1)³.

    The mean and standard deviation over `subsets` random subsets of `subset_size` features of each side, or of as many as the
    smaller side has. Its expectation does not depend on N; a value below 0 means that no difference was found.
    """
    check_features(real, fake)
    size = min(subset_size, len(real), len(fake))
    if size < 2 or subsets < 1:
        raise ArcvqError(f"KID needs at least 1 subset of at least 2 features, but got {subsets} subsets of {size}")
    draws = np.random.RandomState(seed)  # torch-fidelity's order of draws: of the generated, then of the real features
    values = []
    for _ in range(subsets):
        chosen = [
            side[torch.from_numpy(draws.choice(len(side), size, replace=False)).to(side.device)].double()
            for side in (fake, real)
        ]
        values.append(_squared_mmd(*chosen))
    estimates = torch.stack(values)
    return MeanAndStd(float(estimates.mean()), float(estimates.std(correction=0)))


def _squared_mmd(x: Tensor, y: Tensor) -> Tensor:
    """The unbiased estimate of the squared MMD of x and y, both (m, D)."""
    count = len(x)
    within = torch.zeros((), dtype=x.dtype, device=x.device)
    for side in (x, y):
        kernel = _cubic_kernel(side, side)
        within = within + (kernel.sum() - kernel.trace()) / (count * (count - 1))
    return within - 2 * _cubic_kernel(x, y).mean()


def _cubic_kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


def inception_score(logits: Tensor, *, splits: int = SPLITS, seed: int | None = SEED) -> MeanAndStd:
    """Inception Score of logits (N, C): exp of the mean KL divergence of p(y|x) from p(y), which lies between 1 and C.

    The mean and standard deviation over `splits` parts of the images. They are shuffled first, because images in the order of
    their classes would give parts of few classes; with `seed=None` they are not.
    """
    check_features(logits)
    count = len(logits)
    if not 1 <= splits <= count:
        raise ArcvqError(f"the Inception Score needs at least one image in each split, but got {count} in {splits}")
    if seed is not None:
        order = np.random.RandomState(seed).permutation(count)
        logits = logits[torch.from_numpy(order).to(logits.device)]
    scores = []
    for i in range(splits):
        shares = logits[i * count // splits : (i + 1) * count // splits].double().softmax(dim=1)
        # The mean KL divergence is the entropy of the mean, less the mean entropy; a share of 0 counts as 0.
        gap = torch.special.entr(shares.mean(dim=0)).sum() - torch.special.entr(shares).sum(dim=1).mean()
        scores.append(gap.exp())
    values = torch.stack(scores)
    return MeanAndStd(float(values.mean()), float(values.std(correction=0)))


class PrecisionRecall(NamedTuple):
    """How many generated images look real, and how many real images could have been generated; each from 0 to 1."""

    precision: float
    recall: float


def precision_recall(real: Tensor, fake: Tensor, *, k: int = 3, block: int = BLOCK) -> PrecisionRecall:
    """Precision and recall of features (N, D) and (M, D), as k-nearest-neighbour balls (Kynkäänniemi et al., 2019).

    Each feature has a ball that reaches to its k-th nearest neighbour in its own set, itself not counted. Precision is the share of
    `fake` in a ball of `real`, recall the share of `real` in a ball of `fake`. Both depend on N and M.
    """
    check_features(real, fake)
    if k < 1 or min(len(real), len(fake)) <= k:
        raise ArcvqError(
            f"precision and recall with k = {k} need more than {max(k, 1)} features on each side and k at least 1, but got "
            f"{len(real)} real and {len(fake)} generated"
        )
    # Distances do not change with the origin; near the mean, products round less.
    centre = real.double().mean(dim=0)
    real_radii, fake_radii = (_squared_radii(side, centre, k, block) for side in (real, fake))
    real_covered = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    fake_covered = torch.zeros(len(fake), dtype=torch.bool, device=real.device)
    for rows, columns, squared in squared_distances(real, fake, centre, block):
        fake_covered[columns] |= (squared <= real_radii[rows, None]).any(dim=0)
        real_covered[rows] |= (squared <= fake_radii[columns]).any(dim=1)
    return PrecisionRecall(float(fake_covered.double().mean()), float(real_covered.double().mean()))


def _squared_radii(features: Tensor, centre: Tensor, k: int, block: int) -> Tensor:
    """The squared distance (N,) of each feature to its k-th nearest neighbour; itself is the nearest, at 0."""
    nearest = torch.full((len(features), k + 1), torch.inf, dtype=torch.float64, device=features.device)
    for rows, _, squared in squared_distances(features, features, centre, block):
        nearest[rows] = torch.cat([nearest[rows], squared], dim=1).topk(k + 1, dim=1, largest=False).values
    return nearest.amax(dim=1)


def squared_distances(x: Tensor, y: Tensor, centre: Tensor, block: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the squared distances of x (N, D) and y (M, D) in blocks: rows, columns, float64 (n, m). Equal features have 0."""
    for first_row in range(0, len(x), block):
        rows = slice(first_row, min(first_row + block, len(x)))
        a = x[rows].double() - centre
        a_norms = a.square().sum(dim=1, keepdim=True)
        for first_column in range(0, len(y), block):
            columns = slice(first_column, min(first_column + block, len(y)))
            b = y[columns].double() - centre
            norms = a_norms + b.square().sum(dim=1)
            squared = norms - 2 * (a @ b.T)
            yield rows, columns, squared.masked_fill(squared < ROUNDING * norms, 0.0)


def check_features(*sides: Tensor) -> None:
    """Raise unless each side is (N, D) with the same D, on the same device, and finite."""
    for side in sides:
        if side.ndim != 2 or not len(side) or not side.is_floating_point():
            raise ArcvqError(
                f"features are floats (N, D) with at least one row, but got {side.dtype} {tuple(side.shape)}"
            )
        if side.shape[1] != sides[0].shape[1] or side.device != sides[0].device:
            raise ArcvqError(
                f"both sets of features must have one width and device, but they have {sides[0].shape[1]} on "
                f"{sides[0].device} and {side.shape[1]} on {side.device}"
            )
        if not bool(side.isfinite().all()):
            raise Diverged("the features have values that are not finite; the generator has diverged or is damaged")
