"""The tables of the recipe study on CIFAR-10."""

from __future__ import annotations

from typing import Any

from arcvq.metrics import metric_label
from reproduction.results import Mean, Result, Results, mean_metric, mean_of
from reproduction.tables import NO_VALUE, markdown_table, metric_heading, training_notes

DATA = "cifar10"
EPOCHS = (25, 50, 100, 250, 500)
SHOWN = 8  # rows of a ranking
Document = dict[str, Any]  # runs.json


def tuning_table(document: Document, results: Results) -> list[str]:
    """A row per system: the learning rate with the best held-out PSNR, for each schedule."""
    found: dict[str, list[list[Result]]] = {}
    for name in document["tables"]["tuning"]["runs"]:
        if seeds := results.get(DATA, name):
            found.setdefault(document["runs"][name]["preset"], []).append(seeds)
    rows = []
    for system, runs in found.items():
        row = [system]
        for schedule in ("constant", "cosine"):
            candidates = [seeds for seeds in runs if seeds[0].config["training"]["schedule"] == schedule]
            chosen = max(candidates, key=lambda seeds: sort_value(mean_held_out_psnr(seeds)), default=[])
            rate = f"{chosen[0].config['training']['learning_rate']:g}" if chosen else NO_VALUE
            row += [rate, mean_text(mean_held_out_psnr(chosen), "psnr")]
        rows.append([*row, str(len(runs)), str(sum(map(all_failed, runs)))])
    headings = ["system", "constant rate", "PSNR, held out", "cosine from", "PSNR, held out", "runs", "collapsed"]
    return markdown_table(headings, rows)


def recipe_table(document: Document, results: Results) -> list[str]:
    """A row per candidate recipe: the longest trainings first, then by held-out PSNR."""
    runs = {name: results.get(DATA, name) for name in document["tables"]["recipe"]["runs"]}
    measured = {name: seeds for name, seeds in runs.items() if seeds}
    order = sorted(
        measured, key=lambda name: (-(measured[name][0].epochs or 0), -sort_value(mean_held_out_psnr(measured[name])))
    )
    rows = []
    for name in order:
        seeds = measured[name]
        psnr, usage = (mean_text(mean_metric(seeds, "exact", metric), metric) for metric in ("psnr", "usage"))
        description = document["runs"][name].get("description", "")
        held_out = mean_text(mean_held_out_psnr(seeds), "psnr")
        rows.append([f"`{name}`", description, f"{seeds[0].epochs:.0f}", held_out, psnr, usage])
    headings = ["candidate", "what it is", "epochs", "PSNR, held out", "PSNR, exact", "usage"]
    rest = ["", f"The other {len(rows) - SHOWN} are lower; `results/runs.csv` has them."] if len(rows) > SHOWN else []
    return [*markdown_table(headings, rows[:SHOWN], left=2), *rest]


def psnr_by_epochs_table(document: Document, results: Results, key: str) -> list[str]:
    """Test PSNR by training length: a row per label of the table in runs.json, the best of the row's runs."""
    labelled_runs = document["tables"][key]["rows"]
    rows = []
    for label, names in labelled_runs.items():
        found = [best_mean([mean_psnr_after(results.get(DATA, name), n) for name in names], "psnr") for n in EPOCHS]
        if any(found):
            rows.append([label, *(mean_text(psnr, "psnr") for psnr in found)])
    return markdown_table(["PSNR, exact", *(f"{n} epochs" for n in EPOCHS)], rows)


def longest_training_table(document: Document, results: Results) -> list[str]:
    """A row per system: all metrics after the longest training, the best of the row's runs."""
    columns = [("exact", metric) for metric in ("psnr", "ssim", "lpips", "rfid", "usage")]
    columns += [("paper", "lpips"), ("paper", "rfid")]
    shown_runs: list[Result] = []
    means: dict[str, list[Mean | None]] = {}
    for label, names in document["tables"]["budgets"]["rows"].items():
        runs = [seeds for name in names if (seeds := results.get(DATA, name)) and seeds[0].epochs == EPOCHS[-1]]
        if runs:
            means[label] = [best_mean([mean_metric(seeds, *column) for seeds in runs], column[1]) for column in columns]
            shown_runs += [seeds[0] for seeds in runs]
    best_means = [best_mean([each[i] for each in means.values()], metric) for i, (_, metric) in enumerate(columns)]
    rows = []
    for label in sorted(means, key=lambda label: -sort_value(means[label][0])):
        cells = []
        for found, best, (_, metric) in zip(means[label], best_means, columns):
            is_best = found and best and found.value == best.value
            cells.append(f"**{mean_text(found, metric)}**" if is_best else mean_text(found, metric))
        rows.append([label, *cells])
    headings = ["system", *(metric_heading(metric, protocol) for protocol, metric in columns)]
    return [*markdown_table(headings, rows), *training_notes(shown_runs)]


def best_mean(means: list[Mean | None], metric: str) -> Mean | None:
    """The best of the means, in the better direction of the metric."""
    found = {each.value: each for each in means if each}
    best = metric_label(metric).best(list(found))
    return None if best is None else found[best]


def held_out_table(document: Document, results: Results, key: str) -> list[str]:
    """Held-out PSNR: a row per label of the table in runs.json, a column per run of the row."""
    table = document["tables"][key]
    rows = []
    for label, names in table["rows"].items():
        runs = [results.get(DATA, name) for name in names]
        cells = ["collapsed" if all_failed(seeds) else mean_text(mean_held_out_psnr(seeds), "psnr") for seeds in runs]
        rows.append([label, *cells])
    return markdown_table(["PSNR, held out", *table["columns"]], rows)


def all_failed(seeds: list[Result]) -> bool:
    """Whether every seed diverged or collapsed; False without seeds."""
    return bool(seeds) and all(seed.diverged or seed.collapsed for seed in seeds)


def mean_held_out_psnr(seeds: list[Result]) -> Mean | None:
    return mean_of(seed.held_out_psnr for seed in seeds)


def mean_psnr_after(seeds: list[Result], epochs: int) -> Mean | None:
    return mean_of(seed.psnr_after(epochs) for seed in seeds)


def sort_value(found: Mean | None) -> float:
    """The mean as a number to sort by; one that was not measured is the lowest."""
    return found.value if found else float("-inf")


def mean_text(found: Mean | None, metric: str) -> str:
    """The mean as text, or a dash if there is none."""
    return found.text(metric) if found else NO_VALUE
