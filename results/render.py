"""Write the measured numbers into the documents: README, docs/speed.md, the presets' headers. Nothing is typed by hand.

python results/render.py            rewrite what is out of date
python results/render.py --check    say what is out of date and exit with 1
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from speed import speed_section

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PRESETS = ROOT / "src" / "arcvq" / "presets"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
COLUMNS = {
    "l1": ("ℓ1", ".4f"),
    "psnr": ("PSNR", ".2f"),
    "ssim": ("SSIM", ".4f"),
    "lpips": ("LPIPS", ".4f"),
    "rfid": ("rFID", ".2f"),
}
CODEBOOK = {"usage": ("usage", ".1%"), "perplexity": ("perplexity", ".0f")}
EXPECT = "# Measured: "


def results() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """data set → name → results, in order of seed."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted(RESULTS.glob("*/*-seed*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(path.parent.name, {}).setdefault(document["name"], []).append(document)
    return found


def readme_section() -> str:
    printed = json.loads((RESULTS / "printed.json").read_text(encoding="utf-8"))
    lines = []
    for data, systems in results().items():
        first = next(iter(systems.values()))[0]
        lines += [
            f"**{data}**, {first['protocols']['exact']['images']:,} test images, trained on {first['training']['device']}",
            "",
        ]
        columns = {**COLUMNS, **CODEBOOK}
        lines.append("| system | protocol | " + " | ".join(heading for heading, _ in columns.values()) + " |")
        lines.append("|---|---|" + "---:|" * len(columns))
        for name, documents in sorted(systems.items()):
            for document in documents:
                for protocol, measured in document["protocols"].items():
                    lines.append(_row(f"{name}, seed {document['seed']}", protocol, measured["metrics"], columns))
            if name in printed.get(data, {}):
                lines.append(_row(name, "printed in the paper", printed[data][name], columns))
        lines.append("")
    return "\n".join(lines).strip()


def preset_line(data: str, name: str, found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    documents = found.get(data, {}).get(name)
    if not documents:
        return f"{EXPECT}not yet."
    parts = []
    for document in documents:
        metrics = document["protocols"]["exact"]["metrics"]
        numbers = f"PSNR {metrics['psnr']:.2f}, SSIM {metrics['ssim']:.4f}, usage {metrics['usage']:.1%}"
        parts.append(f"seed {document['seed']}: {numbers}")
    # No seconds: these trainings shared their device with others.
    return f"{EXPECT}{'; '.join(parts)}; protocol exact; {documents[0]['training']['device']}."


def documents() -> dict[Path, str]:
    """Every document that carries numbers → what it should say."""
    sections = {
        ROOT / "README.md": readme_section(),
        ROOT / "docs" / "speed.md": speed_section(ROOT / "benchmarks"),
    }
    wanted = {path: between_markers(path.read_text(encoding="utf-8"), section) for path, section in sections.items()}
    found = results()
    for path in sorted(PRESETS.rglob("*.yaml")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(EXPECT)]
        first_setting = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        lines.insert(first_setting, preset_line(path.parent.name, path.stem, found))
        wanted[path] = "\n".join(lines) + "\n"
    return wanted


def between_markers(text: str, section: str) -> str:
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{section}\n{END}{tail}"


def _row(name: str, protocol: str, metrics: dict[str, float], columns: dict[str, tuple[str, str]]) -> str:
    cells = [format(metrics[key], form) if key in metrics else "–" for key, (_, form) in columns.items()]
    return f"| {name} | {protocol} | " + " | ".join(cells) + " |"


def main() -> int:
    stale = {path: text for path, text in documents().items() if path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'out of date' if '--check' in sys.argv else 'rewritten'}")
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
