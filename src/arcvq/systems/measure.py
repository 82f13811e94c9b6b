"""A measured run as one JSON document: the numbers, the protocols they were measured under, and all that led to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from arcvq.config import to_dict
from arcvq.data import Images, load_readable_images
from arcvq.data.decoded import OnError
from arcvq.errors import ArcvqError
from arcvq.metrics import Evaluation, Perturbation, evaluate_perturbed, evaluate_under
from arcvq.storage import read_json, write_json
from arcvq.systems.config import TokenizerConfig
from arcvq.systems.train import read_run
from arcvq.tasks import Reconstructor
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.saving import to_config as tokenizer_config
from arcvq.training import RunFolder
from arcvq.training.environment import device_name, library_versions, today


@dataclass
class Measured:
    """A tokenizer on the test images of a data set, under one protocol or several. `skipped`: path → reason of images left out."""

    tokenizer: Tokenizer
    images: Images
    evaluations: list[Evaluation]
    document: dict[str, Any]
    skipped: dict[str, str] = field(default_factory=dict)


def measure(
    source: str | Path,
    protocols: Sequence[str] = ("exact",),
    *,
    data: str | None = None,
    split: Literal["test", "all"] = "test",
    root: str | None = None,
    metrics: Sequence[str] | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    download: bool = False,
    record: bool = False,
    on_error: OnError | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Measured:
    """Evaluate a run (on its own data set's test images) or any saved tokenizer (on `data`).

    With the split `all`, for a folder that no tokenizer was trained on, all its images are used, and the document says so. With
    `on_error="skip"` images that cannot be read are left out; by default a run's own setting holds on its own data set. `record` writes
    evaluation-PROTOCOL.json into the run, for its report.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    run = RunFolder(source)
    config = read_run(run) if run.config.is_file() else None
    if config is not None and not isinstance(config, TokenizerConfig):
        raise ArcvqError(
            f"{source}: is a run of the task {config.task}, and no tokenizer: its own evaluations are in {run.metrics}; a prior "
            "is measured with --samples N"
        )
    tokenizer = Tokenizer.from_pretrained(source, device=device)
    name = data or (config.data.name if config else None)
    if name is None:
        raise ArcvqError(f"{source}: is a model without a run, so it has no data set of its own: say --data NAME")
    root = root or (config.data.root if config else None)
    own = config is not None and name == config.data.name
    skip = (on_error or (config.data.on_error if config and own else "stop")) == "skip"
    images, skipped = load_readable_images(
        name,
        skip=skip,
        split=split,
        root=Path(root) if root else None,
        image_size=tokenizer.image_size,
        limit=limit,
        holdout_every=config.data.holdout_every if config and own else None,
    )
    if images.channels != tokenizer.channels:
        raise ArcvqError(f"{name} has {images.channels} channels but the tokenizer takes {tokenizer.channels}")
    reconstruct = Reconstructor(tokenizer)
    evaluations = evaluate_under(
        protocols,
        reconstruct,
        images.to(device),
        codebook=tokenizer.quantizer.codebook,
        choices=tokenizer.quantizer.config.codebook_size or None,
        device=device,
        metrics=metrics,
        download=download,
        progress=None if progress is None else _labelled(progress, " and ".join(protocols)),
    )
    if metrics is None or "bits_per_image" in metrics:  # of which it is the counterpart
        evaluations = [replace(each, metrics={**each.metrics, **reconstruct.metrics}) for each in evaluations]
    perturbation = Perturbation() if metrics is not None and "pfid" in metrics else None
    if perturbation is not None:
        perturbed = evaluate_perturbed(
            protocols,
            tokenizer,
            images.to(device),
            perturbation,
            device=device,
            download=download,
            progress=None if progress is None else _labelled(progress, "pFID"),
        )
        evaluations = [
            replace(
                each,
                metrics={**each.metrics, **other.metrics},
                missing={**{name: why for name, why in each.missing.items() if name != "pfid"}, **other.missing},
                seconds=each.seconds + other.seconds,
            )
            for each, other in zip(evaluations, perturbed)
        ]
    left_out = {"skipped_images": len(skipped)} if skip else {}
    document: dict[str, Any] = {
        "name": config.title if config else str(source),
        "system": tokenizer.system,
        "data": name,
        **({} if split == "test" else {"split": split}),
        "seed": config.training.seed if config else None,
        "protocols": {e.protocol: e.to_json() for e in evaluations},
        **({"perturbation": perturbation.to_json()} if perturbation else {}),
        **left_out,
        "parameters": sum(p.numel() for p in tokenizer.parameters()),
        "config": to_dict(config) if config else tokenizer_config(tokenizer),
        "training": read_json(run.training, "a finished run") if run.training.is_file() else None,
        "measured": {
            "date": today(),
            "device": device_name(device),
            "versions": library_versions(),
        },
    }
    if config and record:
        for evaluation in evaluations:
            write_json(run.path / f"evaluation-{evaluation.protocol}.json", {**evaluation.to_json(), **left_out})
    return Measured(tokenizer, images, evaluations, document, skipped)


def _labelled(progress: Callable[[str, int, int], None], label: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(label, done, total)
