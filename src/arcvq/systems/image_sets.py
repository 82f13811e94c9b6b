"""The training and test images of a prior's run, or of a data set, at the size of the images that a generator makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arcvq.data import Images, first_images, hold_out, load_readable_images
from arcvq.data.decoded import MEMORY, DecodedImages, keep_in_memory
from arcvq.errors import ArcvqError
from arcvq.metrics.sampling import Split
from arcvq.priors import Generator
from arcvq.systems.train import read_run
from arcvq.training import RunFolder


@dataclass(frozen=True)
class ImageSets:
    """The images that a prior was trained on, and the test images of the same data set. `files`: the training images' files, if any."""

    data: str
    train: Images
    test: Images
    files: DecodedImages | None


def load_image_sets(
    generator: Generator,
    source: str | Path,
    *,
    at_least: int = 1,
    data: str | None = None,
    root: str | None = None,
    download: bool = True,
) -> ImageSets:
    """The images that a run was trained on, or the training images of `data`, and the test images of the same set.

    Raises if there are fewer training images than `at_least`, or if the run was trained on random crops, which none of these are.
    """
    run = RunFolder(source)
    config = read_run(run).data if run.config.is_file() else None
    name = data or (config.name if config else None)
    if name is None:
        raise ArcvqError(f"{source}: is a model without a run, so it has no data set of its own: say --data NAME")
    if config is not None and config.crop is not None:
        raise ArcvqError(
            f"{source}: was trained on random crops (data.crop {config.crop}), but only whole images can be compared"
        )
    own = config if config is not None and config.name == name else None
    root = root or (config.root if config else None)
    every, skip = (own.holdout_every, own.on_error == "skip") if own else (None, False)
    train, test = (  # with memory=0, the training images' paths can still be asked for
        load_split(generator, name, split, root, every, skip, {}, download, memory=0) for split in ("train", "test")
    )
    if own and own.holdout:
        train, _ = hold_out(train, own.holdout)
    train = first_images(train, own.limit if own else None)
    if len(train) < at_least:
        raise ArcvqError(f"{source}: has {len(train)} training images of {name}; expected at least {at_least}")
    files = train if isinstance(train, DecodedImages) else None
    return ImageSets(name, keep_in_memory(train, MEMORY), keep_in_memory(test, MEMORY), files)


def load_split(
    generator: Generator,
    name: str,
    split: Split,
    root: str | None,
    holdout_every: int | None,
    skip: bool,
    skipped: dict[str, str],
    download: bool = True,
    memory: float = MEMORY,
) -> Images:
    """The images of a split at the generator's size; those that cannot be read are added to `skipped` with `skip`.

    A set of files that takes more than `memory` GiB is decoded on demand.
    """
    if split == "holdout":
        raise ArcvqError("generated images are compared with the split train or test")
    grid, side = generator.prior.grid, generator.tokenizer.downsampling
    images, left_out = load_readable_images(
        name,
        skip=skip,
        split=split,
        root=Path(root) if root else None,
        image_size=(grid.height * side, grid.width * side),
        holdout_every=holdout_every,
        download=download,
        memory=memory,
    )
    skipped |= left_out
    if images.channels != generator.tokenizer.channels:
        raise ArcvqError(
            f"{name} has {images.channels} channels but the generator makes {generator.tokenizer.channels}"
        )
    return images
