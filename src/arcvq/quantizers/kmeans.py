"""k-means (Lloyd's algorithm), to initialize a codebook from latents or features, and to make one smaller."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import Metric, assign, token_counts, token_sums, unit

# With more clusters the init is random points: k-means++ draws one point after the other.
MAX_CAREFUL_CLUSTERS = 4096


@torch.no_grad()
def kmeans(
    points: Tensor, clusters: int, *, metric: Metric = "euclidean", iterations: int = 10, seed: int = 0
) -> Tensor:
    """The k-means centres of points (N, D): (clusters, D). Unit vectors for the cosine metric.

    The init is k-means++, or distinct random points for more than 4,096 clusters; the centre of an empty cluster moves onto the
    point farthest from its centre. With fewer points than clusters the points are repeated with a little noise, so that no two
    centres are equal. Distances are computed block by block, so that a hundred thousand clusters take no matrix of all of them.
    """
    if points.shape[0] < 1:
        raise ArcvqError("k-means needs at least one point, got none")
    points = points.detach().to(torch.float32)
    if metric == "cosine":
        points = unit(points)
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same init on every device
    count = points.shape[0]
    if clusters > MAX_CAREFUL_CLUSTERS:
        chosen = torch.randperm(count, generator=generator)[:clusters].to(points.device)
    else:
        chosen = kmeans_plus_plus(points, min(clusters, count), generator)
    centres = points[chosen[torch.arange(clusters, device=points.device) % count]]
    if clusters > count:
        noise = torch.randn(centres.shape, generator=generator).to(points.device)
        centres[count:] += 0.01 * points.std(unbiased=False).clamp(min=1e-3) * noise[count:]
    for _ in range(iterations):
        tokens = assign(points, centres, metric)
        sizes = token_counts(tokens, clusters)
        sums = token_sums(points, tokens, clusters)
        centres = torch.where((sizes > 0).unsqueeze(1), sums / sizes.clamp(min=1).unsqueeze(1), centres)
        if clusters <= count:
            _move_empty_centres(centres, sizes, points, tokens)
        if metric == "cosine":
            centres = unit(centres)
    return centres


@torch.no_grad()
def kmeans_by_class(points: Tensor, labels: Tensor, clusters: int, *, iterations: int = 10, seed: int = 0) -> Tensor:
    """The k-means centres of the points (N, D) of each class, one class after the other: (clusters, D).

    labels (N,) are the points' classes. Each class gets clusters / classes of the centres, the first ones one more if that is no
    whole number.
    """
    if labels.shape != points.shape[:1]:
        raise ArcvqError(f"expected a label for each of {points.shape[0]} points, got shape {tuple(labels.shape)}")
    classes = labels.unique().tolist()
    if len(classes) > clusters:
        raise ArcvqError(f"{len(classes)} classes need at least as many codes, got {clusters}")
    share, more = divmod(clusters, max(1, len(classes)))
    parts = [
        kmeans(points[labels == each], share + (i < more), iterations=iterations, seed=seed + i)
        for i, each in enumerate(classes)
    ]
    return torch.cat(parts)


def kmeans_plus_plus(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """The k-means++ init (Arthur and Vassilvitskii, 2007): row indices of `number` of the points (N, D), int64.

    Each is drawn with probability proportional to the squared distance from the nearest row drawn before. No host read.
    """
    draws = torch.rand(number, dtype=torch.float64, generator=generator).to(points.device)
    weights = torch.ones(points.shape[0], dtype=torch.float64, device=points.device)
    chosen: list[Tensor] = []
    for draw in draws:
        sums = weights.cumsum(dim=0)
        row = torch.searchsorted(sums, (draw * sums[-1]).unsqueeze(0), right=True).clamp(max=points.shape[0] - 1)
        distances = (
            torch.cdist(points, points[row], compute_mode="donot_use_mm_for_euclid_dist").double().square().squeeze(1)
        )
        weights = torch.minimum(weights, distances) if chosen else distances
        chosen.append(row)
    return torch.cat(chosen)


def _move_empty_centres(centres: Tensor, sizes: Tensor, points: Tensor, tokens: Tensor) -> None:
    """Move the centres of empty clusters, in place, onto the points farthest from their centres."""
    empty = (sizes == 0).nonzero().squeeze(1)
    if empty.numel():
        distance = (points - centres[tokens]).square().sum(dim=1)
        centres[empty] = points[distance.topk(empty.numel()).indices]
