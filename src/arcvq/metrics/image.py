"""Distances between reconstructions and originals, one number per image. Inputs are (B, C, H, W) floats in [0, 1]."""

from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

SsimWindow = Literal["uniform", "gaussian"]
WINDOW = 11
SIGMA = 1.5
# A perfect reconstruction has infinite PSNR and would make a mean infinite.
PSNR_CAP = 100.0
# SSIM needs about ten float64 maps of its input: at most this many pixels at a time keep them below a few hundred MB.
PIXELS_AT_ONCE = 1 << 22


def l1(x: Tensor, y: Tensor) -> Tensor:
    """Mean absolute difference of each image: (B,)."""
    check_pair(x, y)
    return (x - y).abs().flatten(1).mean(1)


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference of each image: (B,)."""
    check_pair(x, y)
    return (x - y).square().flatten(1).mean(dim=1)


def psnr(x: Tensor, y: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, for a data range of 1: (B,), at most 100 dB."""
    check_pair(x, y)
    squared_error = (x - y).square().flatten(1).mean(1)
    return (-10.0 * squared_error.log10()).clamp(max=PSNR_CAP)


def ssim(x: Tensor, y: Tensor, window: SsimWindow = "uniform") -> Tensor:
    """Structural similarity of each image, for a data range of 1: (B,), mean over channels, K1 = 0.01, K2 = 0.03.

    `uniform` weighs an 11x11 window evenly and uses the sample covariance, like scikit-image with win_size=11; `gaussian` weighs it
    by a Gaussian of sigma 1.5 and uses the weighted covariance, like scikit-image with gaussian_weights. Both use only windows inside
    the image, which crops 5 pixels from each border (torchmetrics averages over reflected borders too).
    """
    check_pair(x, y)
    if window not in ("uniform", "gaussian"):
        raise ArcvqError(f"unknown SSIM window {window!r}; use 'uniform' or 'gaussian'")
    if min(x.shape[-2:]) < WINDOW:
        raise ArcvqError(
            f"SSIM needs images of at least {WINDOW}x{WINDOW} pixels, but these are {x.shape[-1]}x{x.shape[-2]}"
        )
    per_chunk = max(1, PIXELS_AT_ONCE // x[:1].numel())
    parts = [ssim_of_chunk(a, b, window) for a, b in zip(x.split(per_chunk), y.split(per_chunk))]
    return torch.cat(parts).to(torch.float32)


def ssim_of_chunk(x: Tensor, y: Tensor, window: SsimWindow) -> Tensor:
    """SSIM of a few images at once: (B,)."""
    # Variances are small differences of large numbers: float64 keeps them exact in flat regions.
    x, y = x.double(), y.double()
    kernel = window_weights(window, x.device)
    mean_x, mean_y = local_mean(x, kernel), local_mean(y, kernel)  # (B, C, H-10, W-10)
    # The sample covariance divides by n - 1; a weighted window has no n.
    correction = WINDOW**2 / (WINDOW**2 - 1) if window == "uniform" else 1.0
    variance_x = correction * (local_mean(x * x, kernel) - mean_x * mean_x)
    variance_y = correction * (local_mean(y * y, kernel) - mean_y * mean_y)
    covariance = correction * (local_mean(x * y, kernel) - mean_x * mean_y)
    c1, c2 = 0.01**2, 0.03**2
    similarity = ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)) / (
        (mean_x.square() + mean_y.square() + c1) * (variance_x + variance_y + c2)
    )
    return similarity.flatten(1).mean(1)


def window_weights(window: SsimWindow, device: torch.device) -> Tensor:
    """Weights of one side of the SSIM window, float64 (11,) with sum 1; the window is their outer product."""
    if window == "uniform":
        return torch.full((WINDOW,), 1.0 / WINDOW, dtype=torch.float64, device=device)
    offsets = torch.arange(WINDOW, dtype=torch.float64, device=device) - WINDOW // 2
    weights = (-offsets.square() / (2 * SIGMA**2)).exp()
    return weights / weights.sum()


def local_mean(x: Tensor, kernel: Tensor) -> Tensor:
    """Weighted mean over each window inside the image, (B, C, H, W) to (B, C, H-10, W-10).

    Two products with band matrices: on a CPU several times faster than float64 convolutions.
    """
    return band_matrix(x.shape[-2], kernel) @ x @ band_matrix(x.shape[-1], kernel).T


def band_matrix(side: int, kernel: Tensor) -> Tensor:
    """The matrix (side - 10, side) of a 1D convolution: row i has the kernel from column i on."""
    columns = torch.arange(side, device=kernel.device)
    offsets = columns - columns[: side - WINDOW + 1, None]
    inside = (offsets >= 0) & (offsets < WINDOW)
    return torch.where(inside, kernel[offsets.clamp(0, WINDOW - 1)], 0.0)


def check_pair(x: Tensor, y: Tensor) -> None:
    """Raise unless both are (B, C, H, W) floats of one shape."""
    if x.shape != y.shape or x.ndim != 4:
        raise ArcvqError(f"expected two (B, C, H, W) tensors of one shape, but got {tuple(x.shape)}, {tuple(y.shape)}")
    if not (x.is_floating_point() and y.is_floating_point()):
        raise ArcvqError(f"expected floats in [0, 1], but got {x.dtype} and {y.dtype}; divide 8-bit pixels by 255")
