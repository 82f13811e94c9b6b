"""Every document that carries measured numbers, and what it should say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arcvq.errors import ArcvqError
from arcvq.metrics import metric_label
from arcvq.storage import read_json, read_text
from reproduction import studies
from reproduction.results import Results, mean, read_result
from reproduction.rows import csv_text
from reproduction.runs import RUNS
from reproduction.tables import NOTHING, cells, heading, markdown, not_measured, print_beside_ours

ROOT = Path(__file__).resolve().parent.parent
MEASURED = "# Measured: "
README_ROWS = ("vq-vae", "sq-vae", "cvq-vae", "arcvq-vae", "arcvq-scaffold")
README_METRICS = ("psnr", "lpips", "rfid", "usage")
CARD_METRICS = ("psnr", "ssim", "lpips", "rfid", "usage", "perplexity")


def documents(folder: Path) -> dict[Path, str]:
    """Path → text. Results that are not the repository's get a page of their own beside them."""
    results, document = Results(folder), read_json(RUNS, "the list of runs")
    made = {folder / "runs.csv": csv_text(results)}
    if folder.resolve() != ROOT / "results":
        return made | {folder / "RESULTS.md": own_page(document, results)}
    marked = {ROOT / "RESULTS.md": sections(document, results), ROOT / "README.md": {"results": readme_rows(results)}}
    for card in sorted((ROOT / "models").glob("*/README.md")):
        marked[card] = {"measured": card_numbers(card.parent.name, folder)}
    for path, parts in marked.items():
        made[path] = read_text(path)
        for key, lines in parts.items():
            made[path] = between_markers(path, made[path], key, lines)
    for path in sorted((ROOT / "src" / "arcvq" / "presets").rglob("*.yaml")):
        made[path] = with_header(read_text(path), measured_line(results, path.parent.name, path.stem))
    return made


def sections(document: dict[str, Any], results: Results) -> dict[str, list[str]]:
    tables = document["tables"]
    return {
        **{key: print_beside_ours(table, results) for key, table in tables.items() if "metrics" in table},
        "tuning": studies.tuned_rates(document, results),
        "recipe": studies.candidates(document, results),
        "lengths": studies.by_length(document, results, "budgets"),
        "longest": studies.longest(document, results),
        "prior": studies.by_length(document, results, "samp"),
        "on-top": studies.side_by_side(document, results, "on-top"),
        "not-measured": not_measured(),
        "open": open_runs(document, results),
    }


def open_runs(document: dict[str, Any], results: Results) -> list[str]:
    lines = []
    for key, table in document["tables"].items():
        wanted = [(data, run, seed) for data in table["data"] for run in table["runs"] for seed in table["seeds"]]
        there = sum(any(result.seed == seed for result in results.get(data, run)) for data, run, seed in wanted)
        lines += [f"- `{key}`: {there} of {len(wanted)} runs"] * (there < len(wanted))
    return lines or ["All runs are made."]


def own_page(document: dict[str, Any], results: Results) -> str:
    """The paper's tables, for the data sets and systems that have results."""
    lines = ["# Results", "", "Every run is a row of [runs.csv](runs.csv)."]
    for table in document["tables"].values():
        found = [data for data in results.precision if any(results.get(data, run) for run in table["runs"])]
        if "metrics" in table and found:
            lines += ["", f"## {table['title']}", "", *print_beside_ours(table, results, found)]
    return "\n".join(lines) + "\n"


def readme_rows(results: Results) -> list[str]:
    found = [(name, results.get("cifar10", name)) for name in README_ROWS]
    rows = [[f"`{name}`", *cells(seeds, "exact", README_METRICS)] for name, seeds in found]
    return markdown(["preset", "seeds", *map(heading, README_METRICS)], rows)


def card_numbers(model: str, folder: Path) -> list[str]:
    """The numbers of the very run whose weights these are."""
    data, name = model.split("-", 1)
    result = read_result(folder / data / f"{name}.json")
    rows = []
    for metric in CARD_METRICS:
        numbers = [result.metrics(protocol).get(metric) for protocol in ("exact", "paper")]
        texts = [NOTHING if number is None else metric_label(metric).text(number) for number in numbers]
        rows.append([heading(metric), *texts])
    how = f"{result.epochs:.0f} epochs, trained in {result.precision} on {result.device}"
    return [
        f"Recipe: preset `{data}/{result.name}`, seed {result.seed}, {how}.",
        "",
        *markdown([f"{data}, test images", "protocol exact", "protocol paper"], rows),
    ]


def measured_line(results: Results, data: str, preset: str) -> str:
    seeds = [result for result in results.get(data, preset) if not result.diverged]
    if not seeds:
        return f"{MEASURED}not yet."
    found = {metric: mean(seeds, "exact", metric) for metric in ("psnr", "ssim", "usage")}
    numbers = ", ".join(f"{metric_label(m).label} {each.text(m)}" for m, each in found.items() if each)
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0].seed}"
    return f"{MEASURED}{numbers}; {count}, protocol exact; trained in {seeds[0].precision} on {seeds[0].device}."


def with_header(text: str, line: str) -> str:
    """A preset's text with this as the last line of its header."""
    lines = [each for each in text.splitlines() if not each.startswith(MEASURED)]
    lines.insert(next(i for i, each in enumerate(lines) if not each.startswith("#")), line)
    return "\n".join(lines) + "\n"


def between_markers(path: Path, text: str, key: str, lines: list[str]) -> str:
    begin, end = f"<!-- {key}:begin -->", f"<!-- {key}:end -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ArcvqError(f"{path}: expected the markers {begin} and {end}, in this order")
    return f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}"
