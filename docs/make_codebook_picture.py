"""Draw docs/codebooks.png, a collapsed codebook above a healthy one, from a finished demo:

arcvq demo --out runs/demo
python docs/make_codebook_picture.py runs/demo
"""

import sys
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.image import imread

from arcvq.analysis import RunHistory, render_png
from arcvq.analysis.figures.code_grid import render_code_grid
from arcvq.analysis.figures.style import MUTED_COLOUR, RUN_COLOURS
from arcvq.metrics import metric_label

TITLES = {"vq-vae": "Plain VQ", "arcvq-vae": "ArcVQ"}


def draw(demo: Path) -> Figure:
    # White of its own, so that it reads on a light page and on a dark one.
    figure = Figure(figsize=(9.6, 3.7), facecolor="white")
    for axes, colour, (system, title) in zip(figure.subplots(2, 1), RUN_COLOURS, TITLES.items()):
        run = RunHistory.load(demo / system)
        measured = run.results["exact"].metrics
        numbers = "  ·  ".join(
            f"{metric_label(name).text(measured[name])} {unit}"
            for name, unit in {"usage": "of codes in use", "psnr": "dB PSNR"}.items()
        )
        axes.imshow(
            imread(BytesIO(render_code_grid(run.last_snapshot, colour))), interpolation="nearest", aspect="equal"
        )
        axes.set_axis_off()
        axes.set_title(f"{title}:  {numbers}", fontsize=15, fontweight="bold", color=colour, loc="left")
    text = f"One cell per code, coloured if the test images use it. Same images, same seed, {run.last_step} training steps."
    figure.text(0.012, 0.025, text, fontsize=11, color=MUTED_COLOUR)
    figure.subplots_adjust(left=0.012, right=0.988, top=0.91, bottom=0.1, hspace=0.3)
    return figure


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/make_codebook_picture.py DEMO_FOLDER")
    Path(__file__).with_name("codebooks.png").write_bytes(render_png(draw(Path(sys.argv[1])), 130))
