"""Lloyd's algorithm, for codebooks that start where the latents are."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import Metric, assign, token_counts, token_sums, unit


@torch.no_grad()
def kmeans(
    points: Tensor, clusters: int, *, metric: Metric = "euclidean", iterations: int = 10, seed: int = 0
) -> Tensor:
    """points (N, D) → centres (clusters, D). Spherical (unit centres) for the cosine metric.

    Starts with k-means++; an empty cluster moves onto the point farthest from its centre. With fewer points than clusters the points
    are repeated with a little noise, so that no two centres coincide.
    """
    if points.shape[0] < 1:
        raise ArcvqError("k-means needs at least one point, got none")
    points = points.detach().to(torch.float32)
    if metric == "cosine":
        points = unit(points)
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same start on every device
    count = points.shape[0]
    chosen = spread_points(points, min(clusters, count), generator)
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
            _fill_empty(centres, sizes, points, tokens)
        if metric == "cosine":
            centres = unit(centres)
    return centres


def spread_points(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """int64 (number,), rows of points (N, D) as k-means++ draws them: each with probability in proportion to its squared distance from
    the nearest row drawn before (Arthur and Vassilvitskii, 2007). The host reads nothing."""
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


def _fill_empty(centres: Tensor, sizes: Tensor, points: Tensor, tokens: Tensor) -> None:
    empty = (sizes == 0).nonzero().squeeze(1)
    if empty.numel():
        distance = (points - centres[tokens]).square().sum(dim=1)
        centres[empty] = points[distance.topk(empty.numel()).indices]
