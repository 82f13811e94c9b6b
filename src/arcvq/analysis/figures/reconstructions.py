"""Images beside what each tokenizer makes of them."""

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
    bare,
    grid_of_axes,
    new_figure,
    run_colour,
)
from arcvq.analysis.snapshot import FloatArray
from arcvq.errors import ArcvqError

# More columns than this leave each image too small to judge.
MOST_IMAGES = 10
PHONE_IMAGES = 5

# A longer name of a run takes several lines.
LABEL_CHARACTERS = 16


def reconstruction_grid(
    originals: Tensor, rebuilt: Mapping[str, Tensor], places: Mapping[str, int] | None = None, *, narrow: bool = False
) -> Figure:
    """Originals in the first row, one row per run below.

    Images are uint8, (B, 1 or 3, H, W). The first MOST_IMAGES are shown, or PHONE_IMAGES where `narrow`. `places` says which
    colour a run has; by default they are in order.
    """
    check_images(originals, "originals")
    for name, images in rebuilt.items():
        check_images(images, f"reconstructions of {name}")
        if images.shape != originals.shape:
            raise ArcvqError(
                f"reconstructions of {name}: expected the originals' shape {tuple(originals.shape)}, "
                f"found {tuple(images.shape)}"
            )
    columns = min(len(originals), PHONE_IMAGES if narrow else MOST_IMAGES)
    rows: list[tuple[str, str, list[FloatArray]]] = [("original", TEXT_COLOUR, _pictures(originals, columns))]
    for position, (name, images) in enumerate(rebuilt.items()):
        rows.append((name, run_colour((places or {}).get(name, position)), _pictures(images, columns)))

    height, width = originals.shape[-2:]
    page = PHONE_WIDTH if narrow else PAGE_WIDTH
    cell = (page - 1.2) / max(columns, 4)
    figure = new_figure(len(rows) * cell * height / width + 0.1, width=page, padding=0.035)
    for (label, colour, pictures), row in zip(rows, grid_of_axes(figure, len(rows), columns)):
        for axes, picture in zip(row, pictures):
            _show(axes, picture)
        place: dict[str, Any] = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 10}
        row[0].set_ylabel(fill(label, LABEL_CHARACTERS), size=LABEL_SIZE, color=colour, weight="bold", **place)
    return figure


def mean_psnr(originals: Tensor, images: Tensor) -> float:
    """PSNR in dB, per image, then averaged; infinite where an image is exact."""
    squared_error = (originals.double() - images.double()).square().flatten(1).mean(dim=1)
    return float((10.0 * (255.0**2 / squared_error).log10()).mean())


def check_images(images: Tensor, what: str) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or len(images) == 0:
        raise ArcvqError(
            f"{what}: expected at least one uint8 image, (B, 1 or 3, H, W); "
            f"found {images.dtype} of shape {tuple(images.shape)}"
        )


def _pictures(images: Tensor, count: int) -> list[FloatArray]:
    colour = images[:count].expand(-1, 3, -1, -1) if images.shape[1] == 1 else images[:count]
    return list(colour.permute(0, 2, 3, 1).cpu().double().div(255.0).numpy())  # each (H, W, 3)


def _show(axes: Axes, picture: FloatArray) -> None:
    # Nearest: at 32 pixels a smoothed picture would hide the very errors one looks for.
    axes.imshow(picture, interpolation="nearest")
    bare(axes)
    for spine in axes.spines.values():
        spine.set_visible(False)
