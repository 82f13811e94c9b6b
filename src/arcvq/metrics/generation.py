"""Metrics of generated images: how they are distributed, beside a reference set."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arcvq.data import Images
from arcvq.errors import ArcvqError
from arcvq.metrics.distributions import inception_score, kernel_distance, precision_recall
from arcvq.metrics.fid import fid_batch_size, frechet_distance
from arcvq.metrics.generation_features import (
    NEEDS_INCEPTION,
    Features,
    GenerationNetworks,
    load_generation_networks,
    reference_features,
)
from arcvq.metrics.labels import metric_label
from arcvq.metrics.sampling import GenerationProtocol

# `kid` and `inception_score` are two numbers each, a mean and a standard deviation; so are the two pairs of precision and recall.
GENERATION_METRICS = ("gfid", "kid", "inception_score", "precision_recall", "precision_recall_vgg", "duplicate_share")


@dataclass(frozen=True)
class GenerationEvaluation:
    """The measured metrics of a generator under one protocol."""

    metrics: dict[str, float]
    # metric -> why it was not measured and what to do; never a metric that is in `metrics`
    missing: dict[str, str]
    protocol: GenerationProtocol
    seconds: float  # with those that the generator took

    def label(self, metric: str) -> str:
        """The metric's label; that of FID states the number of images, and whether they are few."""
        label = metric_label(metric).label
        if metric != "gfid":
            return label
        return f"{label} of {self.protocol.images:,} images{', biased upwards' if self.protocol.few_images else ''}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for a results file, with the whole protocol."""
        return {
            "protocol": self.protocol.to_json(),
            "protocol_hash": self.protocol.hash,
            "images": self.protocol.images,
            "seconds": self.seconds,
            "metrics": dict(self.metrics),
            "missing": dict(self.missing),
        }


def measure_generation(
    batches: Iterable[Tensor],
    reference: Images,
    protocol: GenerationProtocol,
    *,
    metrics: Sequence[str] | None = None,
    networks: GenerationNetworks | None = None,
    device: torch.device | str = "cpu",
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationEvaluation:
    """Measure generated images beside `reference`, in one pass over each.

    `batches` gives the generated images as uint8 (B, C, H, W), rounded as the protocol says. They are cut into batches anew, so that
    the result does not depend on how they come, and are not kept. `metrics` selects names of GENERATION_METRICS; None means all.
    Without `networks` these are loaded, and `download` lets them download missing weights. `progress` is called with the number of
    images done and in all, the reference's first.
    """
    started = time.perf_counter()
    device = torch.device(device)
    wanted = requested_generation_metrics(metrics)
    if len(reference) != protocol.reference_images:
        raise ArcvqError(
            f"the protocol states {protocol.reference_images} reference images, but {reference.name} has {len(reference)}"
        )
    networks = networks or load_generation_networks(wanted, device=device, download=download)
    missing = {name: reason for name, reason in _reasons(protocol, networks).items() if name in wanted}
    wanted -= missing.keys()
    done = 0

    def add_to_progress(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, protocol.images + protocol.reference_images)

    real = reference_features(reference, protocol, networks, wanted, device, add_to_progress)
    fake = Features(protocol, networks, wanted, logits=True)
    digests: set[bytes] = set()
    for images in _rebatch(_checked(batches, reference, protocol.images), fid_batch_size(device), device):
        fake.update(images)
        if "duplicate_share" in wanted:
            digests.update(hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images.cpu().numpy())
        add_to_progress(len(images))

    measured = _compare(real, fake, protocol, wanted, device)
    if "duplicate_share" in wanted:
        measured["duplicate_share"] = 1 - len(digests) / protocol.images
    return GenerationEvaluation(measured, missing, protocol, time.perf_counter() - started)


def _compare(
    real: Features, fake: Features, protocol: GenerationProtocol, wanted: set[str], device: torch.device
) -> dict[str, float]:
    """The metrics of two sets of features, in the order of GENERATION_METRICS."""
    measured: dict[str, float] = {}
    if real.statistics is not None and fake.statistics is not None:
        measured["gfid"] = frechet_distance(real.statistics, fake.statistics)
    if "kid" in wanted:
        measured["kid"], measured["kid_std"] = kernel_distance(
            real.get("inception", device),
            fake.get("inception", device),
            subsets=protocol.kid_subsets,
            subset_size=protocol.kid_subset_size,
            seed=protocol.metric_seed,
        )
    if "inception_score" in wanted:
        measured["inception_score"], measured["inception_score_std"] = inception_score(
            fake.get("logits", device), splits=protocol.inception_splits, seed=protocol.metric_seed
        )
    for metric, name, suffix in (("precision_recall", "inception", ""), ("precision_recall_vgg", "vgg", "_vgg")):
        if metric in wanted:
            measured[f"precision{suffix}"], measured[f"recall{suffix}"] = precision_recall(
                real.get(name, device), fake.get(name, device), k=protocol.neighbours
            )
    return measured


def _reasons(protocol: GenerationProtocol, networks: GenerationNetworks) -> dict[str, str]:
    """Why metrics cannot be measured: no network, or too few images on a side."""
    fewest, reference = min(protocol.images, protocol.reference_images), protocol.reference_images
    kept = min(fewest, protocol.reference_features)
    few = f"there are {protocol.images} generated and {reference} reference images"
    reasons: dict[str, str] = {}
    if fewest < 2:
        reasons["gfid"] = f"FID needs at least 2 images on each side; {few}"
    if kept < 2:
        reasons["kid"] = f"KID needs at least 2 images on each side; {few}"
    if protocol.images < protocol.inception_splits:
        reasons["inception_score"] = (
            f"the Inception Score needs an image in each of {protocol.inception_splits} splits; {few}"
        )
    if kept <= protocol.neighbours:
        reason = f"precision and recall need more than {protocol.neighbours} images on each side; {few}"
        reasons.update(precision_recall=reason, precision_recall_vgg=reason)
    for metric, network in {
        **dict.fromkeys(NEEDS_INCEPTION, networks.inception),
        "inception_score": None if networks.inception is None else networks.head,
        "precision_recall_vgg": networks.vgg,
    }.items():
        if network is None:
            reasons.setdefault(metric, "its network was not given")
    return reasons | networks.missing


def _checked(batches: Iterable[Tensor], reference: Images, expected: int) -> Iterator[Tensor]:
    """Yield the generated batches; raise unless they are like the reference's images and as many as stated."""
    shape = (reference.channels, reference.height, reference.width)
    count = 0
    for images in batches:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ArcvqError(
                f"generated images are uint8 (B, C, H, W), but got {images.dtype} {tuple(images.shape)}; convert floats "
                "in [-1, 1] with to_uint8"
            )
        if tuple(images.shape[1:]) != shape:
            raise ArcvqError(
                f"generated images are {tuple(images.shape[1:])}, but those of {reference.name} are {shape}; compare "
                "images of one size"
            )
        count += len(images)
        if count > expected:
            raise ArcvqError(f"the protocol states {expected} images, but more were generated")
        yield images
    if count < expected:
        raise ArcvqError(f"the protocol states {expected} images, but {count} were generated")


def _rebatch(batches: Iterable[Tensor], size: int, device: torch.device) -> Iterator[Tensor]:
    """Join and cut batches so that each has `size` images, but for the last."""
    parts: list[Tensor] = []
    waiting = 0
    for batch in batches:
        batch = batch.to(device)
        while len(batch):
            part, batch = batch[: size - waiting], batch[size - waiting :]
            parts.append(part)
            waiting += len(part)
            if waiting == size:
                yield torch.cat(parts)
                parts, waiting = [], 0
    if parts:
        yield torch.cat(parts)


def requested_generation_metrics(metrics: Sequence[str] | None) -> set[str]:
    """The names as a set, all of GENERATION_METRICS for None; an unknown name is an error."""
    unknown = [name for name in metrics or () if name not in GENERATION_METRICS]
    if unknown:
        raise ArcvqError(f"unknown metric {unknown[0]!r}; choose from {', '.join(GENERATION_METRICS)}")
    return set(GENERATION_METRICS if metrics is None else metrics)
