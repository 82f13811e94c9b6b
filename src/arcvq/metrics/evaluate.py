"""Measure all metrics of a tokenizer in one pass over a set of images, under one or several protocols."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arcvq.data import Images, batches, to_unit
from arcvq.errors import ArcvqError
from arcvq.metrics.networks import keep_networks
from arcvq.metrics.paired import KID, PAIRED_METRICS, Comparison, check_reconstruction
from arcvq.metrics.protocols import Protocol
from arcvq.metrics.protocols import protocol as protocol_named
from arcvq.metrics.tokens import CODEBOOK_METRICS, TokenCounts, geometry_results

Reconstruct = Callable[[Tensor], tuple[Tensor, Tensor | None]]

# `coverage` and `geometry` are several numbers each.
METRICS = (*PAIRED_METRICS, *CODEBOOK_METRICS)
# Measured only when asked for, because it takes a second pass: by `evaluate_perturbed`, which needs a tokenizer.
PFID = "pfid"


@dataclass(frozen=True)
class Evaluation:
    """The measured metrics of a tokenizer under one protocol."""

    metrics: dict[str, float]
    # metric -> why it was not measured and what to do; never a metric that is in `metrics`
    missing: dict[str, str]
    # int64 (K,): how often each code was chosen; None without tokens
    counts: Tensor | None
    protocol: str
    protocol_hash: str
    images: int
    seconds: float  # divided evenly between protocols that were measured together

    def to_json(self) -> dict[str, Any]:
        """Plain values for a results file, without the counts, which are one number per code."""
        return {
            "protocol": self.protocol,
            "protocol_hash": self.protocol_hash,
            "images": self.images,
            "seconds": self.seconds,
            "metrics": dict(self.metrics),
            "missing": dict(self.missing),
        }


def evaluate(
    reconstruct: Reconstruct,
    images: Images,
    *,
    protocol: Protocol | str = "exact",
    codebook: Tensor | None = None,
    codebook_size: int | None = None,
    choices: int | None = None,
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    metrics: Sequence[str] | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure `reconstruct` on every image, under one protocol.

    `reconstruct` takes floats (B, C, H, W) in [-1, 1] and returns reconstructions of that shape and range, and int64
    tokens (B, ...) in which -1 is padding, or None. `codebook_size` is for quantizers without a codebook of vectors, and
    `choices` for those with several codebooks, whose tokens are rows of all of them: how many codes each token chooses from.
    `metrics` selects names of METRICS, or `kid`; None means all of METRICS. `download` lets LPIPS and FID download missing weights.
    `progress` is called with the number of images done and in all. The random numbers that `reconstruct` draws are the same every
    time on the same device with the same `batch_size`, and the random state outside does not change.
    """
    (evaluation,) = evaluate_under(
        [protocol],
        reconstruct,
        images,
        codebook=codebook,
        codebook_size=codebook_size,
        choices=choices,
        batch_size=batch_size,
        device=device,
        metrics=metrics,
        download=download,
        progress=progress,
    )
    return evaluation


def evaluate_under(
    protocols: Sequence[Protocol | str],
    reconstruct: Reconstruct,
    images: Images,
    *,
    codebook: Tensor | None = None,
    codebook_size: int | None = None,
    choices: int | None = None,
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    metrics: Sequence[str] | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Evaluation]:
    """Like `evaluate`, under several protocols: every image is reconstructed once."""
    started = time.perf_counter()
    device = torch.device(device)
    chosen = [protocol_named(protocol) if isinstance(protocol, str) else protocol for protocol in protocols]
    wanted = requested_metrics(metrics)
    total = len(images)
    if total == 0:
        raise ArcvqError(f"{images.name} has no images to evaluate on")
    if codebook is not None and codebook_size is None:
        codebook_size = len(codebook)

    with keep_networks():
        comparisons = [Comparison(protocol, images, wanted, device, download, batch_size) for protocol in chosen]
    token_counts = TokenCounts(codebook_size, device, choices)
    done = 0
    with torch.no_grad(), fixed_random_state(device):
        started_comparisons: list[Callable[[], None]] = []
        for pixels in batches(images, batch_size, device=device):  # uint8 (B, C, H, W)
            reconstruction, tokens = reconstruct(to_unit(pixels))
            check_reconstruction(reconstruction, pixels)
            if tokens is not None:
                token_counts.update(tokens)
            # Threads compress this batch's images while the device compares those of the batch before.
            following = [comparison.start(pixels, reconstruction) for comparison in comparisons]
            for finish in started_comparisons:
                finish()
            started_comparisons = following
            done += len(pixels)
            if progress is not None:
                progress(done, total)
        for finish in started_comparisons:
            finish()

    image_results = [comparison.results(total) for comparison in comparisons]
    code_results = [token_counts.results(wanted, total), geometry_results(wanted, codebook, token_counts.counts)]
    unperturbed = {PFID: "needs a tokenizer, whose tokens evaluate_perturbed changes"} if PFID in wanted else {}
    counts = None if token_counts.counts is None else token_counts.counts.cpu()
    seconds = (time.perf_counter() - started) / max(1, len(chosen))
    return [
        Evaluation(
            metrics={name: value for measured, _ in (own, *code_results) for name, value in measured.items()},
            missing={name: reason for _, missing in (own, *code_results) for name, reason in missing.items()}
            | unperturbed,
            counts=counts,
            protocol=protocol.name,
            protocol_hash=protocol.hash,
            images=total,
            seconds=seconds,
        )
        for protocol, own in zip(chosen, image_results)
    ]


@contextmanager
def fixed_random_state(device: torch.device) -> Iterator[None]:
    """Seed the generators of the CPU and of `device` with 0, and restore their state afterwards."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(0)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(0)
        yield


def requested_metrics(metrics: Sequence[str] | None) -> set[str]:
    """The names as a set, all of METRICS (without KID and pFID) for None; an unknown name is an error."""
    if metrics is None:
        return set(METRICS)
    names = (*METRICS, KID, PFID)
    unknown = [name for name in metrics if name not in names]
    if unknown:
        raise ArcvqError(f"unknown metric {unknown[0]!r}; choose from {', '.join(names)}")
    return set(metrics)
