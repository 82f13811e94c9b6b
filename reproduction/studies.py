"""The recipe study on CIFAR-10: rates, candidates, lengths of training, and what the prior does."""

from __future__ import annotations

from typing import Any

from arcvq.metrics import metric_label
from reproduction.results import Mean, Result, Results, mean, mean_of
from reproduction.tables import NOTHING, heading, markdown, trained

DATA = "cifar10"
LENGTHS = (25, 50, 100, 250, 500)
SHOWN = 10  # of a ranking
Document = dict[str, Any]  # runs.json


def tuned_rates(document: Document, results: Results) -> list[str]:
    """A row per system: the best rate under either schedule, by PSNR on held-out images."""
    found: dict[str, list[list[Result]]] = {}
    for name in document["tables"]["tuning"]["runs"]:
        if seeds := results.get(DATA, name):
            found.setdefault(document["runs"][name]["preset"], []).append(seeds)
    rows = []
    for system, runs in found.items():
        row = [system]
        for schedule in ("constant", "cosine"):
            of_schedule = [seeds for seeds in runs if seeds[0].config["training"]["schedule"] == schedule]
            chosen = max(of_schedule, key=lambda seeds: value(held_out(seeds)), default=[])
            rate = f"{chosen[0].config['training']['learning_rate']:g}" if chosen else NOTHING
            row += [rate, text(held_out(chosen), "psnr")]
        rows.append([*row, str(len(runs)), str(sum(map(failed, runs)))])
    headings = ["system", "constant rate", "PSNR, held out", "cosine from", "PSNR, held out", "runs", "collapsed"]
    return markdown(headings, rows)


def candidates(document: Document, results: Results) -> list[str]:
    """The longest trainings first, then by PSNR on held-out images."""
    runs = {name: results.get(DATA, name) for name in document["tables"]["recipe"]["runs"]}
    measured = {name: seeds for name, seeds in runs.items() if seeds}
    order = sorted(measured, key=lambda name: (-(measured[name][0].epochs or 0), -value(held_out(measured[name]))))
    rows = []
    for name in order:
        seeds = measured[name]
        psnr, usage = (text(mean(seeds, "exact", metric), metric) for metric in ("psnr", "usage"))
        what = document["runs"][name].get("says", "")
        rows.append([f"`{name}`", what, f"{seeds[0].epochs:.0f}", text(held_out(seeds), "psnr"), psnr, usage])
    headings = ["candidate", "what it is", "epochs", "PSNR, held out", "PSNR, exact", "usage"]
    rest = ["", f"The other {len(rows) - SHOWN} are lower; `results/runs.csv` has them."] if len(rows) > SHOWN else []
    return [*markdown(headings, rows[:SHOWN], left=2), *rest]


def by_length(document: Document, results: Results, key: str) -> list[str]:
    """PSNR on the test set after so many epochs, the best of a row's runs."""
    lines = document["tables"][key]["rows"]
    rows = []
    for label, names in lines.items():
        found = [best([after(results.get(DATA, name), n) for name in names], "psnr") for n in LENGTHS]
        if any(found):
            rows.append([label, *(text(psnr, "psnr") for psnr in found)])
    return markdown(["PSNR, exact", *(f"{n} epochs" for n in LENGTHS)], rows)


def longest(document: Document, results: Results) -> list[str]:
    """Every metric after the longest training, each number the best of a row's runs."""
    columns = [("exact", metric) for metric in ("psnr", "ssim", "lpips", "rfid", "usage")]
    columns += [("paper", "lpips"), ("paper", "rfid")]
    shown: list[Result] = []
    means: dict[str, list[Mean | None]] = {}
    for label, names in document["tables"]["budgets"]["rows"].items():
        runs = [seeds for name in names if (seeds := results.get(DATA, name)) and seeds[0].epochs == LENGTHS[-1]]
        if runs:
            means[label] = [best([mean(seeds, *column) for seeds in runs], column[1]) for column in columns]
            shown += [seeds[0] for seeds in runs]
    best_of = [best([each[i] for each in means.values()], metric) for i, (_, metric) in enumerate(columns)]
    rows = []
    for label in sorted(means, key=lambda label: -value(means[label][0])):
        cells = []
        for found, leading, (_, metric) in zip(means[label], best_of, columns):
            leads = found and leading and found.value == leading.value
            cells.append(f"**{text(found, metric)}**" if leads else text(found, metric))
        rows.append([label, *cells])
    headings = ["system", *(heading(metric, protocol) for protocol, metric in columns)]
    return [*markdown(headings, rows), *trained(shown)]


def best(means: list[Mean | None], metric: str) -> Mean | None:
    found = {each.value: each for each in means if each}
    value = metric_label(metric).best(list(found))
    return None if value is None else found[value]


def side_by_side(document: Document, results: Results, key: str) -> list[str]:
    """PSNR on held-out images of the runs of each row."""
    table = document["tables"][key]
    rows = []
    for label, names in table["rows"].items():
        runs = [results.get(DATA, name) for name in names]
        cells = ["collapsed" if failed(seeds) else text(held_out(seeds), "psnr") for seeds in runs]
        rows.append([label, *cells])
    return markdown(["PSNR, held out", *table["columns"]], rows)


def failed(seeds: list[Result]) -> bool:
    return bool(seeds) and all(seed.diverged or seed.collapsed for seed in seeds)


def held_out(seeds: list[Result]) -> Mean | None:
    return mean_of(seed.held_out_psnr for seed in seeds)


def after(seeds: list[Result], epochs: int) -> Mean | None:
    return mean_of(seed.psnr_after(epochs) for seed in seeds)


def value(found: Mean | None) -> float:
    """For comparisons: what was not measured comes last."""
    return found.value if found else float("-inf")


def text(found: Mean | None, metric: str) -> str:
    return found.text(metric) if found else NOTHING
