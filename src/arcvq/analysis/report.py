"""Writes the report: one self-contained HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from arcvq.analysis import illustrations, page
from arcvq.analysis.comparison import compare_metrics
from arcvq.analysis.diagnosis import diagnose
from arcvq.analysis.figures.reconstructions import check_images
from arcvq.analysis.history import RunHistory
from arcvq.analysis.settings import differing_settings
from arcvq.errors import ArcvqError
from arcvq.storage import write_bytes


def write_report(
    runs: Sequence[RunHistory],
    out: Path,
    *,
    title: str,
    originals: Tensor | None = None,
    reconstructions: Mapping[str, Tensor] | None = None,
    notes: Sequence[str] = (),
    generated: tuple[Tensor, str] | None = None,
) -> Path:
    """Write `out/index.html`, which needs no other file, and return its path.

    `originals` and the `reconstructions` by name of the run are uint8 images (B, 1 or 3, H, W). Runs without reconstructions
    get no row of images, and without originals there are none. `generated`: a picture of generated images, uint8 (1 or 3, H, W), and
    its caption.
    """
    _check_arguments(runs, originals, reconstructions or {})
    # Runs with a codebook first: a run then has the same colour in all figures.
    runs = sorted(runs, key=lambda run: not run.has_codebook)
    sections = [("summary", "", page.run_cards(runs))]
    ordered = {run.name: reconstructions[run.name] for run in runs if reconstructions and run.name in reconstructions}
    if originals is not None and ordered:
        positions = {run.name: position for position, run in enumerate(runs)}
        sections.append(page.figure_section(illustrations.reconstructions_illustration(originals, ordered, positions)))
    if generated is not None:
        sections.append(page.generated_section(*generated))
    sections.append(("metrics", "Metrics", page.metrics_table(runs, compare_metrics(runs))))
    sections.append(("diagnosis", "Diagnosis", page.findings_cards({run.name: diagnose(run) for run in runs})))
    if notes:
        sections.append(("notes", "Notes", page.notes_list(notes)))
    sections += [page.figure_section(each) for each in illustrations.make_illustrations(runs)]
    sections.append(("settings", "Settings that differ", page.settings_table(runs, differing_settings(runs))))
    path = Path(out) / "index.html"
    write_bytes(path, page.html_page(title, page.usage_summary(runs), sections).encode("utf-8"))
    return path


def _check_arguments(
    runs: Sequence[RunHistory], originals: Tensor | None, reconstructions: Mapping[str, Tensor]
) -> None:
    """Fail if there is no run, a name is not unique, or the images fit neither runs nor format."""
    if not runs:
        raise ArcvqError("a report needs at least one run")
    names = [run.name for run in runs]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ArcvqError(f"several runs are called {', '.join(duplicates)}: give each its own name")
    unknown = sorted(set(reconstructions) - set(names))
    if unknown:
        raise ArcvqError(f"reconstructions of {', '.join(unknown)}: expected names among {', '.join(names)}")
    if originals is not None:
        check_images(originals, "originals")
