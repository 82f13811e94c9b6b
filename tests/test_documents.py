"""Runs the code of the documents: a page's Python blocks share a namespace, its bash blocks a folder. A Python block that begins
with the name of a file is written to it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq.cli import main
from arcvq.data import write_png

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
PHOTOS = 24  # more than 20, because every 20th image of a folder is a test image


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    line: int  # of its first line of code
    code: str


def blocks(page: Path) -> list[Block]:
    found, language, start, code = [], None, 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is None and line.startswith("```"):
            language, start, code = line[3:].strip(), number + 1, []
        elif line == "```":
            found.append(Block(str(language), start, "\n".join(code) + "\n"))
            language = None
        elif language is not None:
            code.append(line)
    assert language is None, f"{page.name}: the block of line {start} is not closed"
    return found


@each_page
def test_code_blocks_have_known_language(page: Path) -> None:
    """A block without a language would not be run. Only the tree in architecture.md is no code."""
    allowed = {"python", "bash", "console", "yaml"} | ({""} if page.stem == "architecture" else set())
    assert {block.language for block in blocks(page)} <= allowed


def test_readme_has_python_and_bash() -> None:
    assert {"python", "bash"} <= {block.language for block in blocks(PAGES[0])}


@each_page
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The pages assume a photo, and a folder of photos.
    generator = torch.Generator().manual_seed(0)
    for path in ["photo.png", *(f"photos/{i:02}.png" for i in range(PHOTOS))]:
        write_png(tmp_path / path, torch.randint(256, (3, 40, 48), dtype=torch.uint8, generator=generator))
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if file := re.match(r"# (\S+\.py)\n", block.code):
            (tmp_path / file[1]).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            # Padded with blank lines, so that a traceback names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
        elif block.language == "yaml":
            name = re.match(r"# (\S+\.yaml)\n", block.code)
            assert name, f"{page.name}:{block.line}: a YAML block begins with the name of its file"
            (tmp_path / name[1]).write_text(block.code, encoding="utf-8")
        elif block.language == "bash":
            run_bash(page, block, tmp_path)


def run_bash(page: Path, block: Block, folder: Path) -> None:
    """Run a bash block in the folder; of `make` only check that the targets exist.

    A block of nothing but arcvq's commands runs in this process, which has imported torch already.
    """
    lines = block.code.replace("\\\n", " ").splitlines()
    if all(re.fullmatch(r"arcvq [^|&;<>$`*#]+", line) and "--import" not in line for line in lines):
        for line in lines:
            assert main(shlex.split(line)[1:]) == 0, f"{page.name}:{block.line}: {line}"
        return
    for line in lines:
        if line.startswith("make "):
            assert set(line.split()[1:]) <= make_targets(), f"{page.name}: {line!r} is not a target of the Makefile"
    script = "\n".join(line for line in lines if not line.startswith("make "))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}:{block.line}:\n{script}\n{done.stdout}\n{done.stderr}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@each_page
def test_links_have_targets(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"


@each_page
def test_console_commands_are_known(page: Path) -> None:
    """Console commands take too long to run: only check their first words."""
    for command in re.findall(r"^\$ (.+)$", "".join(b.code for b in blocks(page) if b.language == "console"), re.M):
        words = (
            r"(arcvq|(accelerate launch|torchrun) .*-m arcvq) (train|evaluate|import)\b"
            r"|sbatch .*\.sbatch "
            r"|python (-m reproduction|-m benchmarks)"
        )
        assert re.match(words, command), command


def rows_between(page: Path, marker: str) -> list[list[str]]:
    """The cells of the table rows between the markers of this name."""
    text = page.read_text("utf-8").partition(f"<!-- {marker}:begin -->")[2].partition(f"<!-- {marker}:end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_reasons_of_the_front_page_quote_the_tables() -> None:
    readme = ROOT / "README.md"
    reasons = readme.read_text("utf-8").partition("**Why this one**")[2].partition("This is an independent")[0]
    measured = {row[0].strip("`"): row for row in rows_between(readme, "results")[2:]}
    usage = {name: row[-1].split("%")[0] for name, row in measured.items()}
    assert re.search(rf"plain VQ-VAE\s+uses {float(usage['vq-vae']):.0f}%", reasons)
    assert f"`arcvq-vae` {float(usage['arcvq-vae']):.0f}%" in reasons
    assert f"`arcvq-scaffold` {usage['arcvq-scaffold']}%" in reasons
    psnr = {name: float(row[2].split(" ")[0]) for name, row in measured.items()}
    assert float(usage["cvq-vae"]) == 100
    assert f"is {psnr['arcvq-scaffold'] - psnr['cvq-vae']:.1f} dB below it" in reasons
    assert f"{psnr['cvq-vae'] - psnr['arcvq-vae']:.1f} dB above `arcvq-vae`" in reasons
    _, _, recipe, *rivals = rows_between(ROOT / "RESULTS.md", "lengths")
    for column, length in ((1, "25 epochs"), (-1, "500")):
        ours, best = (
            recipe[column][:5],
            max(row[column][:5] for row in rivals[2:]),
        )  # the first two are variants of the recipe
        assert re.search(rf"{ours}( dB after {length})? beside\s+{best} of [-,\w\s]*( after {length})?", reasons), (
            ours,
            best,
        )
    rows = rows_between(ROOT / "docs" / "speed.md", "h200-full")
    start = next(index for index, row in enumerate(rows) if "diffusers VQModel's quantizer" in row)
    layer = dict(zip(rows[start], next(row for row in rows[start:] if row[:3] == ["30,720", "65,536", "16"])))
    ours, cosine, diffusers = (
        [float(number.replace(",", "")) for number in layer[name].split(", ")]
        for name in ("arcvq ArcVQ triton", "vector-quantize-pytorch cosine", "diffusers VQModel's quantizer")
    )
    assert f"{ours[0]:.0f} ms and {ours[1]:.0f} MiB" in reasons
    assert re.search(rf"{cosine[0]:.0f} ms and\s+{cosine[1] / 1024:.0f} GiB", reasons)
    assert f"{diffusers[0]:.0f} ms and {diffusers[1] / 1024:.1f} GiB" in reasons
