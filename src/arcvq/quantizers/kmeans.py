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

    Starts from distinct random points; an empty cluster moves onto the point farthest from its centre. With fewer points
    than clusters the points are repeated with a little noise, so that no two centres coincide.
    """
    if points.shape[0] < 1:
        raise ArcvqError("k-means needs at least one point, got none")
    points = points.detach().to(torch.float32)
    if metric == "cosine":
        points = unit(points)
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same start on every device
    count = points.shape[0]
    order = torch.randperm(count, generator=generator)
    chosen = order[torch.arange(clusters) % count].to(points.device)
    centres = points[chosen].clone()
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


def _fill_empty(centres: Tensor, sizes: Tensor, points: Tensor, tokens: Tensor) -> None:
    empty = (sizes == 0).nonzero().squeeze(1)
    if empty.numel():
        distance = (points - centres[tokens]).square().sum(dim=1)
        centres[empty] = points[distance.topk(empty.numel()).indices]
