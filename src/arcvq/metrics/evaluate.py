"""One pass over a set of images, all metrics of a tokenizer, under one protocol or several."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.data import Images, batches, to_uint8, to_unit
from arcvq.errors import ArcvqError, Diverged
from arcvq.metrics import codebook as codebook_metrics
from arcvq.metrics.eight_bit import jpeg_ahead, original_pixels, tile_to_rgb
from arcvq.metrics.fid import FeatureStatistics, fid_features, fid_network, frechet_distance
from arcvq.metrics.image import WINDOW, l1, mse, psnr, ssim
from arcvq.metrics.lpips import TRUNKS, lpips, lpips_network
from arcvq.metrics.networks import keep_networks, kept
from arcvq.metrics.originals import originals_file, read_originals, write_originals
from arcvq.metrics.protocols import Protocol
from arcvq.metrics.protocols import protocol as protocol_named
from arcvq.metrics.weights import MissingWeights

Reconstruct = Callable[[Tensor], tuple[Tensor, Tensor | None]]

IMAGE_METRICS = ("l1", "mse", "psnr", "ssim", "lpips", "rfid")
TOKEN_METRICS = ("usage", "perplexity", "tokens_per_image", "tokens_per_code", "bits_per_image", "coverage")
# `coverage` and `geometry` stand for several numbers each.
METRICS = (*IMAGE_METRICS, *TOKEN_METRICS, "geometry")
NEEDS_CODEBOOK_SIZE = ("usage", "tokens_per_code", "bits_per_image")


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


class Comparison:
    """Originals against reconstructions: sums of per-image numbers, and FID's statistics of both sides."""

    def __init__(
        self,
        protocol: Protocol,
        images: Images,
        wanted: set[str],
        device: torch.device,
        download: bool,
        batch_size: int,
    ) -> None:
        self.protocol = protocol
        self.missing: dict[str, str] = {}
        self.lpips_network: nn.Module | None = None
        self.fid_network: nn.Module | None = None
        self.wanted = {name for name in IMAGE_METRICS if name in wanted}

        # Leave out, with the reason, what cannot be measured here.
        side = min(images.height, images.width)
        smallest = TRUNKS[protocol.lpips_network].smallest
        if side < WINDOW:
            self.leave_out("ssim", f"SSIM needs images of at least {WINDOW} pixels a side; these have {side}")
        if side < smallest:
            self.leave_out(
                "lpips",
                f"LPIPS with {protocol.lpips_network} needs at least {smallest} pixels a side; these have {side}",
            )
        if len(images) < 2:
            self.leave_out("rfid", f"FID needs at least 2 images; the set has {len(images)}")
        if "lpips" in self.wanted:
            name = protocol.lpips_network
            try:
                self.lpips_network = kept(
                    ("lpips", name, str(device)), lambda: lpips_network(name, device=device, download=download)
                )
            except MissingWeights as error:
                self.leave_out("lpips", str(error))
        if "rfid" in self.wanted:
            try:
                self.fid_network = kept(("fid", str(device)), lambda: fid_network(device=device, download=download))
                self.file = originals_file(images, protocol, self.fid_network, device, batch_size)
                self.known = read_originals(self.file, device)
                self.originals, self.copies = self.known or FeatureStatistics(), FeatureStatistics()
            except MissingWeights as error:
                self.leave_out("rfid", str(error))
        self.sums = {
            name: torch.zeros((), dtype=torch.float64, device=device) for name in sorted(self.wanted - {"rfid"})
        }

    def leave_out(self, name: str, reason: str) -> None:
        if name in self.wanted:
            self.wanted.discard(name)
            self.missing[name] = reason

    def begin(self, pixels: Tensor, reconstruction: Tensor) -> Callable[[], None]:
        """Both sides as 8-bit images; what is returned compares them."""
        if not self.wanted:
            return lambda: None
        protocol = self.protocol
        originals = original_pixels(pixels, protocol.rounding)
        copies = to_uint8(reconstruction, protocol.rounding)
        if protocol.jpeg_quality is None:
            return lambda: self.compare(originals, copies)
        sides = [jpeg_ahead(tile_to_rgb(side), protocol.jpeg_quality) for side in (originals, copies)]
        return lambda: self.compare(*(side() for side in sides))

    def compare(self, originals: Tensor, copies: Tensor) -> None:
        protocol = self.protocol
        x, y = originals.float() / 255.0, copies.float() / 255.0
        per_image: dict[str, Callable[[], Tensor]] = {
            "l1": lambda: l1(x, y),
            "mse": lambda: mse(x, y),
            "psnr": lambda: psnr(x, y),
            "ssim": lambda: ssim(x, y, protocol.ssim_window),
        }
        if self.lpips_network is not None:
            network = self.lpips_network
            per_image["lpips"] = lambda: lpips(x, y, network)
        for name, total in self.sums.items():
            total += per_image[name]().double().sum()
        if self.fid_network is not None:
            if self.known is None:
                self.originals.update(self.features(originals, self.fid_network))
            self.copies.update(self.features(copies, self.fid_network))

    def features(self, images: Tensor, network: nn.Module) -> Tensor:
        how = self.protocol
        return fid_features(images, network, resize=how.fid_resize, interpolation=how.fid_interpolation)

    def results(self, count: int) -> tuple[dict[str, float], dict[str, str]]:
        """Means over the images, in the order of IMAGE_METRICS."""
        measured = {name: float(self.sums[name]) / count for name in IMAGE_METRICS if name in self.sums}
        if self.fid_network is not None:
            measured["rfid"] = frechet_distance(self.originals, self.copies)
            if self.known is None:
                write_originals(self.file, self.originals)
        return measured, self.missing


class TokenCounts:
    """How often each code was chosen. Without a known codebook size the counts reach to the largest token seen."""

    def __init__(self, codebook_size: int | None, device: torch.device) -> None:
        self.codebook_size = codebook_size
        self.device = device
        self.counts: Tensor | None = None

    def update(self, tokens: Tensor) -> None:
        if tokens.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
            raise ArcvqError(f"tokens are whole numbers, but reconstruct returned {tokens.dtype}")
        flat = tokens.flatten().to(self.device, torch.int64)
        if len(flat) == 0:
            return
        smallest, largest = (int(value) for value in torch.aminmax(flat))
        if smallest < -1 or (self.codebook_size is not None and largest >= self.codebook_size):
            limit = "" if self.codebook_size is None else f" to {self.codebook_size - 1}"
            raise ArcvqError(f"tokens must lie in 0{limit}, or be -1 for padding, but go from {smallest} to {largest}")
        length = self.codebook_size or max(largest + 1, 1, 0 if self.counts is None else len(self.counts))
        new = torch.bincount(flat[flat >= 0], minlength=length)
        if self.counts is not None:
            new[: len(self.counts)] += self.counts
        self.counts = new

    def results(self, wanted: set[str], images: int) -> tuple[dict[str, float], dict[str, str]]:
        names = [name for name in TOKEN_METRICS if name in wanted]
        if self.counts is None or int(self.counts.sum()) == 0:
            return {}, dict.fromkeys(names, "not applicable: the model gave no tokens")
        measured: dict[str, float] = {}
        missing: dict[str, str] = {}
        tokens = int(self.counts.sum())
        for name in names:
            if name in NEEDS_CODEBOOK_SIZE and self.codebook_size is None:
                missing[name] = "the codebook's size is not known; pass codebook or codebook_size"
            elif name == "usage":
                measured[name] = codebook_metrics.usage(self.counts)
            elif name == "perplexity":
                measured[name] = codebook_metrics.perplexity(self.counts)
            elif name == "tokens_per_image":
                measured[name] = tokens / images
            elif name == "tokens_per_code":
                measured[name] = tokens / len(self.counts)
            elif name == "bits_per_image":
                measured[name] = codebook_metrics.bits_per_image(tokens / images, len(self.counts))
            elif name == "coverage":
                covered = codebook_metrics.coverage(self.counts)
                measured.update({f"coverage_{percent}": float(codes) for percent, codes in covered.items()})
        return measured, missing


def code_geometry(
    wanted: set[str], codebook: Tensor | None, counts: Tensor | None
) -> tuple[dict[str, float], dict[str, str]]:
    if "geometry" not in wanted:
        return {}, {}
    if codebook is None:
        return {}, {"geometry": "not applicable: the model has no codebook of vectors"}
    measured = codebook_metrics.geometry(codebook)
    if counts is not None and len(counts) == len(codebook) and bool((counts > 0).any()):
        lengths = codebook.detach().double().norm(dim=1)
        measured["norm_mean_used"] = float(lengths[(counts > 0).to(lengths.device)].mean())
    return measured, {}


def check_metrics(metrics: Sequence[str] | None) -> set[str]:
    if metrics is None:
        return set(METRICS)
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise ArcvqError(f"unknown metric {unknown[0]!r}; choose from {', '.join(METRICS)}")
    return set(metrics)


def check_reconstruction(reconstruction: Tensor, pixels: Tensor) -> None:
    if reconstruction.shape != pixels.shape:
        raise ArcvqError(
            f"the reconstruction has shape {tuple(reconstruction.shape)}, but the images have {tuple(pixels.shape)}"
        )
    if not bool(reconstruction.isfinite().all()):
        raise Diverged("the reconstruction has values that are not finite; the model has diverged or is damaged")
