"""Metrics between originals and reconstructions: distances per image, and FID and KID of the two sets."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from arcvq.data import Images, to_uint8
from arcvq.errors import ArcvqError, Diverged
from arcvq.metrics.distributions import kernel_distance
from arcvq.metrics.eight_bit import requantize_originals, start_jpeg, tile_to_rgb
from arcvq.metrics.fid import FeatureStatistics, fid_features, fid_network, frechet_distance
from arcvq.metrics.image import WINDOW, l1, mse, psnr, ssim
from arcvq.metrics.lpips import TRUNKS, lpips, lpips_network
from arcvq.metrics.networks import load_once
from arcvq.metrics.originals import original_statistics_file, read_original_statistics, write_original_statistics
from arcvq.metrics.protocols import Protocol
from arcvq.metrics.weights import MissingWeights

PAIRED_METRICS = ("l1", "mse", "psnr", "ssim", "lpips", "rfid")
# Measured only when asked for, because it needs the features of all originals, and FID's statistics of them are kept on disk.
KID = "kid"


class Comparison:
    """Compares originals with reconstructions under one protocol: sums of distances per image, and the features of FID and KID."""

    def __init__(
        self,
        protocol: Protocol,
        images: Images,
        wanted: set[str],
        device: torch.device,
        download: bool,
        batch_size: int,
    ) -> None:
        self.protocol, self.device = protocol, device
        self.missing: dict[str, str] = {}
        self.lpips_network: nn.Module | None = None
        self.fid_network: nn.Module | None = None
        self.wanted = {name for name in (*PAIRED_METRICS, KID) if name in wanted}

        # Skip metrics that cannot be measured here, with the reason.
        side = min(images.height, images.width)
        smallest = TRUNKS[protocol.lpips_network].smallest
        if side < WINDOW:
            self.skip_metric("ssim", f"SSIM needs images of at least {WINDOW} pixels a side; these have {side}")
        if side < smallest:
            self.skip_metric(
                "lpips",
                f"LPIPS with {protocol.lpips_network} needs at least {smallest} pixels a side; these have {side}",
            )
        if len(images) < 2:
            self.skip_metric("rfid", f"FID needs at least 2 images; the set has {len(images)}")
            self.skip_metric(KID, f"KID needs at least 2 images; the set has {len(images)}")
        if "lpips" in self.wanted:
            name = protocol.lpips_network
            try:
                self.lpips_network = load_once(
                    ("lpips", name, str(device)), lambda: lpips_network(name, device=device, download=download)
                )
            except MissingWeights as error:
                self.skip_metric("lpips", str(error))
        # Rows of KID's features on the CPU: of originals, of reconstructions.
        self.rows: tuple[list[Tensor], list[Tensor]] = ([], [])
        if self.wanted & {"rfid", KID}:
            try:
                self.fid_network = load_once(
                    ("fid", str(device)), lambda: fid_network(device=device, download=download)
                )
                self.file = original_statistics_file(images, protocol.hash, self.fid_network, device, batch_size)
                self.cached = None if KID in self.wanted else read_original_statistics(self.file, device)
                self.originals, self.reconstructions = self.cached or FeatureStatistics(), FeatureStatistics()
            except MissingWeights as error:
                self.skip_metric("rfid", str(error))
                self.skip_metric(KID, str(error))
        self.sums = {
            name: torch.zeros((), dtype=torch.float64, device=device) for name in sorted(self.wanted - {"rfid", KID})
        }

    def skip_metric(self, name: str, reason: str) -> None:
        """Do not measure this metric, and record the reason."""
        if name in self.wanted:
            self.wanted.discard(name)
            self.missing[name] = reason

    def start(self, pixels: Tensor, reconstruction: Tensor) -> Callable[[], None]:
        """Convert a batch to 8 bits and start its JPEG compression; returns a function that compares the images."""
        if not self.wanted:
            return lambda: None
        protocol = self.protocol
        originals = requantize_originals(pixels, protocol.rounding)
        reconstructions = to_uint8(reconstruction, protocol.rounding)
        if protocol.jpeg_quality is None:
            return lambda: self.compare(originals, reconstructions)
        sides = [start_jpeg(tile_to_rgb(side), protocol.jpeg_quality) for side in (originals, reconstructions)]
        return lambda: self.compare(*(side() for side in sides))

    def compare(self, originals: Tensor, reconstructions: Tensor) -> None:
        """Add the distances and FID features of a batch of uint8 images."""
        protocol = self.protocol
        x, y = originals.float() / 255.0, reconstructions.float() / 255.0
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
            if self.cached is None:
                self._add(self.features(originals, self.fid_network), self.originals, self.rows[0])
            self._add(self.features(reconstructions, self.fid_network), self.reconstructions, self.rows[1])

    def _add(self, features: Tensor, statistics: FeatureStatistics, rows: list[Tensor]) -> None:
        """Add features of one side to what FID and KID need of it."""
        if "rfid" in self.wanted:
            statistics.update(features)
        if KID in self.wanted:
            rows.append(features.cpu())

    def features(self, images: Tensor, network: nn.Module) -> Tensor:
        """FID features of uint8 images, resized as the protocol says."""
        protocol = self.protocol
        return fid_features(images, network, resize=protocol.fid_resize, interpolation=protocol.fid_interpolation)

    def results(self, count: int) -> tuple[dict[str, float], dict[str, str]]:
        """The measured metrics in the order of PAIRED_METRICS, then KID, and the reasons for missing ones."""
        measured = {name: float(self.sums[name]) / count for name in PAIRED_METRICS if name in self.sums}
        if "rfid" in self.wanted:
            measured["rfid"] = frechet_distance(self.originals, self.reconstructions)
            if self.cached is None:
                write_original_statistics(self.file, self.originals)
        if KID in self.wanted:
            real, made = (torch.cat(rows).to(self.device) for rows in self.rows)
            measured["kid"], measured["kid_std"] = kernel_distance(real, made)
        return measured, self.missing


def check_reconstruction(reconstruction: Tensor, pixels: Tensor) -> None:
    """Raise if a reconstruction differs in shape from its images or is not finite."""
    if reconstruction.shape != pixels.shape:
        raise ArcvqError(
            f"the reconstruction has shape {tuple(reconstruction.shape)}, but the images have {tuple(pixels.shape)}"
        )
    if not bool(reconstruction.isfinite().all()):
        raise Diverged("the reconstruction has values that are not finite; the model has diverged or is damaged")
