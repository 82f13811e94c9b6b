"""How time and memory grow with the codebook and with the tokens, on log-log axes."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

HEADINGS = {
    "assign": "search",
    "samp": "search + ArcLoss, forward and backward",
    "layer": "one layer, forward and backward",
}
# What grows → its letter, and what stands still meanwhile.
GROWTHS = {"codes": ("codes K", ("tokens", "width")), "tokens": ("tokens N", ("codes", "width"))}
MEASURES = {
    "milliseconds": "milliseconds",
    "mebibytes": "extra memory, MiB",
    "limit_fraction": "share of the device's limit",
}
LETTERS = {"tokens": "N", "codes": "K", "width": "D"}


def growth_figure(document: dict[str, Any]) -> Figure:
    """A column per task and thing that grows; below each other milliseconds (the limit dotted), MiB and the share of the limit."""
    rows = [row for row in document["rows"] if "milliseconds" in row]
    columns = [
        (task, growth, panel)
        for growth in GROWTHS
        for task in HEADINGS
        if (panel := _panel([row for row in rows if row["task"] == task], growth))
    ]
    figure = Figure(figsize=(4.6 * max(1, len(columns)), 9.5), layout="constrained")
    axes = figure.subplots(len(MEASURES), max(1, len(columns)), squeeze=False)
    for column, (task, growth, panel) in enumerate(columns):
        label, fixed = GROWTHS[growth]
        at = ", ".join(f"{LETTERS[name]} = {panel[0][name]:,}" for name in fixed)
        axes[0][column].set_title(f"{HEADINGS[task]}\n{at}", fontsize=10)
        ticks = sorted({row[growth] for row in panel})
        for axis, (measure, heading) in zip(axes[:, column], MEASURES.items()):
            for name in dict.fromkeys(row["name"] for row in panel):
                own = [row for row in panel if row["name"] == name]
                style = {"marker": "o", "markersize": 4, "linewidth": 2 if name.startswith("arcvq") else 1.2}
                axis.plot([row[growth] for row in own], [max(row[measure], 1e-3) for row in own], label=name, **style)
            if measure == "milliseconds":
                least = {row[growth]: row["limit_milliseconds"] for row in panel}
                axis.plot(ticks, [least[tick] for tick in ticks], ":", color="grey", label="limit")
            axis.set(xscale="log", yscale="log", xlabel=label, ylabel=heading)
            axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=7, rotation=30)
            axis.minorticks_off()
            axis.grid(alpha=0.3, linewidth=0.5)
        axes[0][column].legend(fontsize=7, frameon=False)
    figure.suptitle(f"{document['device']}, torch {document['versions']['torch']}", fontsize=12)
    return figure


def _panel(rows: list[dict[str, Any]], growth: str) -> list[dict[str, Any]]:
    """The rows that differ in what grows alone, at the most measured other sizes; none if it has only one value there."""
    fixed = GROWTHS[growth][1]
    values: dict[tuple[int, ...], set[int]] = {}
    for row in rows:
        values.setdefault(tuple(row[name] for name in fixed), set()).add(row[growth])
    most = max(values, key=lambda at: len(values[at]), default=None)
    if most is None or len(values[most]) < 2:
        return []
    return sorted((row for row in rows if tuple(row[name] for name in fixed) == most), key=lambda row: row[growth])


def growth_png(document: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    growth_figure(document).savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
