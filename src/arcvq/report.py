"""Makes the report of one or several runs, finished or not: of tokenizers, or of priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.analysis import RunHistory, diagnose, write_report
from arcvq.analysis.prior_report import PriorRun, write_prior_report
from arcvq.data import Images, first_images, load_images, to_uint8, to_unit
from arcvq.errors import ArcvqError
from arcvq.priors import Generator
from arcvq.priors.files import GRID_IMAGES, image_grid
from arcvq.progress import progress_bar
from arcvq.storage import check_writable_folder, read_json, read_tensors
from arcvq.systems import PriorRunConfig, RunConfig, TokenizerConfig, load_image_sets, read_run
from arcvq.systems.measure_generator import GENERATION_FILE, measure_prior, use_labels
from arcvq.tasks.prior import ORIGIN
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.inference import choose_device
from arcvq.tokenizers.saving import model_fingerprint
from arcvq.training import RunFolder
from arcvq.training.checkpoint import checkpoints

SHOWN_IMAGES = 10
# How many training images, and how many test images, a prior's own metric is measured on.
COMPARED_IMAGES = 512


@dataclass
class Report:
    """The path of the page and the runs on it; `measured` holds metrics by run and images, beside those that the runs recorded."""

    page: Path
    runs: list[RunHistory]
    measured: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The path of the page, and path, metrics and findings of each run."""
        return {
            "report": str(self.page),
            "runs": {
                run.name: {
                    "path": str(run.path),
                    "step": run.last_step,
                    "metrics": {
                        **self.measured.get(run.name, {}),
                        **{protocol: dict(result.metrics) for protocol, result in run.results.items()},
                    },
                    "findings": [asdict(finding) for finding in diagnose(run)],
                }
                for run in self.runs
            },
        }


def make_report(
    folders: Sequence[str | Path],
    out: Path,
    *,
    title: str = "",
    notes: Sequence[str] = (),
    generated: tuple[Tensor, str] | None = None,
) -> Report:
    """Write `out/index.html` for runs of one data set, of tokenizers or of priors. Notes on the page say what is missing and why.

    `generated`: a picture of generated images, uint8 (C, H, W), and its caption.
    """
    runs = _load_histories(folders)
    found = {run.name: read_run(RunFolder(run.path)) for run in runs}
    priors = {name: config for name, config in found.items() if isinstance(config, PriorRunConfig)}
    configs = {name: config for name, config in found.items() if isinstance(config, TokenizerConfig)}
    _check_tasks(found, priors, configs)
    data = _common_data(found)
    title = title or f"{' and '.join(run.name for run in runs)} on {data}"
    check_writable_folder(out)
    if priors:
        return _prior_report(runs, priors, out, title, list(notes))
    notes, originals, reconstructions = list(notes), None, {}
    try:
        images = _test_images(configs[runs[0].name])
        originals = images.gather(torch.linspace(0, len(images) - 1, min(SHOWN_IMAGES, len(images))).long())
        for run in runs:
            tokenizer = _load_tokenizer(run, configs[run.name], images)
            if tokenizer is None:
                notes.append(f"{run.name} has no reconstructions: it has no checkpoint yet.")
            else:
                reconstructions[run.name] = to_uint8(tokenizer.reconstruct(to_unit(originals)))
    except ArcvqError as error:
        notes.append(f"Some reconstructions are missing: {error}.")
    page = write_report(
        runs,
        out,
        title=title,
        originals=originals,
        reconstructions=reconstructions,
        notes=notes,
        generated=generated,
    )
    return Report(page, runs)


def _load_histories(folders: Sequence[str | Path]) -> list[RunHistory]:
    """Read the run folders. A run is named by its folder, with as much of the path as makes the names unique."""
    paths = [Path(folder).resolve().parts for folder in folders]
    for length in range(1, max(map(len, paths), default=1) + 1):
        names = [Path(*parts[-length:]).as_posix() for parts in paths]
        if len(set(names)) == len(names):
            break
    runs = [RunHistory.load(folder, name=name) for folder, name in zip(folders, names)]
    for run in runs:
        if not run.evaluations and not run.results:
            raise ArcvqError(
                f"{run.path}: has no evaluation yet: wait for the first one of its training, or run arcvq evaluate"
            )
    return runs


def _common_data(configs: Mapping[str, RunConfig]) -> str:
    """The name of the data set that all runs share; fails if they differ."""
    data = {name: (config.data.name, config.data.image_size) for name, config in configs.items()}
    first, *others = data
    for other in others:
        if data[other] != data[first]:
            found = [f"{name} of {set_}{f' at {size} pixels' if size else ''}" for name, (set_, size) in data.items()]
            raise ArcvqError(
                f"runs of different data cannot be compared: {', '.join(found)}; make a report for each data set"
            )
    return data[first][0]


def _check_tasks(
    found: Mapping[str, RunConfig], priors: Mapping[str, PriorRunConfig], tokenizers: Mapping[str, TokenizerConfig]
) -> None:
    """Raise unless all runs train tokenizers, or all train priors."""
    for name, config in found.items():
        if name not in priors and name not in tokenizers:
            raise ArcvqError(f"{name}: trains the task {config.task}: a report takes runs of tokenizers, or of priors")
    if priors and tokenizers:
        prior, tokenizer = next(iter(priors)), next(iter(tokenizers))
        raise ArcvqError(f"{prior} trains a prior, {tokenizer} a tokenizer: make a report of each kind")


def _prior_report(
    runs: Sequence[RunHistory], configs: Mapping[str, PriorRunConfig], out: Path, title: str, notes: list[str]
) -> Report:
    """The report of priors: with samples and the own metric of those that are finished."""
    found = [_prior_run(run, configs[run.name], notes) for run in runs]
    for run in runs:
        file = run.path / GENERATION_FILE
        if file.is_file():
            line = read_json(file, "an evaluation").get("sampling", {}).get("line")
            notes.append(f"The protocol “generation” of {run.name}: {line}.")
    page = write_prior_report(found, out, title=title, notes=notes)
    measured = {
        run.history.name: {images: {run.metric: value} for images, value in run.measured.items()} for run in found
    }
    return Report(page, [run.history for run in found], measured)


def _prior_run(run: RunHistory, config: PriorRunConfig, notes: list[str]) -> PriorRun:
    """What the page shows of a prior. What cannot be shown becomes a note."""
    metric = config.prior_class.metric
    tokenizer = _tokenizer_history(run, config, notes)
    facts = {"tokenizer": Path(config.tokenizer or "").name}
    try:
        generator = Generator.from_pretrained(run.path, device=choose_device(None))
    except ArcvqError as error:
        notes.append(f"{run.name} has no images: {error}.")
        return PriorRun(run, metric, facts, tokenizer=tokenizer)
    facts |= {key: str(value) for key, value in generator.prior.describe().items()}
    facts |= {generator.prior.models: generator.prior.shape_text}
    with progress_bar("sampling") as progress:
        images = generator(GRID_IMAGES, progress=lambda done, total: progress(run.name, done, total))
    caption = f"The first {GRID_IMAGES} images of seed 0, as arcvq sample makes them."
    samples = image_grid(to_uint8(images).cpu()), caption
    measured = {}
    try:
        sets = load_image_sets(generator, run.path, download=False)
        labelled = use_labels(generator, sets.test, own_data=True)
        for name, each in {"training images": sets.train, "test images": sets.test}.items():
            measured[name] = measure_prior(generator, first_images(each, COMPARED_IMAGES), labelled)[metric]
    except ArcvqError as error:
        notes.append(f"{run.name} is not compared on training and test images: {error}.")
    return PriorRun(run, metric, facts, measured, samples, tokenizer)


def _tokenizer_history(run: RunHistory, config: PriorRunConfig, notes: list[str]) -> RunHistory | None:
    """The run of the tokenizer that a prior was trained on; None, with a note, if it is not there or another one now."""
    source = config.tokenizer or ""
    try:
        if not RunFolder(source).config.is_file():
            notes.append(f"The tokenizer {source} is no run on this machine: its numbers are not shown.")
            return None
        began_with = read_json(run.path / ORIGIN, "a prior's run").get("tokenizer")
        if began_with != model_fingerprint(Tokenizer.from_pretrained(source)):
            notes.append(f"{source} is another tokenizer now than that of {run.name}: its numbers are not shown.")
            return None
        return RunHistory.load(source)
    except ArcvqError as error:
        notes.append(f"The numbers of the tokenizer are not shown: {error}.")
        return None


def _test_images(config: TokenizerConfig) -> Images:
    """The test images of the run's data set, if they are on this machine."""
    root = Path(config.data.root) if config.data.root else None
    return load_images(
        config.data.name,
        split="test",
        root=root,
        image_size=config.data.image_size,
        download=False,
        holdout_every=config.data.holdout_every,
        on_error=config.data.on_error,
    )


def _load_tokenizer(run: RunHistory, config: TokenizerConfig, images: Images) -> Tokenizer | None:
    """The finished tokenizer, else that of the last checkpoint; None before the first checkpoint."""
    folder = RunFolder(run.path)
    if (folder.model / "config.json").is_file():
        return Tokenizer.from_pretrained(folder.model)
    found = checkpoints(folder.checkpoints)
    if not found:
        return None
    tokenizer = config.build_tokenizer(images.channels, (images.height, images.width), max(run.last_step, 1))
    file = "tokenizer.safetensors" if config.training.ema is None else "tokenizer-average.safetensors"
    try:
        tokenizer.load_state_dict(read_tensors(found[-1] / file, "a checkpoint"))
    except RuntimeError:
        raise ArcvqError(f"{found[-1]}: does not fit {folder.config}") from None
    return tokenizer.eval()
