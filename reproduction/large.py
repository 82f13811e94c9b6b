"""The tables of large images: the paper's of ImageNet and FFHQ beside ours, and our studies on photographs."""

from __future__ import annotations

import math
from typing import Any

from arcvq.systems import TokenizerConfig, load_config
from reproduction.results import Result, Results, mean_metric
from reproduction.studies import mean_held_out_psnr, mean_text, sort_value
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

Document = dict[str, Any]  # runs.json


def imagenet_table(results: Results) -> list[str]:
    """Table 2: a row per printed one, with ours beside it."""
    metrics = ("rfid", "usage", "psnr")
    rows: list[tuple[float | None, list[str]]] = []
    shown: list[Result] = []
    for row in printed_rows("table2"):
        ours = results.get("imagenet", row["run"])
        shown += ours
        about = [row["method"], row["tokens"], f"{row['codes']}{row.get('note', '')}", bits_text(bits_of(row))]
        rows.append((bits_of(row), [*about, *cells_beside_print(ours, "exact", metrics, row)]))
    headings = ["system", "tokens", "K", "bits/image", "seeds", *map(metric_heading, metrics)]
    return [
        *markdown_table(headings, by_bits(rows)),
        *_image_counts(shown),
        *training_notes(shown),
        *print_notes("table2"),
    ]


def widths_table(results: Results) -> list[str]:
    """Table 5: print and ours on FFHQ, and ours on faces at 128²."""
    metrics = ("norm_mean_used", "usage", "psnr", "ssim", "rfid")
    rows: list[list[str]] = []
    shown: list[Result] = []
    for data in ("ffhq", "faces"):
        for row in printed_rows("table5"):
            ours = results.get(data, row["run"])
            shown += ours
            printed = row if data == "ffhq" else {}
            rows.append([data, str(row["width"]), *cells_beside_print(ours, "exact", metrics, printed)])
    headings = ["data", "D", "seeds", *map(metric_heading, metrics)]
    return [*markdown_table(headings, rows), *_image_counts(shown), *training_notes(shown), *print_notes("table5")]


def reduction_table(results: Results) -> list[str]:
    """Table 10: the codes of a trained VQGAN-LC clustered; print begins with 100,000, ours with 16,384."""
    metrics = ("rfid", "usage", "psnr")
    rows: list[tuple[float | None, list[str]]] = []
    shown: list[Result] = []
    for row in printed_rows("table10"):
        ours = results.get("faces", row["run"]) if "run" in row else []
        shown += ours
        bits = math.log2(row["codes"])
        rows.append((bits, [str(row["codes"]), f"{bits:.1f}", *cells_beside_print(ours, "exact", metrics, row)]))
    headings = ["K", "bits/token", "seeds", *map(metric_heading, metrics)]
    table = markdown_table(headings, by_bits(rows), left=0)
    return [*table, *_image_counts(shown), *training_notes(shown), *print_notes("table10")]


def photographs_table(document: Document, results: Results, key: str) -> list[str]:
    """A study of tokenizers of photographs: on the held-out test images, then rFID on each foreign set, by bits per image."""
    keys = (key, *document["tables"][key].get("also", ()))
    metrics = ("psnr", "lpips", "rfid", "kid", "usage")
    runs = [each for name in keys for each in _labelled_runs(document["tables"][name])]
    measured = {(data, run): results.get(data, run) for data, run, _ in runs}
    shown = [result for seeds in measured.values() for result in seeds]
    abroad = list(dict.fromkeys(name for result in shown for name in result.sections if name.startswith("exact, ")))
    rows: list[tuple[float | None, list[str]]] = []
    for data, run, label in runs:
        seeds, bits = measured[data, run], bits_per_image(document, data, run)
        foreign = [mean_text(mean_metric(seeds, name, "rfid"), "rfid") for name in abroad]
        rows.append((bits, [label, bits_text(bits), *seed_and_mean_cells(seeds, "exact", metrics), *foreign]))
    headings = ["system", "bits/image", "seeds", *map(metric_heading, metrics)]
    headings += [metric_heading("rfid", name.removeprefix("exact, ")) for name in abroad]
    return [*markdown_table(headings, by_bits(rows)), *_image_counts(shown), *training_notes(shown)]


def rates_table(document: Document, results: Results) -> list[str]:
    """A row per system: PSNR on held-out training images at each rate, and the rate of the run that the study shows."""
    tables, runs = document["tables"], document["runs"]
    (data,) = tables["photos-128-rates"]["data"]
    found: dict[str, dict[float, list[Result]]] = {}
    for name in tables["photos-128-rates"]["runs"]:
        rate = learning_rate(document, data, name)
        found.setdefault(runs[name]["preset"], {})[rate] = results.get(data, name)
    chosen = {runs[name]["preset"]: learning_rate(document, data, name) for name in tables["photos-128"]["runs"]}
    rates = sorted({rate for each in found.values() for rate in each})
    rows = []
    for preset, seeds in found.items():
        means = [mean_held_out_psnr(seeds.get(rate, [])) for rate in rates]
        best = max(map(sort_value, means))
        cells = [mean_text(each, "psnr") if each else NOT_MEASURED for each in means]
        cells = [f"**{cell}**" if each and each.value == best else cell for cell, each in zip(cells, means)]
        rows.append([f"`{preset}`", *cells, f"{chosen[preset]:g}"])
    return markdown_table(["PSNR, held out", *(f"{rate:g}" for rate in rates), "rate in the study"], rows)


def discriminators_table(document: Document, results: Results) -> list[str]:
    """A row per system and weight of the discriminator's term: PSNR on held-out images before it joins → at the end, at each rate."""
    table = document["tables"]["photos-128-discriminator"]
    (data,) = table["data"]
    found: dict[tuple[str, str], dict[float, str]] = {}
    for name in table["runs"]:
        about = document["runs"][name]
        config = load_config(f"{data}/{about['preset']}", about.get("settings", ()))
        assert isinstance(config, TokenizerConfig)
        assert config.adversarial is not None
        part, steps = config.adversarial, config.training.steps or 0
        weight = f"{part.weight:g} {'adaptive' if part.adaptive else 'fixed, ramp, LeCam'}"
        cell = NOT_MEASURED
        for result in results.get(data, name):
            before = [each["psnr"] for each in result.evaluations if each["step"] <= part.start * steps]
            cell = f"{before[-1]:.2f} → {result.evaluations[-1]['psnr']:.2f}"
        found.setdefault((f"`{about['preset']}`", weight), {})[config.training.learning_rate] = cell
    rates = sorted({rate for cells in found.values() for rate in cells})
    rows = [[*names, *(cells.get(rate, NOT_MEASURED) for rate in rates)] for names, cells in found.items()]
    return markdown_table(["system", "weight of its term", *(f"{rate:g}" for rate in rates)], rows, left=2)


def learning_rate(document: Document, data: str, run: str) -> float:
    """The learning rate of a run of the list."""
    about = document["runs"][run]
    return load_config(f"{data}/{about['preset']}", about.get("settings", ())).training.learning_rate


def bits_per_image(document: Document, data: str, run: str) -> float:
    """The bits of an image's tokens under a run of the list: positions, times tokens for each, times log2 K."""
    about = document["runs"][run]
    config = load_config(f"{data}/{about['preset']}", about.get("settings", ()))
    assert isinstance(config, TokenizerConfig)
    assert config.data.image_size is not None
    quantizer = config.quantizer
    each = math.prod(getattr(quantizer, name, 1) for name in ("depth", "heads", "groups"))
    positions = (config.data.image_size // config.autoencoder.downsampling) ** 2
    return positions * each * math.log2(quantizer.codebook_size)


def _labelled_runs(table: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Data set, name and label of each run of a table."""
    return [(data, run, table["labels"][run]) for data in table["data"] for run in table["runs"]]


def _image_counts(shown: list[Result]) -> list[str]:
    """A line below a table: how many test images it is measured on, and how many of each foreign set."""
    counts = {
        name.removeprefix("exact, "): f"{part['images']:,}"
        for result in shown
        for name, part in result.sections.items()
        if name.startswith("exact")
    }
    texts = [f"{count} of {'the test images' if name == 'exact' else name}" for name, count in counts.items()]
    return ["", f"Images: {' and '.join(texts)}."] if texts else []
