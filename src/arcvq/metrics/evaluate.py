"""One pass over a set of images, all metrics of a tokenizer, under one protocol or several."""

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
from arcvq.metrics.paired import PAIRED_METRICS, Comparison, check_reconstruction
from arcvq.metrics.protocols import Protocol
from arcvq.metrics.protocols import protocol as protocol_named
from arcvq.metrics.tokens import CODEBOOK_METRICS, TokenCounts, code_geometry

Reconstruct = Callable[[Tensor], tuple[Tensor, Tensor | None]]

# `coverage` and `geometry` stand for several numbers each.
METRICS = (*PAIRED_METRICS, *CODEBOOK_METRICS)


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]
    # metric -> why it was not measured and what brings it; a metric stands in one of the two, never in both
    missing: dict[str, str]
    # int64 (K,): how often each code was chosen; None without tokens
    counts: Tensor | None
    protocol: str
    protocol_hash: str
    images: int
    seconds: float  # protocols that are measured together share them evenly

    def to_json(self) -> dict[str, Any]:
        """Plain values for a results file. The counts stay out: they are one number per code."""
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
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    metrics: Sequence[str] | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure `reconstruct` on every image, under one protocol.

    `reconstruct` takes floats (B, C, H, W) in [-1, 1] and returns reconstructions of that shape and range, and int64
    tokens (B, ...) in which -1 is padding, or None. `codebook_size` is for quantizers without a codebook of vectors.
    `metrics` picks from METRICS; None means all. `download` lets LPIPS and FID fetch their networks when they are not
    here. `progress` is called with images done and images in all. What `reconstruct` draws at random is the same every time, on
    the same device with the same `batch_size`, and what is drawn afterwards is as if nothing had been measured.
    """
    (found,) = evaluate_under(
        [protocol],
        reconstruct,
        images,
        codebook=codebook,
        codebook_size=codebook_size,
        batch_size=batch_size,
        device=device,
        metrics=metrics,
        download=download,
        progress=progress,
    )
    return found


def evaluate_under(
    protocols: Sequence[Protocol | str],
    reconstruct: Reconstruct,
    images: Images,
    *,
    codebook: Tensor | None = None,
    codebook_size: int | None = None,
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    metrics: Sequence[str] | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Evaluation]:
    """As `evaluate`, under several protocols: every image is reconstructed once."""
    started = time.perf_counter()
    device = torch.device(device)
    chosen = [protocol_named(protocol) if isinstance(protocol, str) else protocol for protocol in protocols]
    wanted = check_metrics(metrics)
    total = len(images)
    if total == 0:
        raise ArcvqError(f"{images.name} has no images to evaluate on")
    if codebook is not None and codebook_size is None:
        codebook_size = len(codebook)

    with keep_networks():
        comparisons = [Comparison(protocol, images, wanted, device, download, batch_size) for protocol in chosen]
    tokens_seen = TokenCounts(codebook_size, device)
    done = 0
    with torch.no_grad(), same_draws(device):
        begun: list[Callable[[], None]] = []
        for pixels in batches(images, batch_size, device=device):  # uint8 (B, C, H, W)
            reconstruction, tokens = reconstruct(to_unit(pixels))
            check_reconstruction(reconstruction, pixels)
            if tokens is not None:
                tokens_seen.update(tokens)
            # The host works on this batch's files while the device compares the images of the one before.
            ahead = [comparison.begin(pixels, reconstruction) for comparison in comparisons]
            for finish in begun:
                finish()
            begun = ahead
            done += len(pixels)
            if progress is not None:
                progress(done, total)
        for finish in begun:
            finish()

    of_images = [comparison.results(total) for comparison in comparisons]
    of_codes = [tokens_seen.results(wanted, total), code_geometry(wanted, codebook, tokens_seen.counts)]
    counts = None if tokens_seen.counts is None else tokens_seen.counts.cpu()
    seconds = (time.perf_counter() - started) / max(1, len(chosen))
    return [
        Evaluation(
            metrics={name: value for found, _ in (own, *of_codes) for name, value in found.items()},
            missing={name: reason for _, absent in (own, *of_codes) for name, reason in absent.items()},
            counts=counts,
            protocol=protocol.name,
            protocol_hash=protocol.hash,
            images=total,
            seconds=seconds,
        )
        for protocol, own in zip(chosen, of_images)
    ]


@contextmanager
def same_draws(device: torch.device) -> Iterator[None]:
    """Random numbers as from a fresh generator, on the CPU and on this device; those of before go on afterwards."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(0)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(0)
        yield


def check_metrics(metrics: Sequence[str] | None) -> set[str]:
    if metrics is None:
        return set(METRICS)
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise ArcvqError(f"unknown metric {unknown[0]!r}; choose from {', '.join(METRICS)}")
    return set(metrics)
