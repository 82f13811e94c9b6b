"""Originals against their reconstructions: distances image by image, and FID of the two sets."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from arcvq.data import Images, to_uint8
from arcvq.errors import ArcvqError, Diverged
from arcvq.metrics.eight_bit import jpeg_ahead, original_pixels, tile_to_rgb
from arcvq.metrics.fid import FeatureStatistics, fid_features, fid_network, frechet_distance
from arcvq.metrics.image import WINDOW, l1, mse, psnr, ssim
from arcvq.metrics.lpips import TRUNKS, lpips, lpips_network
from arcvq.metrics.networks import kept
from arcvq.metrics.originals import originals_file, read_originals, write_originals
from arcvq.metrics.protocols import Protocol
from arcvq.metrics.weights import MissingWeights

PAIRED_METRICS = ("l1", "mse", "psnr", "ssim", "lpips", "rfid")


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
        self.wanted = {name for name in PAIRED_METRICS if name in wanted}

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
        """Means over the images, in the order of PAIRED_METRICS."""
        measured = {name: float(self.sums[name]) / count for name in PAIRED_METRICS if name in self.sums}
        if self.fid_network is not None:
            measured["rfid"] = frechet_distance(self.originals, self.copies)
            if self.known is None:
                write_originals(self.file, self.originals)
        return measured, self.missing


def check_reconstruction(reconstruction: Tensor, pixels: Tensor) -> None:
    if reconstruction.shape != pixels.shape:
        raise ArcvqError(
            f"the reconstruction has shape {tuple(reconstruction.shape)}, but the images have {tuple(pixels.shape)}"
        )
    if not bool(reconstruction.isfinite().all()):
        raise Diverged("the reconstruction has values that are not finite; the model has diverged or is damaged")
