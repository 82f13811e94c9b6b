"""RESULTS.md: numbers are written between markers, whatever stands outside them is kept."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arcvq.tables.paper import TABLES, PrintedTable, Row, Table
from arcvq.tables.results import (
    METRICS,
    PRECISIONS,
    Result,
    between_markers,
    cell,
    group,
    metric_text,
    number,
    read_printed,
    read_results,
    table,
)

PROTOCOLS = ("paper", "exact")
CODEBOOK = ("usage", "perplexity", "bits_per_image")
ABSENT, NOTHING = "not measured", "–"
Grouped = dict[str, dict[str, list[Result]]]

TITLES = {
    **{table.key: table.title for table in TABLES},
    "differences": "Where ours differs from print",
    "protocols": "What the protocol alone changes",
    "runs": "Every run",
}
BLANK = "# Results\n\n## Explanations\n"


def results_page(folder: Path, before: str | None) -> str:
    """The page for the results in `folder`; `before` is the page as it is, for what people wrote into it."""
    grouped, printed = group(read_results(folder)), read_printed(folder)
    page = before or BLANK
    for key, lines in sections(grouped, printed):
        if f"<!-- {key}:begin -->" not in page:
            page = f"{page.rstrip()}\n\n## {TITLES[key]}\n\n<!-- {key}:begin -->\n<!-- {key}:end -->\n"
        page = between_markers(page, key, "\n".join(lines).strip())
    return page


def sections(grouped: Grouped, printed: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for each in TABLES:
        if isinstance(each, PrintedTable):
            yield each.key, printed_only(each, printed)
        else:
            yield each.key, small_images(each, grouped, printed)
    yield "differences", differences(grouped, printed)
    yield "protocols", protocol_effect(grouped)
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
                rows += [[label, f"ours, {p}", *our_cells(results, p, columns)] for p in PROTOCOLS]
            if numbers and not ours:
                rows.append([row.label, "ours", *absent(columns)])
            elif not ours:
                missing.append(row.label)
        lines += [f"**{data}**{image_count(shown)}", ""]
        lines += [*table(headings, rows, left=2), ""] if rows else []
        lines += [f"Not measured: {', '.join(missing)}.", ""] if missing else []
        lines += reasons(shown)
    return lines


def variants(named: dict[str, list[Result]], row: Row) -> Iterator[tuple[str, list[Result]]]:
    """The results of a row, and beside them those of the same run in another precision."""
    if row.run in named:
        yield row.label, named[row.run]
    for precision in PRECISIONS:
        if f"{row.run}-{precision}" in named:
            yield f"{row.label}, {precision}", named[f"{row.run}-{precision}"]


def our_cells(results: list[Result], protocol: str, columns: Sequence[str]) -> list[str]:
    measured = [result for result in results if result.metrics(protocol) is not None]
    if not measured:
        return absent(columns)
    cells = [metric_text(metric, cell(measured, protocol, metric), len(measured)) for metric in columns]
    return [str(len(measured)), *cells, *origin(measured)]


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


def reasons(results: list[Result]) -> list[str]:
    """What an evaluation said it could not measure, and why."""
    said = dict.fromkeys(
        f"- {result.name}, {METRICS[metric][0]}: {why.partition(': ')[0]}"
        for result in results
        for measured in result.document["protocols"].values()
        for metric, why in measured.get("missing", {}).items()
        if metric in METRICS
    )
    return [*said, ""] if said else []


def printed_numbers(printed: dict[str, Any], data: str, row: Row) -> dict[str, float]:
    if row.print_of is None:
        return {}
    part = printed if row.print_of == "main" else printed.get(row.print_of, {})
    return part.get(data, {}).get(row.run, {})


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


def differences(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """Ours under `paper` minus print, once for every system and print."""
    metrics = [metric for metric, (_, _, better) in METRICS.items() if better]
    lines: list[str] = []
    for data, named in grouped.items():
        rows, seen = [], set()
        for each in TABLES:
            for row in each.rows if isinstance(each, Table) else ():
                numbers = printed_numbers(printed, data, row)
                if not numbers or (row.run, row.print_of) in seen:
                    continue
                seen.add((row.run, row.print_of))
                for label, results in variants(named, Row(row.run, row.run)):
                    measured = [result for result in results if result.metrics("paper") is not None]
                    if measured:
                        where = "" if row.print_of == "main" else f", beside the {row.print_of}"
                        cells = [difference(measured, metric, numbers.get(metric)) for metric in metrics]
                        rows.append([f"{label}{where}", str(len(measured)), *cells])
        if rows:
            headings = ["system", "seeds", *(METRICS[m][0] for m in metrics)]
            lines += [f"**{data}**", "", *table(headings, rows), ""]
    return lines or ["Nothing is measured under `paper` yet."]


def difference(results: list[Result], metric: str, print_: float | None) -> str:
    """In bold where it is larger than the spread, with the spread; one seed has none."""
    found = cell(results, "paper", metric)
    if found is None or print_ is None:
        return NOTHING
    gap = found.mean - print_
    sign, zero = format(gap, f"+{METRICS[metric][1]}"), number(metric, 0.0)
    if sign.lstrip("+-") == zero:
        return zero
    word = "better" if gap * METRICS[metric][2] > 0 else "worse"
    if found.spread is None:
        return f"{sign} {word}, spread unknown"
    spread = number(metric, found.spread)
    return f"**{sign}** {word}, spread {spread}" if abs(gap) > found.spread else f"{sign}, within the spread {spread}"


def protocol_effect(grouped: Grouped) -> list[str]:
    """The same weights measured both ways: `paper` minus `exact`."""
    metrics = [metric for metric, (_, _, better) in METRICS.items() if better]
    rows = []
    for data, named in grouped.items():
        pairs = [
            (paper, exact)
            for results in named.values()
            for result in results
            if (paper := result.metrics("paper")) is not None and (exact := result.metrics("exact")) is not None
        ]
        if pairs:
            rows.append([data, str(len(pairs)), *(_mean_gap(pairs, metric) for metric in metrics)])
    if not rows:
        return ["No run is measured under both protocols yet."]
    return table(["data", "runs", *(METRICS[m][0] for m in metrics)], rows)


def _mean_gap(pairs: list[tuple[dict[str, float], dict[str, float]]], metric: str) -> str:
    gaps = [paper[metric] - exact[metric] for paper, exact in pairs if metric in paper and metric in exact]
    if not gaps:
        return NOTHING
    form = f"+{METRICS[metric][1]}"
    return f"{statistics.fmean(gaps):{form}} ({min(gaps):{form}} to {max(gaps):{form}})"


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
        for name, results in named.items():
            for result in results:
                document = result.document
                training, exact = document["training"], result.metrics("exact") or {}
                how = document["config"].get("training", {})
                rows.append(
                    [
                        f"{data}/{name}-seed{result.seed}",
                        ", ".join(document["protocols"]),
                        number("psnr", exact["psnr"]) if "psnr" in exact else ABSENT,
                        f"{training['steps']:,}",
                        f"{training['seconds'] / 60:.1f}",
                        training["device"],
                        f"{how.get('precision', 'fp32')}{', compiled' * bool(how.get('compile'))}",
                        document["measured"]["date"],
                        f"`{result.config_hash}`",
                    ]
                )
    return table(headings, rows, left=2) if rows else ["No run is measured yet."]
