"""A measured generator as one JSON document: its images beside a reference set, and the prior on test images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.config import to_dict
from arcvq.data import Images, to_uint8
from arcvq.data.decoded import OnError
from arcvq.data.value_source import ValueSource
from arcvq.errors import ArcvqError
from arcvq.metrics import GenerationEvaluation, GenerationProtocol, measure_generation
from arcvq.metrics.sampling import Split
from arcvq.priors import CHUNK, Generator
from arcvq.priors.saving import generator_fingerprint
from arcvq.storage import read_json, write_json
from arcvq.systems.image_sets import load_split
from arcvq.systems.train import read_run
from arcvq.tasks.prior import PriorTask
from arcvq.tokenizers.inference import Precision, check_precision
from arcvq.tokenizers.value_cache import cached_values
from arcvq.training import RunFolder
from arcvq.training.environment import device_name, library_versions, today

# How many test images give the prior's own metric.
PRIOR_IMAGES = 10_000
# The file of a run folder with the metrics of its images.
GENERATION_FILE = "evaluation-generation.json"


@dataclass
class MeasuredGenerator:
    """Generated images beside a reference set. `skipped`: path → reason of images of the data set that were left out."""

    generator: Generator
    evaluation: GenerationEvaluation
    document: dict[str, Any]
    skipped: dict[str, str] = field(default_factory=dict)


def measure_generator(
    source: str | Path,
    samples: int,
    *,
    split: Split = "train",
    data: str | None = None,
    root: str | None = None,
    seed: int = 0,
    chunk: int = CHUNK,
    precision: Precision = "fp32",
    compile: bool = False,
    options: Mapping[str, Any] | None = None,
    metrics: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    download: bool = False,
    record: bool = False,
    on_error: OnError | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> MeasuredGenerator:
    """Generate images, equally many of each class, and compare them with a split of the data set.

    `options` are those of the sampling. They, the seed and all else that changes a number are in the protocol and its hash. `on_error`
    as in `measure`. `record` writes GENERATION_FILE into the run, for its report, unless the one there is of more images.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    run = RunFolder(source)
    config = read_run(run) if run.config.is_file() else None
    check_precision(precision, device)
    generator = Generator.from_pretrained(source, device=device)
    if compile:
        generator.speed_up()
    sampling = generator.sampling_options(options or {})
    sampling.check_known(type(generator.prior).__name__, generator.prior.sampling_options)
    name = data or (config.data.name if config else None)
    if name is None:
        raise ArcvqError(f"{source}: is a model without a run, so it has no data set of its own: say --data NAME")
    root = root or (config.data.root if config else None)
    own_data = config is not None and config.data.name == name
    skip = (on_error or (config.data.on_error if config and own_data else "stop")) == "skip"
    holdout_every = config.data.holdout_every if config and own_data else None
    skipped: dict[str, str] = {}
    reference = load_split(generator, name, split, root, holdout_every, skip, skipped)
    test = reference if split == "test" else load_split(generator, name, "test", root, holdout_every, skip, skipped)
    unmeasured = None  # why the prior's own metric is not measured
    try:
        labelled = use_labels(generator, test, own_data)
    except ArcvqError as error:
        if own_data:
            raise
        labelled, unmeasured = False, str(error)
    protocol = GenerationProtocol(
        images=samples,
        data=name,
        split=split,
        reference_images=len(reference),
        classes="balanced" if generator.prior.grid.classes else "none",
        seed=seed,
        sampler=generator.sampler_settings(options or {}, chunk=chunk, precision=precision),
    )

    def generated() -> Iterator[Tensor]:
        for batch in generator.batches(samples, seed=seed, chunk=chunk, precision=precision, **(options or {})):
            yield to_uint8(batch)

    evaluation = measure_generation(
        generated(),
        reference,
        protocol,
        metrics=metrics,
        device=device,
        download=download,
        progress=None
        if progress is None
        else lambda done, total: progress("generated and reference images", done, total),
    )
    prior = generator.prior
    if unmeasured is None:
        evaluation.metrics.update(measure_prior(generator, test, labelled))
    else:
        evaluation.missing[prior.metric] = unmeasured
    document: dict[str, Any] = {
        "name": config.title if config else str(source),
        "system": generator.system,
        "data": name,
        "seed": config.training.seed if config else None,
        "generation": evaluation.to_json(),
        "prior": None
        if unmeasured
        else {"metric": prior.metric, "images": min(len(test), PRIOR_IMAGES), "labels": labelled},
        "model": f"{generator_fingerprint(generator):016x}",
        "parameters": sum(p.numel() for p in prior.parameters()),
        **({"skipped_images": len(skipped)} if skip else {}),
        "config": to_dict(config) if config else None,
        "training": read_json(run.training, "a finished run") if run.training.is_file() else None,
        "measured": {"date": today(), "device": device_name(device), "versions": library_versions()},
    }
    if config and record and samples >= _recorded_images(run):
        generation = evaluation.to_json()
        about = {"protocol": "generation", "sampling": generation["protocol"]}
        write_json(run.path / GENERATION_FILE, {**generation, **about})
    return MeasuredGenerator(generator, evaluation, document, skipped)


def _recorded_images(run: RunFolder) -> int:
    """How many images the run's GENERATION_FILE is of; 0 if there is none that can be read."""
    try:
        images = read_json(run.path / GENERATION_FILE, "a measured prior").get("images")
    except ArcvqError:
        return 0
    return images if isinstance(images, int) else 0


def use_labels(generator: Generator, images: Images, own_data: bool) -> bool:
    """Whether the prior is told the classes of these images: if both have classes, and they are the same ones.

    Raises if they are others, or if the prior needs them and they are unknown. Classes without names are the same in the data of the
    generator's own run (`own_data`) alone.
    """
    names, given = generator.class_names, images.class_names
    if not generator.prior.grid.classes:
        return False
    if images.labels is None or ((names is None or given is None) and not own_data):
        if not generator.prior.config.label_dropout:
            raise ArcvqError(
                f"the prior was only trained with the class (prior.label_dropout 0), and that of {images.name} is unknown"
            )
        return False
    if names is None or given is None:
        return True
    for number, (here, there) in enumerate(zip_longest(given, names, fillvalue="missing")):
        if here != there:
            raise ArcvqError(
                f"{images.name} has other classes than the generator (class {number} is {here}, in the generator {there}): "
                "compare it with images of the same classes, or without classes"
            )
    return True


def measure_prior(generator: Generator, images: Images, labelled: bool) -> dict[str, float]:
    """The prior's own metric, e.g. bits per token, on what its tokenizer makes of these images."""
    encoded = cached_values(generator.tokenizer, images, generator.prior.models)
    values, used = encoded.values[:, :PRIOR_IMAGES], encoded.used[:PRIOR_IMAGES]
    labels = images.labels[used] if labelled and images.labels is not None else None
    source = ValueSource(values, labels, batch_size=1, name=images.name).to(generator.device)
    task = PriorTask(generator.prior, generator.tokenizer)
    found: dict[str, float] = task.evaluate(source, None, 0)
    return found
