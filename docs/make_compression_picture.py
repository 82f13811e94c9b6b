"""Draw docs/compression.png, the rate and distortion of a generator's tokens beside JPEG, WebP and AVIF, from a measured file:

python docs/make_compression_picture.py benchmarks/h200-compression.json
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from arcvq import ArcvqError
from arcvq.analysis import render_png
from arcvq.analysis.figures.style import RUN_COLOURS, add_legend, new_figure, style_axes
from arcvq.storage import read_json

NAMES = {"WEBP": "WebP"}


def draw(file: Path) -> Figure:
    if not file.is_file():
        raise ArcvqError(f"{file}: not measured yet: run python -m benchmarks --suite compression")
    document = read_json(file, "a benchmark")
    if document.get("suite") != "compression":
        raise ArcvqError(f"{file}: has other measurements; expected those of the suite compression")
    rows = sorted((row for row in document["rows"] if "psnr" in row), key=lambda row: row["bits_per_pixel"])
    if not rows:
        raise ArcvqError(f"{file}: has no row with a PSNR")
    figure = new_figure(4.6, width=7.6)
    axes = figure.subplots()
    formats = sorted({row["kind"] for row in rows} - {"arcvq"})
    for kind, colour, marker in zip(formats, RUN_COLOURS[2:], "osD"):
        found = [row for row in rows if row["kind"] == kind]
        rates, qualities = [row["bits_per_pixel"] for row in found], [row["psnr"] for row in found]
        axes.plot(
            rates, qualities, color=colour, marker=marker, markersize=4.5, linewidth=2.2, label=NAMES.get(kind, kind)
        )
    for row, colour, marker in zip((row for row in rows if row["kind"] == "arcvq"), RUN_COLOURS, "*P"):
        point = {"color": colour, "marker": marker, "markersize": 13, "linestyle": "None", "zorder": 4}
        axes.plot([row["bits_per_pixel"]], [row["psnr"]], label=row["name"], **point)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    title = f"{document['images']:,} pictures of {document['data']}; ours by {document['model']}"
    style_axes(axes, title=title, x="bits per pixel, with all headers", y="PSNR (dB, higher is better)")
    add_legend(axes, loc="best")
    return figure


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/make_compression_picture.py FILE.json")
    try:
        picture = render_png(draw(Path(sys.argv[1])), 130)
    except ArcvqError as error:
        sys.exit(f"make_compression_picture: {error}")
    Path(__file__).with_name("compression.png").write_bytes(picture)
