"""The documents with measured numbers: RESULTS.md, README.md, model cards and presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arcvq.errors import ArcvqError
from arcvq.metrics import metric_label
from arcvq.storage import read_json, read_text
from reproduction import generation, large, studies
from reproduction.results import GENERATION, Results, mean_metric, read_result
from reproduction.rows import csv_text
from reproduction.runs import ROOT, RUNS_FILE
from reproduction.tables import (
    NO_VALUE,
    markdown_table,
    metric_heading,
    paper_beside_ours,
    seed_and_mean_cells,
)

MEASURED = "# Measured: "
README_ROWS = ("vq-vae", "sq-vae", "cvq-vae", "arcvq-vae", "arcvq-scaffold")
README_METRICS = ("psnr", "lpips", "rfid", "usage")
CARD_METRICS = ("psnr", "ssim", "lpips", "rfid", "usage", "perplexity")


def make_documents(folder: Path) -> dict[Path, str]:
    """The text of each document, by path. A folder other than the repository's results/ gets only runs.csv and RESULTS.md."""
    results, document = Results(folder), read_json(RUNS_FILE, "the list of runs")
    made = {folder / "runs.csv": csv_text(results)}
    if folder.resolve() != ROOT / "results":
        return made | {folder / "RESULTS.md": results_page(document, results)}
    marked = {
        ROOT / "RESULTS.md": result_sections(document, results),
        ROOT / "README.md": {"results": readme_table(results)},
    }
    for card in sorted((ROOT / "models").glob("*/README.md")):
        marked[card] = {"measured": model_card_lines(card.parent.name, folder)}
    for path, parts in marked.items():
        made[path] = read_text(path)
        for key, lines in parts.items():
            made[path] = replace_between_markers(path, made[path], key, lines)
    for path in sorted((ROOT / "src" / "arcvq" / "presets").rglob("*.yaml")):
        line = measured_line(document, results, path.parent.name, path.stem)
        made[path] = replace_measured_line(read_text(path), line)
    return made


def result_sections(document: dict[str, Any], results: Results) -> dict[str, list[str]]:
    """The generated lines of RESULTS.md, by marker."""
    tables = document["tables"]
    return {
        **{key: paper_beside_ours(table, results) for key, table in tables.items() if "metrics" in table},
        "tuning": studies.tuning_table(document, results),
        "recipe": studies.recipe_table(document, results),
        "lengths": studies.psnr_by_epochs_table(document, results, "budgets"),
        "longest": studies.longest_training_table(document, results),
        "prior": studies.psnr_by_epochs_table(document, results, "samp"),
        "on-top": studies.held_out_table(document, results, "on-top"),
        "table2": large.imagenet_table(results),
        "table3": generation.imagenet_table(results),
        "table5": large.widths_table(results),
        "table10": large.reduction_table(results),
        "table13": generation.pixelcnn_table(document, results),
        "photos-128": large.photographs_table(document, results, "photos-128"),
        "photos-128-rates": large.rates_table(document, results),
        "photos-128-discriminator": large.discriminators_table(document, results),
        "photos": large.photographs_table(document, results, "photos"),
        "priors": generation.priors_table(document, results),
        "aim": generation.aim_table(document, results),
        "open": open_run_counts(document, results),
    }


def open_run_counts(document: dict[str, Any], results: Results) -> list[str]:
    """A line with the tables that lack runs."""
    texts = []
    for key, table in document["tables"].items():
        wanted = [(data, run, seed) for data in table["data"] for run in table["runs"] for seed in table["seeds"]]
        found = sum(any(result.seed == seed for result in results.get(data, run)) for data, run, seed in wanted)
        texts += [f"`{key}` {found} of {len(wanted)}"] * (found < len(wanted))
    return [f"Runs that have a result: {', '.join(texts)}."] if texts else ["All runs are made."]


def results_page(document: dict[str, Any], results: Results) -> str:
    """A page with those tables that have results."""
    lines = ["# Results", "", "Every run is a row of [runs.csv](runs.csv)."]
    sections = result_sections(document, results)
    for key, table in document["tables"].items():
        runs = [run for name in (key, *table.get("also", ())) for run in document["tables"][name]["runs"]]
        found = [data for data in results.precision if any(results.get(data, run) for run in runs)]
        if "metrics" in table and found:
            lines += ["", f"## {table['title']}", "", *paper_beside_ours(table, results, found)]
        elif key in sections and found:
            lines += ["", f"## {table['title']}", "", *sections[key]]
    return "\n".join(lines) + "\n"


def readme_table(results: Results) -> list[str]:
    """The table of README.md."""
    found = [(name, results.get("cifar10", name)) for name in README_ROWS]
    rows = [[f"`{name}`", *seed_and_mean_cells(seeds, "exact", README_METRICS)] for name, seeds in found]
    return markdown_table(["preset", "seeds", *map(metric_heading, README_METRICS)], rows)


def model_card_lines(model: str, folder: Path) -> list[str]:
    """Recipe and metrics of a kept model, for its card."""
    data, name = model.split("-", 1)
    result = read_result(folder / data / f"{name}.json")
    rows = []
    for metric in CARD_METRICS:
        numbers = [result.metrics(protocol).get(metric) for protocol in ("exact", "paper")]
        texts = [NO_VALUE if number is None else metric_label(metric).text(number) for number in numbers]
        rows.append([metric_heading(metric), *texts])
    how = f"{result.epochs:.0f} epochs, trained in {result.precision} on {result.device}"
    return [
        f"Recipe: preset `{data}/{result.name}`, seed {result.seed}, {how}.",
        "",
        *markdown_table([f"{data}, test images", "protocol exact", "protocol paper"], rows),
    ]


def measured_line(document: dict[str, Any], results: Results, data: str, preset: str) -> str:
    """The line of a preset's header that states its metrics; of a prior its gFID over each tokenizer."""
    priors = {name: run for name, run in document["runs"].items() if run["preset"] == preset and "samples" in run}
    over = {name: mean for name in priors if (mean := mean_metric(results.get(data, name), GENERATION, "gfid"))}
    if over:
        first = results.get(data, next(iter(over)))[0]
        tokenizers = {name: priors[name].get("base", name.removeprefix(f"{preset}-")) for name in over}
        texts = [f"gFID {mean.text('gfid')} over {tokenizers[name]}" for name, mean in over.items()]
        count = f"{first.sections[GENERATION]['images']:,} images against train"
        return f"{MEASURED}{', '.join(texts)}; {count}; trained in {first.precision} on {first.device}."
    seeds = [result for result in results.get(data, preset) if not result.diverged]
    if not seeds:
        return f"{MEASURED}not yet."
    if GENERATION in seeds[0].sections:
        own = {metric: mean_metric(seeds, GENERATION, metric) for metric in ("gfid", "bits_per_token")}
        protocol = seeds[0].document["generation"]["protocol"]
        numbers = ", ".join(f"{metric_label(m).label} {each.text(m)}" for m, each in own.items() if each)
        count = f"{protocol['images']:,} images against {protocol['split']}"
        return f"{MEASURED}{numbers}; {count}; trained in {seeds[0].precision} on {seeds[0].device}."
    found = {metric: mean_metric(seeds, "exact", metric) for metric in ("psnr", "ssim", "usage")}
    numbers = ", ".join(f"{metric_label(m).label} {each.text(m)}" for m, each in found.items() if each)
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0].seed}"
    return f"{MEASURED}{numbers}; {count}, protocol exact; trained in {seeds[0].precision} on {seeds[0].device}."


def replace_measured_line(text: str, line: str) -> str:
    """A preset's text with `line` as the last line of its header."""
    lines = [each for each in text.splitlines() if not each.startswith(MEASURED)]
    lines.insert(next(i for i, each in enumerate(lines) if not each.startswith("#")), line)
    return "\n".join(lines) + "\n"


def replace_between_markers(path: Path, text: str, key: str, lines: list[str]) -> str:
    """The text with new lines between the markers of `key`."""
    begin, end = f"<!-- {key}:begin -->", f"<!-- {key}:end -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ArcvqError(f"{path}: expected the markers {begin} and {end}, in this order")
    return f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}"
