"""The set `photos`: Oxford's 102 kinds of flowers and 37 breeds of cats and dogs, in torchvision's folder layout."""

from __future__ import annotations

from pathlib import Path

import torch

from arcvq.data.decoded import MEMORY, OnError
from arcvq.data.folder import FoundFile, load_files
from arcvq.data.images import Images, Size
from arcvq.data.splits import choose_test
from arcvq.errors import ArcvqError

FLOWERS, PETS = "flowers-102", "oxford-iiit-pet"
FOLDERS = (FLOWERS, PETS)
FLOWER_CLASSES = 102
# Every tenth of the sorted names is a test image.
HOLDOUT_EVERY = 10


def load_photos(
    root: Path,
    *,
    split: str,
    image_size: Size | None = None,
    limit: int | None = None,
    on_error: OnError = "stop",
    memory: float = MEMORY,
) -> Images | None:
    """One split of both sets below `root`; None if either is absent. Classes 0 to 101 are flowers, the others pets."""
    flowers, pets = (sorted((root / folder).glob("*.jpg")) for folder in (f"{FLOWERS}/jpg", f"{PETS}/images"))
    if not flowers or not pets:
        return None
    breeds = sorted({breed_of(path) for path in pets}, key=str.lower)
    classes = [*flower_names(), *(breed.replace("_", " ").title() for breed in breeds)]
    numbers = {breed: FLOWER_CLASSES + index for index, breed in enumerate(breeds)}
    labels = torch.tensor([*flower_labels(root, flowers), *(numbers[breed_of(path)] for path in pets)])
    found: list[FoundFile] = [(path.relative_to(root), path) for path in [*flowers, *pets]]
    test = choose_test([relative.as_posix() for relative, _ in found], HOLDOUT_EVERY)
    held_out = {"train": False, "test": True}
    return load_files(
        "photos",
        {name: [entry for entry, each in zip(found, test) if each is value] for name, value in held_out.items()},
        split,
        labels={name: labels[torch.tensor(test) == value] for name, value in held_out.items()},
        classes=classes,
        image_size=image_size,
        limit=limit,
        on_error=on_error,
        memory=memory,
    )


def breed_of(path: Path) -> str:
    """The breed in a pet's file name, e.g. `american_bulldog_12.jpg`."""
    return path.stem.rpartition("_")[0]


def flower_names() -> list[str]:
    """The names of the flowers, in the order of their labels."""
    import torchvision

    return list(torchvision.datasets.Flowers102.classes)


def flower_labels(root: Path, paths: list[Path]) -> list[int]:
    """The class of each flower, from 0, by the number in its file name; imagelabels.mat has them in that order, from 1."""
    from scipy.io import loadmat

    file = root / FLOWERS / "imagelabels.mat"
    try:
        numbered = loadmat(file, squeeze_me=True)["labels"].tolist()
        labels = [numbered[int(path.stem.rpartition("_")[2]) - 1] - 1 for path in paths]
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise ArcvqError(
            f"cannot read the flowers' labels in {file} ({type(error).__name__}); fetch it again"
        ) from None
    if not all(0 <= label < FLOWER_CLASSES for label in labels):
        raise ArcvqError(f"{file} has labels outside 1 to {FLOWER_CLASSES}; fetch it again")
    return labels
