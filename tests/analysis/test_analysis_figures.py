"""The numbers inside the figures, and figures of broken codebooks."""

import dataclasses
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text
from safetensors.torch import save_file

from arcvq import analysis
from arcvq.analysis import RunHistory
from arcvq.analysis.figures import distances, embedding
from arcvq.analysis.figures.code_grid import code_grid, render_code_grid
from arcvq.analysis.figures.embedding import project_to_2d
from arcvq.analysis.figures.style import RUN_COLOURS, stack_panels
from arcvq.analysis.figures.training import smooth
from arcvq.errors import ArcvqError

# A warning of matplotlib means a broken figure.
pytestmark = pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")

MakeFigure = Callable[[Sequence[RunHistory]], Figure]

FIGURES: list[MakeFigure] = [
    analysis.usage_over_time,
    analysis.quality_over_time,
    analysis.loss_curves,
    analysis.discriminator_health,
    analysis.norm_histograms,
    analysis.pairwise_distances,
    analysis.codebook_map,
    analysis.code_frequency,
]


def with_codebook(folder: Path, codebook: torch.Tensor, counts: torch.Tensor) -> RunHistory:
    """A run with one snapshot and an empty log."""
    (folder / "codebooks").mkdir(parents=True)
    (folder / "config.yaml").write_text("system: vq-vae\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text("", encoding="utf-8")
    save_file({"codebook": codebook, "counts": counts}, folder / "codebooks" / "step-00000000.safetensors")
    return RunHistory.load(folder)


def test_usage_over_time_ends_at_snapshot_usage(collapsed: RunHistory, healthy: RunHistory) -> None:
    usage, perplexity = analysis.usage_over_time([collapsed, healthy]).axes
    assert [line.get_label() for line in usage.lines] == ["vq-vae", "arcvq-vae"]
    assert [line.get_ydata()[-1] for line in usage.lines] == pytest.approx([100 * 9 / 96, 100 * 90 / 96])
    assert [line.get_xdata()[0] for line in usage.lines] == [0, 0]
    expected = [run.last_snapshot.perplexity for run in (collapsed, healthy)]
    assert [line.get_ydata()[-1] for line in perplexity.lines] == pytest.approx(expected)


def test_run_has_same_colour_in_all_figures(collapsed: RunHistory, healthy: RunHistory) -> None:
    runs = [collapsed, healthy]
    usage = analysis.usage_over_time(runs).axes[0]
    frequency = analysis.code_frequency(runs).axes[0]
    assert [line.get_color() for line in usage.lines] == list(RUN_COLOURS[:2])
    assert frequency.lines[0].get_color() == RUN_COLOURS[0]
    used = analysis.codebook_map(runs).axes[1].collections[1]
    assert to_rgba(used.get_facecolor()[0])[:3] == to_rgba(RUN_COLOURS[1])[:3]


def test_quality_over_time_draws_logged_values(healthy: RunHistory) -> None:
    psnr, error = analysis.quality_over_time([healthy]).axes
    assert psnr.lines[0].get_ydata()[-1] == pytest.approx(21.0 + np.log(401))
    assert error.lines[0].get_ydata()[-1] == pytest.approx(0.15 / (1 + np.log(401)))


def test_loss_curves_have_log_panel_per_term(collapsed: RunHistory, healthy: RunHistory) -> None:
    axes = analysis.loss_curves([collapsed, healthy]).axes
    panels = {one.get_title(loc="left"): one for one in axes if one.get_title(loc="left")}
    assert list(panels) == ["total", "reconstruction", "codebook", "commitment", "ArcLoss"]
    assert {panel.get_yscale() for panel in panels.values()} == {"log"}
    raw, smoothed = panels["reconstruction"].lines[:2]
    assert raw.get_alpha() < 1
    assert raw.get_ydata()[10] == collapsed.train_series("reconstruction").values[10]
    assert np.diff(smoothed.get_ydata()).std() < np.diff(raw.get_ydata()).std()


def test_smooth_is_running_mean_of_same_length() -> None:
    assert smooth(np.full(9, 2.5), 5).tolist() == [2.5] * 9
    assert smooth(np.arange(5.0), 3).tolist() == [0.5, 1.0, 2.0, 3.0, 3.5]
    assert smooth(np.arange(3.0), 1).tolist() == [0.0, 1.0, 2.0]


def test_norm_histograms_separate_used_and_unused_codes(collapsed: RunHistory, healthy: RunHistory) -> None:
    axes = analysis.norm_histograms([collapsed, healthy]).axes
    titles = [one.get_title(loc="left") for one in axes]
    assert titles == ["vq-vae, step 40", "vq-vae, step 400", "arcvq-vae, step 40", "arcvq-vae, step 400"]
    labels = [text.get_text() for text in axes[1].get_legend().get_texts()]
    assert labels == ["87 unused", "9 used"]
    labels = [text.get_text() for text in axes[3].get_legend().get_texts()]
    assert labels == ["6 unused", "90 used", "ball radius 1.13"]
    outlines = [patch for patch in axes[1].patches if not patch.get_fill()]
    assert sum(outline.get_data().values.sum() for outline in outlines) == 96
    radius = [line.get_xdata()[0] for line in axes[3].lines]
    assert radius == pytest.approx([np.exp(0.12)])
    assert axes[0].get_xscale() == "log"  # 0.01 to 4


def test_norm_histograms_show_the_highest_bar_of_any_panel(collapsed: RunHistory, healthy: RunHistory) -> None:
    for runs in ([collapsed, healthy], [healthy, collapsed]):
        panels = analysis.norm_histograms(runs).axes
        bars = [outline.get_data().values.max() for panel in panels for outline in panel.patches]
        assert all(panel.get_ylim()[1] > max(bars) for panel in panels)


def test_huge_ball_radius_stays_off_axis(healthy: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    near = analysis.norm_histograms([healthy]).axes[1].get_xlim()
    monkeypatch.setattr(RunHistory, "ball_radius_at", lambda self, step: 3.4e38)
    axes = analysis.norm_histograms([healthy]).axes[1]
    assert axes.get_xlim() == pytest.approx(near, rel=0.2)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[-1] == "ball radius 3.4e+38, beyond the axis"
    # A radius close to the largest norm is shown.
    wide = 2 * float(healthy.last_snapshot.norms.max())
    monkeypatch.setattr(RunHistory, "ball_radius_at", lambda self, step: wide)
    axes = analysis.norm_histograms([healthy]).axes[1]
    assert axes.get_xlim()[1] > wide
    assert axes.get_legend().get_texts()[-1].get_text() == f"ball radius {wide:.3g}"


def test_norm_histograms_of_similar_norms_are_linear(healthy: RunHistory) -> None:
    assert analysis.norm_histograms([healthy]).axes[0].get_xscale() == "linear"


def test_pairwise_distances_equal_cdist_in_order_of_use(collapsed: RunHistory, healthy: RunHistory) -> None:
    figure = analysis.pairwise_distances([collapsed, healthy])
    drawn = np.asarray(figure.axes[0].images[0].get_array())
    snapshot = collapsed.last_snapshot
    order = np.argsort(-snapshot.counts, kind="stable")
    codes = torch.from_numpy(snapshot.codebook[order])
    np.testing.assert_allclose(drawn, torch.cdist(codes, codes).numpy(), atol=1e-6)
    assert np.all(np.diag(drawn) == 0)
    first, second = (axes.images[0].get_clim() for axes in figure.axes[:2])
    assert first == second
    # The used codes end at the dashed line.
    assert figure.axes[0].lines[0].get_ydata()[0] == 8.5
    assert figure.axes[0].get_xlabel() == "all 96 codes, by use"


def test_large_codebook_is_sampled_and_labelled(healthy: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "DISTANCE_LIMIT", 40)
    monkeypatch.setattr(embedding, "MAP_LIMIT", 30)
    axes = analysis.pairwise_distances([healthy]).axes[0]
    assert axes.images[0].get_array().shape == (40, 40)
    assert axes.get_xlabel() == "40 of 96 codes, by use"
    axes = analysis.codebook_map([healthy]).axes[0]
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == 30
    assert "30 of 96 codes" in axes.get_xlabel()


def test_codebook_map_separates_used_and_unused_codes(collapsed: RunHistory, healthy: RunHistory) -> None:
    axes = analysis.codebook_map([collapsed, healthy]).axes[0]
    unused, used = axes.collections
    assert (len(unused.get_offsets()), len(used.get_offsets())) == (87, 9)
    assert (unused.get_label(), used.get_label()) == ("unused (87)", "used (9)")
    sizes, counts = used.get_sizes(), collapsed.last_snapshot.counts[collapsed.last_snapshot.used]
    assert np.argmax(sizes) == np.argmax(counts)
    assert axes.get_xlabel().startswith("t-SNE")


def test_projection_is_deterministic(healthy: RunHistory) -> None:
    codes = healthy.last_snapshot.codebook
    first, second = project_to_2d(codes)[0], project_to_2d(codes)[0]
    assert np.array_equal(first, second)


def test_few_or_equal_codes_use_pca() -> None:
    points, method = project_to_2d(np.eye(5, 3))
    assert (method, points.shape) == ("PCA", (5, 2))
    points, method = project_to_2d(np.ones((64, 4)))
    assert method == "PCA"
    assert np.array_equal(points, np.zeros((64, 2)))
    points, method = project_to_2d(np.arange(4.0)[:, None])
    assert np.ptp(points[:, 0]) == pytest.approx(3.0)


def test_tsne_of_tiny_codes_is_finite() -> None:
    codes = np.random.default_rng(0).uniform(-1e-9, 1e-9, (12, 4))
    points, method = project_to_2d(codes)
    assert method == "t-SNE"
    assert np.isfinite(points).all()


def test_code_frequency_is_sorted_counts_of_used_codes(collapsed: RunHistory, healthy: RunHistory) -> None:
    axes = analysis.code_frequency([collapsed, healthy]).axes[0]
    curve = axes.lines[0].get_ydata()
    assert curve.tolist() == sorted(collapsed.last_snapshot.counts[collapsed.last_snapshot.used].tolist(), reverse=True)
    assert axes.get_yscale() == "log"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:2] == ["vq-vae: 9 of 96 codes used", "arcvq-vae: 90 of 96 codes used"]
    assert labels[2].startswith("perfectly even use")


def test_reconstruction_grid_shows_images_of_every_run(pictures: tuple[torch.Tensor, dict[str, torch.Tensor]]) -> None:
    originals, reconstructions = pictures
    figure = analysis.reconstruction_grid(originals, reconstructions)
    assert len(figure.axes) == 3 * 8
    assert [figure.axes[row * 8].get_ylabel() for row in range(3)] == ["original", "vq-vae", "arcvq-vae"]
    shown = np.asarray(figure.axes[8].images[0].get_array())
    expected = reconstructions["vq-vae"][0].permute(1, 2, 0).double().numpy() / 255
    np.testing.assert_array_equal(shown, expected)


def test_narrow_grid_has_fewer_images(pictures: tuple[torch.Tensor, dict[str, torch.Tensor]]) -> None:
    originals, reconstructions = pictures
    wide, narrow = (analysis.reconstruction_grid(originals, reconstructions, narrow=narrow) for narrow in (False, True))
    assert (len(wide.axes), len(narrow.axes)) == (3 * 8, 3 * 5)
    assert narrow.get_figwidth() < 0.6 * wide.get_figwidth()


@pytest.mark.parametrize("make_figure", FIGURES)
def test_stacked_panels_are_one_column(
    make_figure: MakeFigure, collapsed: RunHistory, healthy: RunHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MAP_LIMIT", 9)
    figure = make_figure([collapsed, healthy])
    panels = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    stacked = stack_panels(figure)
    assert [axes.get_title(loc="left") for axes in stacked.axes if axes.get_title(loc="left")] == panels
    analysis.render_png(stacked, 30)  # lays the panels out
    boxes = [axes.get_position() for axes in stacked.axes if axes.get_title(loc="left")]
    assert all(below.y1 <= above.y0 for above, below in itertools.pairwise(boxes))
    assert stacked.get_figwidth() < 6


# What a figure may take of a screen of 420 pixels, whose text should be no smaller than 11.
PHONE_PIXELS, READABLE_PIXELS = 374, 11


@pytest.mark.parametrize("make_figure", FIGURES)
def test_stacked_panels_are_readable_on_a_phone(
    make_figure: MakeFigure, collapsed: RunHistory, healthy: RunHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MAP_LIMIT", 9)
    figure = stack_panels(make_figure([collapsed, healthy]))
    analysis.render_png(figure, 30)  # writes the ticks
    pixels_per_point = PHONE_PIXELS / figure.get_figwidth() / 72
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    small = [text for text in texts if text.get_fontsize() * pixels_per_point < READABLE_PIXELS]
    assert small == []
    assert [text.get_text() for text in texts if "$" in text.get_text()] == []  # the exponent of 10⁻² would be smaller


def test_long_texts_of_stacked_panels_stay_inside(healthy: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAP_LIMIT", 9)
    runs = [dataclasses.replace(healthy, name=f"cifar10-arcvq-scaffold-rotation-seed{seed}") for seed in range(3)]
    for make_figure in (analysis.code_frequency, analysis.norm_histograms, analysis.codebook_map):
        figure = stack_panels(make_figure(runs))
        analysis.render_png(figure, 30)  # places the texts
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box is not None
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert axes.get_position().width > 0.75


def test_stacked_norms_have_all_labels(collapsed: RunHistory, healthy: RunHistory) -> None:
    figure = stack_panels(analysis.norm_histograms([collapsed, healthy]))
    assert [axes.get_ylabel() for axes in figure.axes] == ["codes"] * 4
    assert [axes.get_xlabel() for axes in figure.axes] == ["ℓ2 norm of the code (log scale)"] * 4


@pytest.mark.parametrize("count", [1, 2])
def test_stacked_heat_maps_leave_no_blank_band(healthy: RunHistory, count: int) -> None:
    figure = stack_panels(analysis.pairwise_distances([healthy] * count))
    analysis.render_png(figure, 30)  # lays the panels out
    blank = 1.0 - sum(axes.get_position().height for axes in figure.axes[:count])
    assert blank * figure.get_figheight() < count  # inches for title and label


@pytest.mark.parametrize(
    ("originals", "reconstruction", "expected"),
    [
        (torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8), "originals: expected at least one uint8 image"),
        (torch.zeros(0, 3, 8, 8).byte(), torch.zeros(0, 3, 8, 8).byte(), "originals: expected at least one"),
        (
            torch.zeros(2, 3, 8, 8).byte(),
            torch.zeros(2, 2, 8, 8).byte(),
            "reconstructions of a: expected at least",
        ),
        (torch.zeros(2, 3, 8, 8).byte(), torch.zeros(2, 3, 4, 4).byte(), "found (2, 3, 4, 4)"),
    ],
)
def test_wrong_images_raise(originals: torch.Tensor, reconstruction: torch.Tensor, expected: str) -> None:
    with pytest.raises(ArcvqError, match=re.escape(expected)):
        analysis.reconstruction_grid(originals, {"a": reconstruction})


def test_code_grid_colours_used_codes(collapsed: RunHistory) -> None:
    cells = code_grid(collapsed.last_snapshot, "#D55E00").reshape(-1, 4)
    coloured = np.isclose(cells[:, :3], to_rgba("#D55E00")[:3]).all(axis=1)
    assert np.array_equal(coloured[:96], collapsed.last_snapshot.used)
    assert not cells[96:].any()  # the rest of the last row is transparent
    assert render_code_grid(collapsed.last_snapshot, "#D55E00").startswith(b"\x89PNG")


@pytest.mark.parametrize("make_figure", FIGURES)
@pytest.mark.parametrize(
    ("codebook", "counts"),
    [
        pytest.param(torch.full((12, 4), float("nan")), torch.arange(12), id="every code is NaN"),
        pytest.param(
            torch.cat([torch.randn(20, 4), torch.full((1, 4), float("inf"))]), torch.arange(21), id="one infinite"
        ),
        pytest.param(torch.zeros(16, 4), torch.zeros(16, dtype=torch.int64), id="all zero, no tokens"),
        pytest.param(torch.ones(1, 1), torch.tensor([5]), id="one code"),
    ],
)
def test_broken_codebook_renders(
    make_figure: MakeFigure, codebook: torch.Tensor, counts: torch.Tensor, tmp_path: Path
) -> None:
    run = with_codebook(tmp_path / "run", codebook, counts)
    assert analysis.render_png(make_figure([run]), 40).startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, 4])
def test_figures_take_any_number_of_runs(healthy: RunHistory, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAP_LIMIT", 9)  # a small map is fast
    for make_figure in FIGURES:
        assert analysis.render_png(make_figure([healthy] * count), 30).startswith(b"\x89PNG")


def test_figures_leave_matplotlib_settings_unchanged(healthy: RunHistory) -> None:
    before = dict(matplotlib.rcParams)
    first = analysis.render_png(analysis.code_frequency([healthy]), 50)
    second = analysis.render_png(analysis.code_frequency([healthy]), 50)
    assert dict(matplotlib.rcParams) == before
    assert first == second


def test_import_loads_no_heavy_or_higher_modules() -> None:
    """No pyplot (global state), no scikit-learn (slow), no layer above."""
    code = "import sys, arcvq.analysis; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for name in ("matplotlib.pyplot", "sklearn", "arcvq.training", "arcvq.systems", "arcvq.cli"):
        assert name not in loaded
