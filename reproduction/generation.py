"""The tables of generated images: the paper's beside ours, priors over tokenizers, and the aim of a good generator in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction.results import GENERATION, Result, Results, mean_metric
from reproduction.studies import mean_text
from reproduction.tables import (
    NOT_MEASURED,
    bits_of,
    bits_text,
    by_bits,
    cells_beside_print,
    markdown_table,
    metric_heading,
    print_notes,
    printed_rows,
    seed_and_mean_cells,
    training_notes,
)

DATA = "cifar10"
Document = dict[str, Any]  # runs.json


def imagenet_table(results: Results) -> list[str]:
    """Table 3: a row per printed one, with ours beside it."""
    metrics = ("gfid", "inception_score", "precision", "recall")
    rows: list[tuple[float | None, list[str]]] = []
    shown: list[Result] = []
    for row in printed_rows("table3"):
        ours = results.get("imagenet", row["run"]) if "run" in row else []
        shown += ours
        about = [
            f"{row['method']} ({row['prior']})",
            row.get("tokens", "?"),
            str(row["codes"]),
            bits_text(bits_of(row)),
        ]
        rows.append((bits_of(row), [*about, *cells_beside_print(ours, GENERATION, metrics, row)]))
    headings = ["tokenizer (prior)", "tokens", "K", "bits/image", "seeds", *map(metric_heading, metrics)]
    return [*markdown_table(headings, by_bits(rows)), *training_notes(shown), *print_notes("table3")]


def pixelcnn_table(document: Document, results: Results) -> list[str]:
    """Table 13: PixelCNN over the tokens of two tokenizers, and the rFID of each."""
    metrics = ("gfid", "precision", "recall", "bits_per_token")
    rows: list[list[str]] = []
    shown: list[Result] = []
    for row in printed_rows("table13"):
        ours = results.get(DATA, row["run"])
        shown += ours
        about = [row["method"], bits_text(bits_of(row)), tokenizer_rfid(document, results, row["run"])]
        rows.append([*about, *cells_beside_print(ours, GENERATION, metrics, row)])
    headings = ["tokenizer", "bits/image", metric_heading("rfid"), "seeds", *map(metric_heading, metrics)]
    return [*markdown_table(headings, rows), *training_notes(shown), *print_notes("table13")]


def priors_table(document: Document, results: Results) -> list[str]:
    """gFID: a row per prior, a column per tokenizer; above them the rFID of each tokenizer."""
    table = document["tables"]["priors"]
    tokenizers, labels = table["columns"], table["labels"]
    floor = [tokenizer_rfid(document, results, f"{next(iter(labels))}-{name}") for name in tokenizers]
    rows = [["rFID of the tokenizer", *floor]]
    for prior, label in labels.items():
        means = [mean_metric(results.get(DATA, f"{prior}-{name}"), GENERATION, "gfid") for name in tokenizers]
        rows.append([label, *(mean_text(mean, "gfid") if mean else NOT_MEASURED for mean in means)])
    shown = [result for run in table["runs"] for result in results.get(DATA, run)]
    return [*markdown_table(["gFID ↓", *(f"`{name}`" for name in tokenizers)], rows), *training_notes(shown)]


def aim_table(document: Document, results: Results) -> list[str]:
    """The tokenizer and the prior of the aim: minutes of training, and what they reach."""
    metrics = ("gfid", "precision", "recall")
    tokenizer, prior = document["tables"]["aim"]["runs"]
    trained, made = results.get(DATA, tokenizer), results.get(DATA, prior)
    minutes = [_minutes(trained), _minutes(made)]
    together = f"{sum(each for each in minutes if each):.1f}" if all(minutes) else NOT_MEASURED
    row = [f"`{prior}`", together, mean_text(mean_metric(trained, "exact", "rfid"), "rfid")]
    headings = ["generator", "minutes of training", metric_heading("rfid"), "seeds", *map(metric_heading, metrics)]
    cells = [*row, *seed_and_mean_cells(made, GENERATION, metrics)]
    return [*markdown_table(headings, [cells]), *training_notes([*trained, *made])]


def tokenizer_rfid(document: Document, results: Results, prior_run: str) -> str:
    """The rFID under `exact` of the kept tokenizer that a prior of the list is over."""
    data, _, name = Path(document["runs"][prior_run]["tokenizer"]).name.partition("-")
    found = [result for result in results.all if result.data == data and result.path.stem == name]
    return mean_text(mean_metric(found, "exact", "rfid"), "rfid")


def _minutes(results: list[Result]) -> float | None:
    """How long the training took, of the first seed."""
    seconds = results[0].document["training"].get("seconds") if results else None
    return None if seconds is None else float(seconds) / 60
