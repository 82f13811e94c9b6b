"""Run folders in, one self-contained page out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from arcvq.analysis import page
from arcvq.analysis.comparison import compare
from arcvq.analysis.diagnosis import diagnose
from arcvq.analysis.figures.reconstructions import check_images
from arcvq.analysis.history import RunHistory
from arcvq.analysis.illustrations import illustrate, reconstructions
from arcvq.analysis.settings import differing_settings
from arcvq.errors import ArcvqError
from arcvq.storage import write_bytes


def write_report(
    runs: Sequence[RunHistory],
    out: Path,
    *,
    title: str,
    originals: Tensor | None = None,
    rebuilt: Mapping[str, Tensor] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write `out/index.html`, with everything inside it, and return its path.

    `originals` and `rebuilt`, each run's reconstructions by the run's name, are uint8 images (B, 1 or 3, H, W). A run
    without reconstructions has no row among them, and without originals the page has none.
    """
    _check(runs, originals, rebuilt or {})
    # Runs with a codebook first: a run then has one colour in all figures.
    runs = sorted(runs, key=lambda run: not run.has_codebook)
    sections = [("summary", "", page.run_cards(runs))]
    ordered = {run.name: rebuilt[run.name] for run in runs if rebuilt and run.name in rebuilt}
    if originals is not None and ordered:
        places = {run.name: place for place, run in enumerate(runs)}
        sections.append(page.figure_section(reconstructions(originals, ordered, places)))
    sections.append(("metrics", "Metrics", page.metrics_table(runs, compare(runs))))
    sections.append(("diagnosis", "Diagnosis", page.findings_list({run.name: diagnose(run) for run in runs})))
    if notes:
        sections.append(("notes", "Notes", page.notes_list(notes)))
    sections += [page.figure_section(one) for one in illustrate(runs)]
    sections.append(("settings", "Settings that differ", page.settings_table(runs, differing_settings(runs))))
    target = Path(out) / "index.html"
    write_bytes(target, page.document(title, page.verdict(runs), sections).encode("utf-8"))
    return target


def _check(runs: Sequence[RunHistory], originals: Tensor | None, rebuilt: Mapping[str, Tensor]) -> None:
    if not runs:
        raise ArcvqError("a report needs at least one run")
    names = [run.name for run in runs]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ArcvqError(f"several runs are called {', '.join(doubled)}; give each its own name")
    strangers = sorted(set(rebuilt) - set(names))
    if strangers:
        raise ArcvqError(f"reconstructions of {', '.join(strangers)}: expected names among {', '.join(names)}")
    if originals is not None:
        check_images(originals, "originals")
