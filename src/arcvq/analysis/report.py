"""Run folders in, one self-contained page out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from arcvq.analysis import page
from arcvq.analysis.captions import verdict
from arcvq.analysis.comparison import compare
from arcvq.analysis.diagnosis import diagnose
from arcvq.analysis.figures.reconstructions import check_images
from arcvq.analysis.figures.style import render_png
from arcvq.analysis.history import RunHistory
from arcvq.analysis.illustrations import Illustration, illustrate
from arcvq.analysis.settings import differing_settings
from arcvq.errors import ArcvqError
from arcvq.storage import write_bytes

# A page that can be mailed and opens at once.
LARGEST_PAGE = 4_000_000

# Sharp on a dense screen first; coarser only where the page would grow beyond its limit.
RESOLUTIONS = (150, 110, 80, 60)


def write_report(
    runs: Sequence[RunHistory],
    out: Path,
    *,
    originals: Tensor,
    reconstructions: Mapping[str, Tensor],
    title: str,
    notes: Sequence[str] = (),
) -> Path:
    """Write `out/index.html`, with everything inside it, and return its path.

    `originals` and each run's `reconstructions` (by the run's name) are uint8 images (B, 1 or 3, H, W).
    """
    _check(runs, originals, reconstructions)
    before = [("summary", "", page.run_cards(runs))]
    if notes:
        before.append(("notes", "Notes", page.notes_list(notes)))
    before.append(("metrics", "Metrics", page.metrics_table(runs, compare(runs))))
    before.append(("diagnosis", "Diagnosis", page.findings_list({run.name: diagnose(run) for run in runs})))
    after = [
        ("settings", "Settings that differ", page.settings_table(runs, differing_settings(runs))),
        ("protocol", "How it was measured", page.protocol_table(runs)),
    ]
    illustrations = illustrate(runs, originals, reconstructions)
    for resolution in RESOLUTIONS:
        shown = [(one.anchor, one.title, _figure(one, resolution)) for one in illustrations]
        content = page.document(title, verdict(runs), [*before, *shown, *after]).encode("utf-8")
        if len(content) < LARGEST_PAGE:
            target = Path(out) / "index.html"
            write_bytes(target, content)  # a reader sees the old page or the new one, never half of one
            return target
    raise ArcvqError(
        f"the report of {len(runs)} runs would take {len(content):,} bytes, more than {LARGEST_PAGE:,}; compare fewer runs"
    )


def _figure(illustration: Illustration, resolution: int) -> str:
    return page.figure_block(illustration, render_png(illustration.figure, resolution))


def _check(runs: Sequence[RunHistory], originals: Tensor, reconstructions: Mapping[str, Tensor]) -> None:
    if not runs:
        raise ArcvqError("a report needs at least one run")
    names = [run.name for run in runs]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ArcvqError(f"several runs are called {', '.join(doubled)}; give each its own name")
    check_images(originals, "originals")
    if set(reconstructions) != set(names):
        raise ArcvqError(
            f"reconstructions must be given for exactly the runs {', '.join(names)}; "
            f"found {', '.join(reconstructions) or 'none'}"
        )
