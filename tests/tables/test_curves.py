"""Quality against training time, as a figure."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from study_results import BEST_AT_1E_3, named, tune

from arcvq.tables.curves import budget_curves, curves

Add = Callable[..., None]


def test_the_curves_are_drawn_anew_only_for_new_numbers(folder: Path, add: Add) -> None:
    nothing = budget_curves(named(folder), None)
    assert ElementTree.fromstring(nothing).tag.endswith("svg")
    add("vq-vae", exact={"psnr": 24.0}, looks={0.1: 12.0, 25.0: 20.0, 500.0: 24.0})
    tune(add, "vq-vae", *BEST_AT_1E_3)
    for epochs in (25, 500):
        add(f"vq-vae-lr1e-3-cosine-{epochs}epochs", epochs=epochs, exact={"psnr": 24.0, "usage": 0.5})
    add("vq-vae-lr2e-3-500epochs", looks={25.0: 24.5, 50.0: 24.6, 500.0: 23.9}, exact={"psnr": 23.9, "usage": 0.4})
    add("vq-vae-lr1e-3-cosine-100epochs", epochs=100, exact={"psnr": 24.1, "usage": 0.75})
    published, tuned = curves(named(folder))
    assert (published.name, published.points) == ("vq-vae, its preset", [(25.0, 20.0, 0.5), (500.0, 24.0, 0.5)])
    # At every length the better of the two schedules.
    points = [(25.0, 24.5, 0.5), (50.0, 24.6, 0.5), (100.0, 24.1, 0.75), (500.0, 24.0, 0.5)]
    assert (tuned.name, tuned.points) == ("vq-vae, tuned", points)
    assert tuned.epoch_seconds == pytest.approx(0.18)
    drawn = budget_curves(named(folder), nothing)
    assert drawn != nothing
    assert "vq-vae, tuned" in drawn
    assert "seconds of training on A GPU" in drawn
    older = drawn.replace("epochs", "Epochs")  # as another version might have drawn it
    assert budget_curves(named(folder), older) == older
    assert budget_curves(named(folder), None) == drawn


def test_a_shared_device_tells_no_time(folder: Path, add: Add) -> None:
    looks = {25.0: 20.0, 500.0: 24.0}
    add("vq-vae", exact={"psnr": 24.0}, looks=looks, at_a_time=3)
    (curve,) = curves(named(folder))
    assert curve.epoch_seconds is None
    assert "vq-vae, its preset" in budget_curves(named(folder), None)
    add("vq-vae", exact={"psnr": 24.0}, looks=looks, at_a_time=1)
    (curve,) = curves(named(folder))
    assert curve.epoch_seconds == pytest.approx(0.4)
    add("vq-vae", 2, exact={"psnr": 24.0}, looks=looks)
    (curve,) = curves(named(folder))
    assert curve.epoch_seconds == pytest.approx(0.18)
