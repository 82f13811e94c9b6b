"""Writes the tables of docs/speed.md: benchmarks/NAME.json goes between the markers `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

from arcvq.storage import write_bytes
from reproduction.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = {
    "assign": "Search: milliseconds, share of the limit, MiB.",
    "samp": "Search and ArcLoss, forward and backward: milliseconds, share of the limit, MiB.",
    "layer": "One layer, forward and backward: milliseconds, MiB.",
}
# The same training computed in three ways: suffix of the results' names → label.
WAYS = {"-eager": "fp32, eager", "": "fp32, captured and compiled", "-bf16": "bf16, captured and compiled"}
MARKED = re.compile(r"<!-- ([\w-]+):begin -->\n.*?<!-- \1:end -->", re.DOTALL)


def write_tables(check: bool, root: Path = ROOT) -> int:
    """Write the tables that are out of date; with `check` only report them and return 1 if there are any."""
    page = root / "docs" / "speed.md"
    old = page.read_text(encoding="utf-8")
    new = MARKED.sub(
        lambda found: f"<!-- {found[1]}:begin -->\n{section_text(found[1], root)}\n<!-- {found[1]}:end -->", old
    )
    if new != old and not check:
        write_bytes(page, new.encode())
    print(f"{page.relative_to(root)}: {'up to date' if new == old else 'out of date' if check else 'written'}")
    return int(check and new != old)


def section_text(name: str, root: Path) -> str:
    """The text between the markers of `name`: a line about the measurement, then the tables, and the picture if it was drawn."""
    if name == "quality":
        return "\n".join(quality_table(root / "results" / "runs.csv"))
    file = root / "benchmarks" / f"{name}.json"
    if not file.is_file():
        return "Not measured yet."
    document = json.loads(file.read_text(encoding="utf-8"))
    threads = f", {document['threads']} threads" if "CPU" in document["device"] else ""  # only matters for a CPU
    about = f"{document['device']}{threads}, torch {document['versions']['torch']}, {document['date']}"
    if "limits" in document:
        limit = document["limits"]["measured"]
        operations, moved = limit["operations_per_second"] / 1e12, limit["bytes_per_second"] / 1e9
        about += f"; limit {operations:.3g} float32 TFLOP/s and {moved:,.0f} GB/s"
    if "bf16_operations_per_second" in document:
        about += f"; limit {document['bf16_operations_per_second'] / 1e12:.3g} bf16 TFLOP/s"
    if document.get("suite") == "loader":
        side = document["image_size"]
        about += f"; files of {document['data']}, resized and cropped to {side}×{side} pixels"
    if document.get("suite") == "tokens":
        images = f"{document['images']:,} test images of {document['data']}, {document['batch_size']:,} at a time"
        about += f"; `{document['model']}`, {images}"
    if document.get("suite") == "seams":
        height, width = document["sides"]
        images = f"{document['images']:,} images of {document['data']}, the first of {height}×{width} pixels"
        about += f"; `{document['model']}`, {images}, tiles {document['batch_size']:,} at a time"
    if document.get("suite") == "compression":
        about += f"; `{document['model']}`, {document['images']:,} pictures of {document['data']}"
    lines = TABLES.get(document.get("suite"), size_tables)(document["rows"])
    if document.get("suite") == "compression" and (root / "docs" / "compression.png").is_file():
        lines += ["", "![PSNR against bits per pixel, a curve per format, ours as points.](compression.png)"]
    return "\n".join([f"{about}.", "", *lines])


def size_tables(rows: list[dict[str, Any]]) -> list[str]:
    """A table per task: a row per size, a column per contender, the fastest in bold."""
    lines: list[str] = []
    for task, heading in HEADINGS.items():
        task_rows = [row for row in rows if row["task"] == task]
        names = list(dict.fromkeys(row["name"] for row in task_rows if "milliseconds" in row))
        found: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
        for row in task_rows:
            found.setdefault((row["width"], row["tokens"], row["codes"]), {})[row["name"]] = row
        body = []
        for (width, tokens, codes), row_of in sorted(found.items()):
            fastest = min(row["milliseconds"] for row in row_of.values() if "milliseconds" in row)
            cells = [_cost_cell(row_of.get(name), fastest, share=task != "layer") for name in names]
            body.append([f"{tokens:,}", f"{codes:,}", str(width), *cells])
        if names:
            lines += [heading, "", *markdown_table(["N", "K", "D", *names], body, left=0), ""]
    return lines[:-1]


def _cost_cell(row: dict[str, Any] | None, fastest: float, share: bool) -> str:
    """A table cell with time, memory and, if `share`, share of the device's limit; the fastest in bold."""
    if row is None or "missing" in row:
        return "–" if row is None else row["missing"].partition(":")[0]
    time = f"{row['milliseconds']:.3g}" if row["milliseconds"] < 100 else f"{row['milliseconds']:,.0f}"
    time = f"**{time}**" if row["milliseconds"] == fastest else time
    return (
        f"{time}, {row['limit_fraction']:.0%}, {row['mebibytes']:,.1f}" if share else f"{time}, {row['mebibytes']:,.1f}"
    )


def tokens_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per precision and memory layout."""
    body = [
        [row["name"], f"{row['agreement']:.3%}", f"{row['psnr']:.3f}", f"{row['psnr_difference']:+.4f}"]
        + [f"{row[f'{way}_images_per_second']:,.0f}" for way in ("encode", "decode")]
        + [f"{max(row['encode_mebibytes'], row['decode_mebibytes']):,.0f}"]
        for row in rows
        if "missing" not in row
    ]
    return markdown_table(
        ["precision", "same tokens as fp32", "PSNR", "to fp32", "encoded/s", "decoded/s", "MiB"], body
    )


def steps_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per preset and way of computing."""
    body = [
        [
            row["preset"],
            row["way"],
            f"{row['batch_size']:,}",
            f"{row['milliseconds']:.2f}",
            f"{row['images_per_second']:,.0f}",
        ]
        for row in rows
    ]
    return markdown_table(["preset", "way", "batch", "ms a step", "images/s"], body, left=2)


def blocks_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per block, size, implementation and way; the share of the limit where there is one."""
    body = []
    for row in rows:
        size = f"{row['images']} × {row['channels']} × {row['side']}²"
        share = f"{row['limit_fraction']:.0%}" if "limit_fraction" in row else "–"
        body.append([row["task"], row["name"], size, f"{row['milliseconds']:.3g}", share, f"{row['mebibytes']:,.0f}"])
    return markdown_table(["block", "implementation", "size", "ms", "share of the limit", "MiB"], body, left=3)


def seams_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per tile and margin, below that of whole images."""
    body = []
    for row in rows:
        memory = f"{row['mebibytes']:,.0f}"
        if "tile" not in row:
            body.append([row["name"], "–", "–", f"{row['psnr']:.2f}", "–", "–", "–", "1.00", memory])
            continue
        errors = [f"{row[name]:.3f}" for name in ("near_error", "elsewhere_error")]
        quality = [f"{row['agreement']:.3%}", f"{row['psnr']:.2f}", f"{row['psnr_to_whole']:.1f}", *errors]
        body.append([f"{row['tile']}", f"{row['margin']}", *quality, f"{row['computed']:.2f}", memory])
    names = ["tile", "margin", "same tokens", "PSNR", "to the whole", "near borders", "elsewhere", "computed", "MiB"]
    return markdown_table(names, body)


def vqgan_tables(rows: list[dict[str, Any]]) -> list[str]:
    """A table of training steps, and one of encoding and decoding; a row per network and way of computing."""
    steps, coding = [], []
    for row in rows:
        if "missing" in row:
            coding.append([row["name"], row["missing"].partition(":")[0], *["–"] * 4])
        elif row["task"] == "vqgan step":
            size, speed = (
                f"{row['batch_size']} × {row['side']}²",
                f"{1e3 * row['batch_size'] / row['milliseconds']:,.1f}",
            )
            memory, share = f"{row['mebibytes'] / 1024:,.1f}", f"{row['limit_fraction']:.0%}"
            steps.append([row["name"], size, f"{row['milliseconds']:,.1f}", speed, memory, share])
        else:
            speeds = [f"{row[f'{way}_images_per_second']:,.1f}" for way in ("encode", "decode")]
            memory = f"{max(row['encode_mebibytes'], row['decode_mebibytes']) / 1024:,.1f}"
            # Another library's network has other weights, and so other tokens.
            near = [f"{row['agreement']:.3%}", f"{row['psnr_difference']:+.4f}"] if "agreement" in row else ["–", "–"]
            coding.append([row["name"], *speeds, memory, *near])
    step_names = ["training step", "batch", "ms", "images/s", "GiB", "share of the limit"]
    coding_names = ["network", "encoded/s", "decoded/s", "GiB", "same tokens as fp32", "PSNR to fp32"]
    tables = [(step_names, steps), (coding_names, coding)]
    lines = [line for names, body in tables if body for line in [*markdown_table(names, body), ""]]
    return lines[:-1]


def loader_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per kind of set and number of threads; beside the speed, how often it covers what the fastest step of a preset needs."""
    needs: dict[str, float] = {}
    for row in rows:
        if row["task"] == "step":
            needs[row["preset"]] = max(needs.get(row["preset"], 0.0), row["images_per_second"])
    body = []
    for row in rows:
        if row["task"] == "loader":
            covered = [f"{row['images_per_second'] / need:.2f}×" for need in needs.values()]
            body.append([row["kind"], f"{row['threads']}", f"{row['images_per_second']:,.0f}", *covered])
    columns = [f"of {preset}'s {need:,.0f}" for preset, need in needs.items()]
    return markdown_table(["from", "threads", "images/s", *columns], body)


def sampling_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per prior and way of sampling; the factor is over the first way of each prior, a plain loop where it has one."""
    first: dict[str, float] = {}
    body = []
    for row in rows:
        preset, _, way = row["name"].partition(", ")
        base = first.setdefault(preset, row["images_per_second"])
        speed = (
            f"{row['images_per_second']:,.3g}" if row["images_per_second"] < 100 else f"{row['images_per_second']:,.0f}"
        )
        body.append([preset, way, f"{row['batch_size']:,}", speed, f"{row['images_per_second'] / base:.1f}×"])
    return markdown_table(["prior", "way", "at a time", "images/s", "factor"], body, left=2)


def compression_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per format and quality, or mode, by rate; bits without headers where they are known."""
    measured = sorted((row for row in rows if "psnr" in row), key=lambda row: row["bits_per_pixel"])
    body = [
        [
            row["name"],
            f"{row['bits_per_pixel']:.4f}",
            f"{row['payload']:.4f}" if "payload" in row else "–",
            f"{row['psnr']:.2f}",
        ]
        for row in measured
    ]
    return markdown_table(["format", "bits per pixel", "without headers", "PSNR"], body, left=1)


def quality_table(runs: Path) -> list[str]:
    """The metrics of cifar10/arcvq-vae computed in three ways, from runs.csv, under the protocol `exact`."""
    with runs.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["data"] == "cifar10" and row["protocol"] == "exact"]
    body = []
    for ending, way in WAYS.items():
        task_rows = [row for row in rows if row["name"] == f"arcvq-vae{ending}"]
        cells = [
            f"{statistics.fmean(values) * scale:.{digits}f} ± {statistics.stdev(values) * scale:.{digits}f}{unit}"
            for metric, scale, digits, unit in (("psnr", 1, 2, ""), ("rfid", 1, 2, ""), ("usage", 100, 1, "%"))
            if (values := [float(row[metric]) for row in task_rows])
        ]
        body.append([way, str(len(task_rows)), *cells])
    return markdown_table(["way", "seeds", "PSNR", "rFID", "usage"], body)


# By suite; the other suites have tables of sizes.
TABLES = {
    "tokens": tokens_table,
    "steps": steps_table,
    "blocks": blocks_table,
    "vqgan": vqgan_tables,
    "loader": loader_table,
    "seams": seams_table,
    "compression": compression_table,
    "sampling": sampling_table,
}
