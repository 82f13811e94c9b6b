"""Write the measured numbers into the documents: README, RESULTS.md and its figure, the presets' headers; and what
the studies chose to where a sweep finds it. Nothing is typed by hand.

python results/render.py            rewrite what is out of date
python results/render.py --check    say what is out of date and exit with 1
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from arcvq.systems import SYSTEMS
from arcvq.tables import (
    METRICS,
    Result,
    between_markers,
    chosen_text,
    group,
    metric_text,
    read_printed,
    read_results,
    results_page,
)
from arcvq.tables.curves import budget_curves
from arcvq.tables.page import image_count
from arcvq.tables.results import alike, cell, number, of_run, revision_mark, table
from arcvq.tables.step_times import read_step_times
from arcvq.tables.studies import RECIPE_PRESET

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PRESETS = ROOT / "src" / "arcvq" / "presets"
CHOSEN = ROOT / "src" / "arcvq" / "tables" / "chosen.json"
COLUMNS = ("l1", "psnr", "ssim", "lpips", "rfid", "usage", "perplexity")
EXPECT = "# Measured: "


def readme_section() -> str:
    """Mean ± spread over seeds, and print; the systems and the recipe as their presets are. All in one precision; variants and
    other precisions are in RESULTS.md."""
    printed = read_printed()
    lines = []
    for data, named in group(read_results(RESULTS)).items():
        rows: list[list[str]] = []
        shown: list[Result] = []
        for name, results in alike(named, [*SYSTEMS, RECIPE_PRESET]).items():
            shown += results
            for protocol in ("exact", "paper"):
                measured = [result for result in results if result.metrics(protocol) is not None]
                if measured:
                    how = f"{protocol}{revision_mark(measured, protocol)}"
                    rows.append([results[0].name, how, str(len(measured)), *_cells(measured, protocol)])
            if name in printed.get(data, {}):
                numbers = printed[data][name]
                cells = [number(metric, numbers[metric]) if metric in numbers else "–" for metric in COLUMNS]
                rows.append([name, "printed in the paper", "–", *cells])
        marked = any(revision_mark(shown, protocol) for protocol in ("exact", "paper"))
        headings = ["system", "protocol", "seeds", *(METRICS[metric][0] for metric in COLUMNS)]
        if rows:
            lines += [
                f"**{data}**{image_count(shown)}, trained on {devices(shown)}",
                "",
                *table(headings, rows, left=2),
                "",
                *["¹ Measured under the protocol's first revision: RESULTS.md says more.", ""] * marked,
            ]
    return "\n".join(lines).strip()


def devices(results: list[Result]) -> str:
    return " or ".join(dict.fromkeys(result.document["training"]["device"] for result in results))


def _cells(results: list[Result], protocol: str) -> list[str]:
    return [metric_text(metric, cell(results, protocol, metric), len(results), "–") for metric in COLUMNS]


def preset_line(data: str, name: str, found: dict[str, dict[str, list[Result]]]) -> str:
    results = of_run(found.get(data, {}), name)
    if not results:
        return f"{EXPECT}not yet."
    parts = []
    for result in results:
        metrics = result.metrics("exact") or {}
        shown = ("psnr", "ssim", "usage")
        numbers = ", ".join(f"{METRICS[m][0]} {number(m, metrics[m])}" for m in shown if m in metrics)
        parts.append(f"seed {result.seed}: {numbers}")
    # No seconds: these trainings shared their device with others.
    return f"{EXPECT}{'; '.join(parts)}; protocol exact; trained in {results[0].precision} on {devices(results)}."


def documents() -> dict[Path, str]:
    """Every document that carries numbers → what it should say."""
    readme = ROOT / "README.md"
    wanted = {
        readme: between_markers(readme.read_text(encoding="utf-8"), "results", readme_section()),
    }
    page = ROOT / "RESULTS.md"
    wanted[page] = results_page(RESULTS, page.read_text(encoding="utf-8"))
    found = group(read_results(RESULTS))
    figure = RESULTS / "budgets.svg"
    before = figure.read_text(encoding="utf-8") if figure.exists() else None
    wanted[figure] = budget_curves(found["cifar10"], before, read_step_times(RESULTS))
    wanted[CHOSEN] = chosen_text(found["cifar10"])
    for path in sorted(PRESETS.rglob("*.yaml")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(EXPECT)]
        first_setting = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        lines.insert(first_setting, preset_line(path.parent.name, path.stem, found))
        wanted[path] = "\n".join(lines) + "\n"
    return wanted


def main() -> int:
    check = "--check" in sys.argv
    stale = {
        path: text
        for path, text in documents().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    anew = CHOSEN in stale and not check  # it is read when the package is, and what is to be measured follows from it
    if anew:
        stale = {CHOSEN: stale[CHOSEN]}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'out of date' if check else 'rewritten'}", flush=True)
        if not check:
            path.write_text(text, encoding="utf-8")
    return subprocess.call([sys.executable, *sys.argv]) if anew else int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
