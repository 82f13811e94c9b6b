"""Writes the report of runs that train a prior: one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from torch import Tensor

from arcvq.analysis import page
from arcvq.analysis.comparison import ARROWS, Cell, Group, Row, compare_metrics
from arcvq.analysis.diagnosis import diagnose
from arcvq.analysis.figures.style import run_colour
from arcvq.analysis.figures.training import prior_training
from arcvq.analysis.history import RunHistory
from arcvq.analysis.illustrations import Illustration
from arcvq.analysis.settings import differing_settings
from arcvq.metrics import metric_label
from arcvq.storage import write_bytes


@dataclass(frozen=True)
class PriorRun:
    """A run of a prior and what is known of its model.

    metric     the prior's own, e.g. bits_per_token
    facts      of the model, by name
    measured   the metric on images by their name, e.g. {"test images": 4.2}
    samples    a grid of generated images, uint8 (1 or 3, H, W), and its caption
    tokenizer  the run of its tokenizer
    """

    history: RunHistory
    metric: str
    facts: Mapping[str, str]
    measured: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[Tensor, str] | None = None
    tokenizer: RunHistory | None = None


def write_prior_report(runs: Sequence[PriorRun], out: Path, *, title: str, notes: Sequence[str] = ()) -> Path:
    """Write `out/index.html`, which needs no other file, and return its path."""
    histories = [run.history for run in runs]
    cards = "".join(_card(run, run_colour(position)) for position, run in enumerate(runs))
    sections = [("summary", "", f'<div class="cards">{cards}</div>')]
    for position, run in enumerate(runs):
        if run.samples is not None:
            heading = "Generated images" if len(runs) == 1 else f"Images of {run.history.name}"
            sections.append(page.generated_section(*run.samples, anchor=f"generated-{position}", title=heading))
    groups = [*_own_metrics(runs), *compare_metrics(histories)]
    sections.append(("metrics", "Metrics", page.metrics_table(histories, groups)))
    sections.append(("diagnosis", "Diagnosis", page.findings_cards({run.name: diagnose(run) for run in histories})))
    sections += [
        page.figure_section(_training(histories, metric)) for metric in dict.fromkeys(run.metric for run in runs)
    ]
    tokenizers = list({run.tokenizer.path: run.tokenizer for run in runs if run.tokenizer is not None}.values())
    if tokenizers:
        table = page.metrics_table(tokenizers, compare_metrics(tokenizers))
        sections.append(("tokenizer", "The tokenizer" if len(tokenizers) == 1 else "The tokenizers", table))
    if notes:
        sections.append(("notes", "Notes", page.notes_list(notes)))
    sections.append(("settings", "Settings that differ", page.settings_table(histories, differing_settings(histories))))
    lead = "; ".join(f"{run.history.name}: {_last_value(run)}" for run in runs) + "."
    path = Path(out) / "index.html"
    write_bytes(path, page.html_page(title, lead, sections).encode("utf-8"))
    return path


def _card(run: PriorRun, colour: str) -> str:
    """The HTML card of one run."""
    history = run.history
    steps = f"{history.last_step:,}{'' if history.finished else ', unfinished'}"
    facts = {"system": history.system, **run.facts, "training steps": steps}
    return page.fact_card(history.name, colour, f'<p class="figure">{escape(_last_value(run))}</p>', facts)


def _last_value(run: PriorRun) -> str:
    """The prior's own metric at the last evaluation, as text."""
    series, label = run.history.evaluation_series(run.metric), metric_label(run.metric)
    return f"{label.text(float(series.values[-1]))} {label.label}" if len(series) else "no evaluation was logged"


def _own_metrics(runs: Sequence[PriorRun]) -> list[Group]:
    """The priors' own metrics of their last weights: a row for each metric and set of images. None is best: tokenizers may differ."""
    keys = dict.fromkeys((run.metric, images) for run in runs for images in run.measured)
    rows = []
    for metric, images in keys:
        label = metric_label(metric)
        values = [run.measured.get(images) if run.metric == metric else None for run in runs]
        cells = (Cell(None, reason="not measured") if value is None else Cell(label.text(value)) for value in values)
        rows.append(Row(metric, f"{label.label}, {images}", ARROWS[label.better], tuple(cells)))
    return [Group("The priors' own metrics", tuple(rows))] if rows else []


def _training(runs: Sequence[RunHistory], metric: str) -> Illustration:
    """The loss of priors, and the metric of those that have it, over the training."""
    names = " and ".join(run.name for run in runs)
    label = metric_label(metric).label
    return Illustration(
        f"training-{metric}".replace("_", "-"),
        "Training",
        prior_training(runs, metric),
        "The loss on training images, smoothed, with the logged values faint behind, and the prior's own metric on the evaluation "
        f"images ({label}). If it rises while the loss falls, the prior learns its training images by heart.",
        f"Two line charts against the training step for {names}: loss, and {label}.",
    )
