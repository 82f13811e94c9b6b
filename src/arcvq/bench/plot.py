"""How time and memory grow with the codebook, on log-log axes."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

HEADINGS = {"samp": "search + ArcLoss, forward and backward", "layer": "one layer, forward and backward"}


def growth_figure(document: dict[str, Any]) -> Figure:
    """Two rows (milliseconds, MiB) by two columns (tasks), over K at the most measured (N, D)."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, len(HEADINGS), squeeze=False)
    rows = [row for row in document["rows"] if "milliseconds" in row]
    shapes = [(row["tokens"], row["width"]) for row in rows]
    tokens, width = max(set(shapes), key=shapes.count)
    for column, (task, heading) in enumerate(HEADINGS.items()):
        chosen = [row for row in rows if row["task"] == task and (row["tokens"], row["width"]) == (tokens, width)]
        for name in dict.fromkeys(row["name"] for row in chosen):
            own = sorted((row for row in chosen if row["name"] == name), key=lambda row: row["codes"])
            codes = [row["codes"] for row in own]
            style = {"marker": "o", "markersize": 4, "linewidth": 2 if name.startswith("arcvq") else 1.2}
            axes[0][column].plot(codes, [row["milliseconds"] for row in own], label=name, **style)
            axes[1][column].plot(codes, [max(row["mebibytes"], 0.01) for row in own], label=name, **style)
        axes[0][column].set_title(heading, fontsize=11)
        axes[0][column].legend(fontsize=8, frameon=False)
        for axis, label in ((axes[0][column], "milliseconds"), (axes[1][column], "extra memory, MiB")):
            axis.set(xscale="log", yscale="log", xlabel="codes K", ylabel=label)
            ticks = sorted({row["codes"] for row in chosen})
            axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
            axis.minorticks_off()
            axis.grid(alpha=0.3, linewidth=0.5)
    figure.suptitle(f"{document['device']}, N = {tokens:,} tokens of width {width}", fontsize=12)
    return figure


def growth_png(document: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    growth_figure(document).savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
