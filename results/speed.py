"""The tables of docs/speed.md, from whatever `arcvq bench` has written into benchmarks/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADINGS = {
    "assign": "Search",
    "arc": "ArcLoss, forward and backward",
    "samp": "Search and ArcLoss, forward and backward",
    "layer": "One layer, forward and backward",
}
OURS, FAISS = "arcvq chunked", "faiss IndexFlatIP"
# A smaller ratio is noise.
CLEARLY = 1.3


def speed_section(folder: Path) -> str:
    lines: list[str] = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"## {path.stem}", "", f"{_machine(document)}, {document['date']}.", ""]
        kinds = {"tokens": _precisions, "steps": _steps, "packing": _packing}
        lines += kinds.get(document.get("suite"), _sizes)(document)
        if (picture := path.with_suffix(".png")).is_file():
            lines += [f"![how time, memory and the share of the limit grow](../{folder.name}/{picture.name})", ""]
    return "\n".join(lines).strip()


def _machine(document: dict[str, Any]) -> str:
    """A CPU's threads count; a GPU's host has nothing to do with it."""
    threads = f", {document['threads']} thread{'s' * (document['threads'] > 1)}" if "CPU" in document["device"] else ""
    return f"{document['device']}{threads}, torch {document['versions']['torch']}"


def _sizes(document: dict[str, Any]) -> list[str]:
    """A table per task: a row per size, a column per contender."""
    lines = _limits(document["limits"]) if "limits" in document else []
    rows = document["rows"]
    for task, heading in HEADINGS.items():
        own = [row for row in rows if row["task"] == task]
        names = list(dict.fromkeys(row["name"] for row in own if "milliseconds" in row))
        if not names:
            continue
        lines += [f"### {heading}", "", "Milliseconds, share of the limit, MiB beyond what was there before.", ""]
        lines += ["| N | K | D | " + " | ".join(names) + " |", "|---:|---:|---:|" + "---:|" * len(names)]
        sizes = sorted({(row["tokens"], row["codes"], row["width"]) for row in own}, key=lambda size: (size[2], *size))
        for size in sizes:
            here = {row["name"]: row for row in own if (row["tokens"], row["codes"], row["width"]) == size}
            fastest = min((row["milliseconds"] for row in here.values() if "milliseconds" in row), default=None)
            cells = [_cell(here.get(name), fastest) for name in names]
            lines.append("| " + " | ".join(f"{number:,}" for number in size) + " | " + " | ".join(cells) + " |")
        lines.append("")
        reasons = dict.fromkeys(f"{row['name']}: {row['missing']}" for row in own if "missing" in row)
        lines += [*(f"- missing: {reason}" for reason in reasons), ""] if reasons else []
        lines += _beside_faiss(own)
        lines += _beside_peers(own) if task == "layer" else []
    return lines


def _limits(limits: dict[str, dict[str, float]]) -> list[str]:
    def said(numbers: dict[str, float]) -> str:
        operations, moved = numbers["operations_per_second"], numbers["bytes_per_second"]
        return f"{operations / 1e12:.3g} float32 TFLOP/s, {moved / 1e9:,.0f} GB/s"

    text = f"Limit: {said(limits['measured'])}, measured in the same run"
    return [text + (f"; the data sheet says {said(limits['data_sheet'])}." if "data_sheet" in limits else "."), ""]


def _cell(row: dict[str, Any] | None, fastest: float | None) -> str:
    """Nothing where a contender was not asked for, or could not."""
    if row is None or "missing" in row:
        return "–"
    time = f"{row['milliseconds']:.3g}" if row["milliseconds"] < 100 else f"{row['milliseconds']:,.0f}"
    time = f"**{time}**" if row["milliseconds"] == fastest else time
    limit = f", {row['limit_fraction']:.1%}" if "limit_fraction" in row else ""
    return f"{time}{limit}, {row['mebibytes']:,.1f}"


def _beside_faiss(rows: list[dict[str, Any]]) -> list[str]:
    """The two exact searches at the same sizes, by their quickest runs: other work on the machine slows a run, never speeds it up."""
    times = {
        name: {
            (row["tokens"], row["codes"], row["width"]): row["fastest"]
            for row in rows
            if row["name"] == name and "fastest" in row
        }
        for name in (OURS, FAISS)
    }
    ratios = [times[FAISS][size] / times[OURS][size] for size in times[FAISS].keys() & times[OURS].keys()]
    if not ratios:
        return []
    ahead, behind = (sum(ratio > CLEARLY for ratio in side) for side in (ratios, [1 / ratio for ratio in ratios]))
    return [
        f"By their quickest runs at {len(ratios)} sizes, faiss's exact index takes from {min(ratios):.2f} to {max(ratios):.2f} times as "
        f"long as `{OURS}`: more than {CLEARLY} times slower at {ahead}, more than {CLEARLY} times faster at {behind}. Its memory is not "
        "comparable: it allocates outside torch, where the bench does not see it.",
        "",
    ]


def _beside_peers(rows: list[dict[str, Any]]) -> list[str]:
    """Where another library's layer is faster than our plain one, called as users call it: not as a graph."""
    ours = ("arcvq VQ cosine", "arcvq VQ euclidean")
    behind = []
    for size in dict.fromkeys((row["tokens"], row["codes"], row["width"]) for row in rows):
        here = {
            row["name"]: row["milliseconds"]
            for row in rows
            if (row["tokens"], row["codes"], row["width"]) == size
            and "milliseconds" in row
            and "graph" not in row["name"]
        }
        own = min(time for name, time in here.items() if name.startswith(ours))
        faster = {name: time for name, time in here.items() if not name.startswith("arcvq") and time < own}
        if faster:
            name, time = min(faster.items(), key=lambda item: item[1])
            behind.append(f"N = {size[0]:,}, K = {size[1]:,}, D = {size[2]} ({name}: {time:.3g} ms, ours {own:.3g} ms)")
    if not behind:
        return ["Our plain layer (the faster of its two metrics) is the fastest at every size.", ""]
    return [
        f"Our plain layer (the faster of its two metrics) is not the fastest at {'; '.join(behind)}. "
        "There a step takes as long as the host needs to ask for it, and ours asks for more: how the codes are used, "
        "whether all latents are finite, the codebook's upkeep. Captured or compiled, that time is gone.",
        "",
    ]


def _precisions(document: dict[str, Any]) -> list[str]:
    about = f"`{document['model']}` on {document['data']}, {document['images']:,} test images"
    lines = [f"{about}, {document['batch_size']:,} at a time.", ""]
    lines.append(
        "| precision | same tokens as fp32 | PSNR | to fp32 | encoded/s | decoded/s | MiB encoding | MiB decoding |"
    )
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in document["rows"]:
        if "missing" in row:
            lines.append(f"| {row['name']} | missing: {row['missing']} | – | – | – | – | – | – |")
            continue
        cells = [
            f"{row['agreement']:.3%}",
            f"{row['psnr']:.3f}",
            f"{row['psnr_difference']:+.4f}",
            *(f"{row[f'{way}_images_per_second']:,.0f}" for way in ("encode", "decode")),
            *(f"{row[f'{way}_mebibytes']:,.1f}" for way in ("encode", "decode")),
        ]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _steps(document: dict[str, Any]) -> list[str]:
    lines = ["| preset | way | batch | ms a step | images/s | MiB |", "|---|---|---:|---:|---:|---:|"]
    for row in document["rows"]:
        memory = f"{row['mebibytes']:,.0f}" if "mebibytes" in row else "–"
        numbers = f"{row['batch_size']:,} | {row['milliseconds']:.3f} | {row['images_per_second']:,.0f} | {memory}"
        lines.append(f"| {row['preset']} | {row['way']} | {numbers} |")
    return [*lines, ""]


def _packing(document: dict[str, Any]) -> list[str]:
    lines = []
    for preset in dict.fromkeys(row["preset"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["preset"] == preset]
        alone = next(row["steps_per_second"] for row in rows if row["at_a_time"] == 1 and not row["mps"])
        lines += [f"`{preset}`, {rows[0]['way']}, batches of {rows[0]['batch_size']:,}.", ""]
        lines += [
            "| at a time | MPS | steps/s of all | beside one alone | ms a step of each |",
            "|---:|---|---:|---:|---:|",
        ]
        for row in rows:
            speed, each = row["steps_per_second"], ", ".join(f"{time:.2f}" for time in row["milliseconds"])
            used = "yes" if row["mps"] else "no"
            lines.append(f"| {row['at_a_time']} | {used} | {speed:,.0f} | {speed / alone:.2f} × | {each} |")
        lines.append("")
    return lines
