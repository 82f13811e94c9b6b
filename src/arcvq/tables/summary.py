"""What the tables say, in a few lines."""

from __future__ import annotations

from typing import Any

from arcvq.tables.budget_page import budget_lines, standing
from arcvq.tables.chosen import recipe_runs, scores
from arcvq.tables.paper import TABLE_1, TABLES, Table
from arcvq.tables.results import METRICS, Result, alike, cell, metric_text, number, precisions, revision_mark
from arcvq.tables.rows import ABSENT, Grouped
from arcvq.tables.studies import BUDGETS, CONTENDERS, DATA
from arcvq.tables.study_pages import best_of

# What systems are ranked by: by PSNR as it should be measured, by rFID as the paper measures it, and by how much of the codebook lives.
RANKINGS = (("psnr", "exact"), ("rfid", "paper"), ("usage", "exact"))


def summary(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    lines = [line for data in TABLE_1.data for line in published(data, grouped.get(data, {}), printed.get(data, {}))]
    lines += [*tuned(grouped.get(DATA, {})), *beside_rivals(grouped.get(DATA, {})), *progress(grouped)]
    return [f"- {line}" for line in lines]


def published(data: str, named: dict[str, list[Result]], printed: dict[str, Any]) -> list[str]:
    """Table 1's systems at the published settings, best first; then what the paper's method gains over the plain one."""
    measured = alike(named, TABLE_1.runs())
    shown = [result for results in measured.values() for result in results]
    how = f"{data}, published settings{f' in {words}' if (words := precisions(shown)) else ''}"
    lines = []
    for metric, protocol in RANKINGS:
        found = {
            row.label: of
            for row in TABLE_1.rows
            if (of := cell(measured.get(row.run, []), protocol, metric)) is not None
        }
        down = METRICS[metric][2] < 0
        ranked = sorted(found, key=lambda label: found[label].mean if down else -found[label].mean)
        said = ", ".join(f"{label} {metric_text(metric, found[label], found[label].seeds)}" for label in ranked)
        if said:
            lines.append(f"{how}, {METRICS[metric][0]} (`{protocol}`{revision_mark(shown, protocol)}): {said}.")
    plain, method = TABLE_1.rows[0], TABLE_1.rows[-1]
    ours = [cell(measured.get(row.run, []), "paper", "psnr") for row in (plain, method)]
    print_ = [printed.get(row.run, {}).get("psnr") for row in (plain, method)]
    if ours[0] and ours[1] and None not in print_:
        lines.append(
            f"{data}, {method.label} over {plain.label} in PSNR (`paper`{revision_mark(shown, 'paper')}): "
            f"{ours[1].mean - ours[0].mean:+.2f} dB, in print {print_[1] - print_[0]:+.2f}."
        )
    return lines


def tuned(named: dict[str, list[Result]]) -> list[str]:
    """Every system at the best of what it was tried with, and the best candidate for a recipe."""
    found = [best for system in CONTENDERS if (best := best_of(named, system))]
    if not found:
        return []
    ranked = sorted(found, key=lambda best: -best.psnr)
    said = ", ".join(f"{best.system} {number('psnr', best.psnr)}" for best in ranked)
    lines = [f"{DATA}, 100 epochs, each at the best rate and schedule tried, PSNR on held-out images: {said}."]
    tried = scores(named, recipe_runs())
    if tried:
        first = max(tried, key=lambda name: tried[name].mean)
        lines.append(
            f"{DATA}, the best candidate for a recipe, as long: `{first}` {number('psnr', tried[first].mean)}."
        )
    return lines


def beside_rivals(named: dict[str, list[Result]]) -> list[str]:
    """The recipe against the best of everyone else, length by length, as far as there is something to say."""
    every = budget_lines(named)
    said = [(epochs, standing(every, epochs)) for epochs in BUDGETS]
    return [f"{DATA}, {epochs} epochs, PSNR on the test set: {words}." for epochs, words in said if words != ABSENT]


def progress(grouped: Grouped) -> list[str]:
    """How many of a table's runs are there, or diverged, each seed a run; those that are whole are not named."""
    lacking = []
    for each in (table for table in TABLES if isinstance(table, Table)):
        rows = [
            alike(grouped.get(data, {}), [run], diverged=True).get(run, []) for data in each.data for run in each.runs()
        ]
        there = sum(len({result.seed for result in row} & set(each.seeds)) for row in rows)
        if there < len(rows) * len(each.seeds):
            lacking.append(f"{each.key} ({there} of {len(rows) * len(each.seeds)} runs)")
    return [f"Not whole yet: {', '.join(lacking)}."] if lacking else []
