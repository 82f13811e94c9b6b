"""A grid of test images and their reconstructions by each run."""

from collections.abc import Mapping
from textwrap import fill
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from arcvq.analysis.figures.style import (
    LABEL_SIZE,
    PAGE_WIDTH,
    PHONE_WIDTH,
    TEXT_COLOUR,
    grid_of_axes,
    hide_ticks,
    new_figure,
    run_colour,
)
from arcvq.analysis.snapshot import FloatArray
from arcvq.errors import ArcvqError

# With more columns than this each image is too small to judge.
MAX_IMAGES = 10
PHONE_IMAGES = 5

# Names of runs are wrapped at this many characters.
LABEL_WIDTH = 16


def reconstruction_grid(
    originals: Tensor,
    reconstructions: Mapping[str, Tensor],
    positions: Mapping[str, int] | None = None,
    *,
    narrow: bool = False,
) -> Figure:
    """Originals in the first row, one row of reconstructions per run below.

    Images are uint8, (B, 1 or 3, H, W). The first MAX_IMAGES are shown, or PHONE_IMAGES if `narrow`. `positions` gives the
    position of each run, which sets its colour; default: their order.
    """
    check_images(originals, "originals")
    for name, images in reconstructions.items():
        check_images(images, f"reconstructions of {name}")
        if images.shape != originals.shape:
            raise ArcvqError(
                f"reconstructions of {name}: expected the originals' shape {tuple(originals.shape)}, "
                f"found {tuple(images.shape)}"
            )
    columns = min(len(originals), PHONE_IMAGES if narrow else MAX_IMAGES)
    rows: list[tuple[str, str, list[FloatArray]]] = [("original", TEXT_COLOUR, _to_pictures(originals, columns))]
    for position, (name, images) in enumerate(reconstructions.items()):
        rows.append((name, run_colour((positions or {}).get(name, position)), _to_pictures(images, columns)))

    height, width = originals.shape[-2:]
    page_width = PHONE_WIDTH if narrow else PAGE_WIDTH
    cell = (page_width - 1.2) / max(columns, 4)
    figure = new_figure(len(rows) * cell * height / width + 0.1, width=page_width, padding=0.035)
    for (label, colour, pictures), row in zip(rows, grid_of_axes(figure, len(rows), columns)):
        for axes, picture in zip(row, pictures):
            _draw_picture(axes, picture)
        placement: dict[str, Any] = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 10}
        row[0].set_ylabel(fill(label, LABEL_WIDTH), size=LABEL_SIZE, color=colour, weight="bold", **placement)
    return figure


def mean_psnr(originals: Tensor, images: Tensor) -> float:
    """Mean over images of the PSNR in dB; infinite if an image is exact."""
    squared_error = (originals.double() - images.double()).square().flatten(1).mean(dim=1)
    return float((10.0 * (255.0**2 / squared_error).log10()).mean())


def check_images(images: Tensor, what: str) -> None:
    """Fail unless this is a batch of uint8 images (B, 1 or 3, H, W); the error calls it `what`."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or len(images) == 0:
        raise ArcvqError(
            f"{what}: expected at least one uint8 image, (B, 1 or 3, H, W); "
            f"found {images.dtype} of shape {tuple(images.shape)}"
        )


def _to_pictures(images: Tensor, count: int) -> list[FloatArray]:
    """The first `count` images as RGB in [0, 1], each (H, W, 3)."""
    colour = images[:count].expand(-1, 3, -1, -1) if images.shape[1] == 1 else images[:count]
    return list(colour.permute(0, 2, 3, 1).cpu().double().div(255.0).numpy())


def _draw_picture(axes: Axes, picture: FloatArray) -> None:
    # Nearest: smoothing would hide errors in images of 32 pixels.
    axes.imshow(picture, interpolation="nearest")
    hide_ticks(axes)
    for spine in axes.spines.values():
        spine.set_visible(False)
