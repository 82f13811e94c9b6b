"""Draw docs/discriminator.png, the logits and the loss of a healthy discriminator above those of a sick one, from two runs:

python docs/make_discriminator_picture.py runs/HEALTHY runs/SICK
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from arcvq import ArcvqError
from arcvq.analysis import RunHistory, render_png
from arcvq.analysis.discriminator import find_vanished_gradient, find_winning_discriminator
from arcvq.analysis.figures.discriminator import LOGITS, LOSS, draw_numbers, has_discriminator
from arcvq.analysis.figures.style import grid_of_axes, new_figure


def draw(healthy: Path, sick: Path) -> Figure:
    runs = {"healthy": RunHistory.load(healthy), "sick": RunHistory.load(sick)}
    figure = new_figure(6.0)
    for row, (label, run) in zip(grid_of_axes(figure, 2, 2), runs.items()):
        if not has_discriminator(run):
            raise ArcvqError(f"{run.path}: logged no discriminator; expected a run with the section adversarial")
        symptoms = [*find_winning_discriminator(run), *find_vanished_gradient(run)]
        # The picture must not say what the diagnosis of the same run denies.
        if bool(symptoms) != (label == "sick"):
            raise ArcvqError(f"{run.path}: expected a {label} run, but its diagnosis has {len(symptoms)} such symptoms")
        title = "Healthy" if not symptoms else symptoms[0].symptom.capitalize()
        draw_numbers(row[0], [run], LOGITS, title=f"{title}: logits")
        draw_numbers(row[1], [run], LOSS, title=f"{title}: loss of the discriminator")
    return figure


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/make_discriminator_picture.py HEALTHY_RUN SICK_RUN")
    try:
        picture = render_png(draw(Path(sys.argv[1]), Path(sys.argv[2])), 130)
    except ArcvqError as error:
        sys.exit(f"make_discriminator_picture: {error}")
    Path(__file__).with_name("discriminator.png").write_bytes(picture)
