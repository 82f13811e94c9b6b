"""How far a reconstruction is from its original, one number per image. Inputs are (B, C, H, W) floats in [0, 1]."""

from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

SsimWindow = Literal["uniform", "gaussian"]
WINDOW = 11
SIGMA = 1.5
# An exactly reproduced image has infinite PSNR, and one such image would make a mean infinite.
PSNR_CAP = 100.0
# SSIM keeps some ten float64 maps of its input; this many pixels at a time bounds them to a few hundred MB.
PIXELS_AT_ONCE = 1 << 22


def l1(x: Tensor, y: Tensor) -> Tensor:
    """Mean absolute difference, (B,)."""
    check_pair(x, y)
    return (x - y).abs().flatten(1).mean(1)


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference of each image: (B,)."""
    check_pair(x, y)
    return (x - y).square().flatten(1).mean(dim=1)


def psnr(x: Tensor, y: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB for a data range of 1, (B,); never more than 100 dB."""
    check_pair(x, y)
    squared_error = (x - y).square().flatten(1).mean(1)
    return (-10.0 * squared_error.log10()).clamp(max=PSNR_CAP)


def ssim(x: Tensor, y: Tensor, window: SsimWindow = "uniform") -> Tensor:
    """Structural similarity for a data range of 1 with K1 = 0.01 and K2 = 0.03, mean over channels, (B,).

    `uniform` weighs an 11x11 window evenly and takes the sample covariance, as scikit-image does with win_size=11;
    `gaussian` weighs it by a Gaussian of sigma 1.5 and takes the weighted covariance, as scikit-image does with
    gaussian_weights. Both look only at windows that lie wholly inside the image, which crops 5 pixels from each border
    (torchmetrics averages over the reflected borders too).
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
    # A variance is a small difference of large numbers here: float64 keeps it right in flat regions.
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
    """float64 (11,), summing to 1: both windows are the outer product of this with itself."""
    if window == "uniform":
        return torch.full((WINDOW,), 1.0 / WINDOW, dtype=torch.float64, device=device)
    offsets = torch.arange(WINDOW, dtype=torch.float64, device=device) - WINDOW // 2
    weights = (-offsets.square() / (2 * SIGMA**2)).exp()
    return weights / weights.sum()


def local_mean(x: Tensor, kernel: Tensor) -> Tensor:
    """Weighted mean over each window inside the image, (B, C, H, W) to (B, C, H-10, W-10).

    As two products with banded matrices: several times faster than float64 convolutions on a CPU.
    """
    return band(x.shape[-2], kernel) @ x @ band(x.shape[-1], kernel).T


def band(side: int, kernel: Tensor) -> Tensor:
    """(side - 10, side): row i holds the kernel from column i on."""
    columns = torch.arange(side, device=kernel.device)
    offsets = columns - columns[: side - WINDOW + 1, None]
    inside = (offsets >= 0) & (offsets < WINDOW)
    return torch.where(inside, kernel[offsets.clamp(0, WINDOW - 1)], 0.0)


def check_pair(x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape or x.ndim != 4:
        raise ArcvqError(f"expected two (B, C, H, W) tensors of one shape, but got {tuple(x.shape)}, {tuple(y.shape)}")
    if not (x.is_floating_point() and y.is_floating_point()):
        raise ArcvqError(f"expected floats in [0, 1], but got {x.dtype} and {y.dtype}; divide 8-bit pixels by 255")
