"""RESULTS.md: numbers are written between markers, whatever stands outside them is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from arcvq.tables import budget_page, study_pages
from arcvq.tables.differences import best_looks, causes, differences, protocol_effect, retrained
from arcvq.tables.paper import TABLES, PrintedTable, Table
from arcvq.tables.results import (
    METRICS,
    Result,
    between_markers,
    cell,
    group,
    metric_text,
    number,
    read_results,
    revision_mark,
    table,
)
from arcvq.tables.rows import ABSENT, NOTHING, Grouped, printed_numbers, read_printed, variants
from arcvq.tables.step_times import StepTimes, read_step_times, steps_page
from arcvq.tables.summary import summary

PROTOCOLS = ("paper", "exact")
INAPPLICABLE = "not applicable"
CODEBOOK = ("usage", "perplexity", "bits_per_image")
# Studies whose runs are compared with one another are laid out in their own way.
STUDIES: dict[str, Callable[[Grouped, dict[str, Any]], list[str]]] = {
    "tuning": study_pages.tuning_page,
    "recipe": study_pages.recipe_page,
    "budgets": budget_page.budgets_page,
    "challengers": budget_page.challengers_page,
    "samp": budget_page.samp_page,
    "schedules": study_pages.schedules_page,
    "on-top": study_pages.on_top_page,
    "grid": study_pages.grid_page,
}

TITLES = {
    "summary": "In short",
    **{table.key: table.title for table in TABLES},
    "longest": "After the longest training, in every metric",
    "steps": "What a step takes",
    "codebooks": "The codebooks of the recipe and of its variants",
    "differences": "Where ours differs from print",
    "causes": "What may lie behind the differences",
    "retrained": "Trained as print may have been",
    "protocols": "What the protocol alone changes",
    "looks": "What the choice of weights on the test set changes",
    "runs": "Every run",
}
BLANK = "# Results\n\n## Explanations\n"


def results_page(folder: Path, before: str | None) -> str:
    """The page for the results in `folder`; `before` is the page as it is, for what people wrote into it."""
    grouped, printed = group(read_results(folder)), read_printed()
    page = before or BLANK
    for key, lines in sections(grouped, printed, read_step_times(folder)):
        if not any(f"<!-- {key}:{end} -->" in page for end in ("begin", "end")):
            page = f"{page.rstrip()}\n\n## {TITLES[key]}\n\n<!-- {key}:begin -->\n<!-- {key}:end -->\n"
        page = between_markers(page, key, "\n".join(lines).strip())
    return page


def sections(grouped: Grouped, printed: dict[str, Any], times: StepTimes | None) -> Iterator[tuple[str, list[str]]]:
    yield "summary", summary(grouped, printed)
    for each in TABLES:
        if isinstance(each, PrintedTable):
            yield each.key, printed_only(each, printed)
        elif each.key in STUDIES:
            yield each.key, STUDIES[each.key](grouped, printed)
        else:
            yield each.key, small_images(each, grouped, printed)
    yield "longest", budget_page.longest_page(grouped, printed)
    yield "steps", steps_page(times)
    yield "codebooks", budget_page.codebooks_page(grouped, printed)
    yield "differences", differences(grouped, printed)
    yield "causes", causes(grouped, printed)
    yield "retrained", retrained(grouped, printed)
    yield "protocols", protocol_effect(grouped)
    yield "looks", best_looks(grouped, printed)
    yield "runs", every_run(grouped)


def small_images(each: Table, grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """A table per data set; for each system what is printed, then ours under both protocols. What is neither is named below."""
    columns = [*each.metrics, *CODEBOOK]
    headings = ["system", "whose", "seeds", *(METRICS[m][0] for m in columns), "date", "device", "config"]
    lines: list[str] = []
    for data in each.data:
        rows: list[list[str]] = []
        shown: list[Result] = []
        missing: list[str] = []
        for row in each.rows:
            numbers = printed_numbers(printed, data, row)
            if numbers:
                cells = [number(m, numbers[m]) if m in numbers else NOTHING for m in columns]
                rows.append([row.label, "printed", NOTHING, *cells, NOTHING, NOTHING, NOTHING])
            ours = list(variants(grouped.get(data, {}), row))
            for label, results in ours:
                shown += results
                for p in PROTOCOLS:
                    whose = f"ours, {p}{revision_mark(results, p)}"
                    rows.append([label, whose, *our_cells(results, p, columns)])
            if numbers and not ours:
                rows.append([row.label, "ours", *absent(columns)])
            elif not ours:
                missing.append(row.label)
        lines += [f"**{data}**{image_count(shown)}", ""]
        lines += [*table(headings, rows, left=2), ""] if rows else []
        lines += [f"Not measured: {', '.join(missing)}.", ""] if missing else []
        lines += rates(shown)
        lines += reasons(shown)
    return lines


def our_cells(results: list[Result], protocol: str, columns: Sequence[str]) -> list[str]:
    measured = [result for result in results if result.metrics(protocol) is not None]
    if not measured:
        return absent(columns)
    cells = [
        metric_text(metric, cell(measured, protocol, metric), len(measured), why_not(measured, protocol, metric))
        for metric in columns
    ]
    return [str(len(measured)), *cells, *origin(measured)]


def why_not(results: list[Result], protocol: str, metric: str) -> str:
    """What a cell without a number says: a model without tokens has no codes to count."""
    found = {result.document["protocols"][protocol].get("missing", {}).get(metric, "") for result in results}
    return INAPPLICABLE if all(why.startswith(INAPPLICABLE) for why in found) else ABSENT


def absent(columns: Sequence[str]) -> list[str]:
    return [ABSENT, *[NOTHING] * (len(columns) + 3)]


def origin(results: list[Result]) -> list[str]:
    """When, on what, and with which settings; seeds that differ in one of them show it."""
    dates = sorted({result.document["measured"]["date"] for result in results})
    devices = dict.fromkeys(result.document["training"]["device"] for result in results)
    hashes = dict.fromkeys(result.config_hash for result in results)
    return [" to ".join(dates[:1] + dates[1:][-1:]), ", ".join(devices), ", ".join(f"`{h}`" for h in hashes)]


def image_count(results: list[Result]) -> str:
    counts = sorted({m["images"] for result in results for m in result.document["protocols"].values()})
    return f", {' or '.join(f'{count:,}' for count in counts)} test images" if counts else ""


def rates(results: list[Result]) -> list[str]:
    """What the latents of a continuous bottleneck cost: its counterpart of bits an image."""
    measured = [(result, (result.metrics("exact") or {}).get("rate")) for result in results]
    said = [
        f"- {result.name}, seed {result.seed}: a rate of {rate:.2f} nats, {rate / math.log(2):.1f} bits, an image"
        for result, rate in measured
        if rate is not None
    ]
    return [*said, ""] if said else []


def reasons(results: list[Result]) -> list[str]:
    """What an evaluation said it could not measure, and why."""
    said = dict.fromkeys(
        f"- {result.name}, {METRICS[metric][0]}: {why.partition(': ')[0]}"
        for result in results
        for measured in result.document["protocols"].values()
        for metric, why in measured.get("missing", {}).items()
        if metric in METRICS and not why.startswith(INAPPLICABLE)
    )
    return [*said, ""] if said else []


def printed_only(each: PrintedTable, printed: dict[str, Any]) -> list[str]:
    if not each.columns:
        return [f"Nothing to measure: {each.why}."]
    rows = [
        [_printed_cell(row, key, form) for key, _, form in each.columns] + [ABSENT] for row in printed.get(each.key, [])
    ]
    text = next((i for i, (_, _, form) in enumerate(each.columns) if form), 0) or 1
    headings = [heading for _, heading, _ in each.columns]
    return [*table([*headings, "ours"], rows, left=text), "", f"Ours is not measured: {each.why}."]


def _printed_cell(row: dict[str, Any], key: str, form: str) -> str:
    return format(row[key], form) if key in row else NOTHING


def every_run(grouped: Grouped) -> list[str]:
    """One row per result file, with what it takes to find and repeat it."""
    headings = [
        "result",
        "protocols",
        "PSNR, exact",
        "steps",
        "minutes",
        "trained on",
        "precision",
        "measured",
        "config",
    ]
    rows = []
    for data, named in grouped.items():
        for results in named.values():
            for result in results:
                document = result.document
                training, exact = document["training"], result.metrics("exact") or {}
                how = document["config"].get("training", {})
                shared = f" ({result.at_a_time} at a time)"
                rows.append(
                    [
                        f"{data}/{document['name']}-seed{result.seed}",
                        ", ".join(document["protocols"]) or NOTHING,
                        number("psnr", exact["psnr"]) if "psnr" in exact else "diverged" if result.diverged else ABSENT,
                        f"{training['steps']:,}",
                        f"{training['seconds'] / 60:.1f}" + shared * (result.at_a_time > 1),
                        training["device"],
                        f"{result.precision}{', compiled' * bool(how.get('compile'))}{', eager' * (how.get('capture') == 'never')}",
                        document["measured"]["date"],
                        f"`{result.config_hash}`",
                    ]
                )
    return table(headings, rows, left=2) if rows else ["No run is measured yet."]
