"""Builds the HTML of the report. Every text from a run passes through `escape`."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from torch import Tensor

from arcvq.analysis.comparison import Cell, Group, Row
from arcvq.analysis.figures.code_grid import GRID_LIMIT, render_code_grid
from arcvq.analysis.figures.style import render_png, run_colour, stack_panels
from arcvq.analysis.finding import Finding
from arcvq.analysis.history import RunHistory
from arcvq.analysis.illustrations import Illustration
from arcvq.data.files import encode_png
from arcvq.metrics import metric_label

NO_FINDING = '<p class="healthy">No symptom found.</p>'
SEVERITY_SYMBOLS = {"critical": "✕", "warning": "!", "note": "i"}

# A figure is then as wide as the page's column, and a page of two runs takes 2 to 3 MB.
DOTS_PER_INCH = 110
PHONE_DOTS_PER_INCH = 125  # a phone shows several dots to a pixel of the page

# Runs, or characters of a run's name, from which on the heads of a table are wrapped on a phone.
CROWDED_RUNS, CROWDED_NAME = 3, 11

Section = tuple[str, str, str]  # anchor, heading, inner HTML


def html_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as HTML."""
    stylesheet = files("arcvq.analysis").joinpath("report.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{escape(anchor)}">{escape(heading)}</a>' for anchor, heading, _ in sections if heading)
    body = "\n".join(_section_html(anchor, heading, content) for anchor, heading, content in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{stylesheet}</style>
</head>
<body>
<header>
<p class="kicker">arcvq report</p>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
<footer><p>Written by arcvq from the run folders: every number on this page was measured.</p></footer>
</body>
</html>
"""


def _section_html(anchor: str, heading: str, content: str) -> str:
    """A section of the page with its anchor and heading."""
    title = f"<h2>{escape(heading)}</h2>\n" if heading else ""
    return f'<section id="{escape(anchor)}">\n{title}{content}\n</section>'


def usage_summary(runs: Sequence[RunHistory]) -> str:
    """A sentence: how many codes each run uses."""
    parts = [
        f"{run.name} {f'uses {_used_of_all(run)} codes' if run.has_codebook else 'has no codebook'}" for run in runs
    ]
    return "; ".join(parts) + "."


def run_cards(runs: Sequence[RunHistory]) -> str:
    """An HTML card per run: usage, the grid of its codes, and a few facts."""
    return (
        f'<div class="cards">{"".join(_run_card(run, run_colour(position)) for position, run in enumerate(runs))}</div>'
    )


def _run_card(run: RunHistory, colour: str) -> str:
    """The HTML card of one run."""
    facts = {"training steps": f"{run.last_step:,}{'' if run.finished else ', unfinished'}"}
    if run.system != run.name:
        facts = {"system": run.system, **facts}
    if run.has_codebook:
        snapshot = run.last_snapshot
        perplexity = f"{snapshot.perplexity:,.1f}" if snapshot.token_count else "no tokens"
        facts = {"codes in use": _used_of_all(run), "perplexity": perplexity, **facts}
        sample = f" ({GRID_LIMIT:,} of {snapshot.size:,} shown)" if snapshot.size > GRID_LIMIT else ""
        figure = (
            f'<p class="figure"><strong>{metric_label("usage").text(snapshot.usage)}</strong> of the codes in use</p>'
            f'<img class="code-grid" src="{data_uri(render_code_grid(snapshot, colour))}" alt="{_used_of_all(run)} cells are coloured.">'
            f'<p class="small">One cell per code{sample}: coloured if the evaluation images use it, grey if not.</p>'
        )
    else:
        figure = '<p class="figure">There is no codebook: the latents are continuous, or no codebook was saved yet.</p>'
    return fact_card(run.name, colour, figure, facts)


def fact_card(name: str, colour: str, figure: str, facts: Mapping[str, str]) -> str:
    """An HTML card: a name, a figure, which is HTML, and a list of facts."""
    listed = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(fact)}</dd></div>" for term, fact in facts.items())
    return f'<article class="card" style="--run: {colour}"><h3>{escape(name)}</h3>{figure}<dl>{listed}</dl></article>'


def _used_of_all(run: RunHistory) -> str:
    """`USED of ALL` codes, as text."""
    return f"{run.last_snapshot.used_count:,} of {run.last_snapshot.size:,}"


def notes_list(notes: Sequence[str]) -> str:
    """The notes as an HTML list."""
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'


def metrics_table(runs: Sequence[RunHistory], groups: Sequence[Group]) -> str:
    """HTML tables of metrics: one per group, with a column per run."""
    parts = []
    for group in groups:
        caution = f' <span class="caution">{escape(group.warning)}</span>' if group.warning else ""
        parts.append(_run_table(runs, "metric", map(_metric_row_cells, group.rows), f"{escape(group.title)}{caution}"))
        if group.details:
            details = _run_table(runs, "metric", map(_metric_row_cells, group.details))
            parts.append(f"<details><summary>More numbers</summary>{details}</details>")
    parts.append('<p class="small">The best value of a row is bold; ↑ higher is better, ↓ lower is better.</p>')
    return "\n".join(parts)


def settings_table(runs: Sequence[RunHistory], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """An HTML table of settings that differ: a row per setting, a column per run."""
    if not rows:
        return f"<p>{'All resolved settings are the same.' if len(runs) > 1 else 'There is only one run.'}</p>"
    lines = [
        # A long key may break after its dots.
        [f"<code>{text}</code>" for text in (escape(key).replace(".", ".<wbr>"), *map(escape, values))]
        for key, values in rows
    ]
    return f"<p>Every other resolved setting is the same in all runs.</p>{_run_table(runs, 'setting', lines)}"


def _run_table(runs: Sequence[RunHistory], first_heading: str, rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """An HTML table with a column per run after the first. Cells and caption are HTML."""
    names = [
        f'<span class="dot" style="--run: {run_colour(position)}"></span>{escape(run.name)}'
        for position, run in enumerate(runs)
    ]
    head = "".join(f'<th scope="col">{name}</th>' for name in (first_heading, *names))
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>' for name, *cells in rows
    )
    title = f"<caption>{caption}</caption>" if caption else ""
    crowded = len(runs) >= CROWDED_RUNS or any(len(run.name) >= CROWDED_NAME for run in runs)
    table = '<table class="crowded">' if crowded else "<table>"
    return f'<div class="scroll">{table}{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _metric_row_cells(row: Row) -> list[str]:
    """The HTML cells of a row: label with arrow, then one value per run."""
    return [f'{escape(row.label)} <span class="arrow">{row.direction}</span>', *map(_metric_cell, row.cells)]


def _metric_cell(cell: Cell) -> str:
    """The HTML of one value, or of the reason why it is missing."""
    if cell.text is None:
        word = "–" if cell.reason.startswith("not applicable") else "missing"
        return f'<span class="missing">{word}<span class="reason">{escape(cell.reason)}</span></span>'
    return f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)


def findings_cards(findings: Mapping[str, Sequence[Finding]]) -> str:
    """An HTML card per run with its diagnosis; `findings` by the name of the run."""
    parts = []
    for position, (name, found) in enumerate(findings.items()):
        content = f'<ul class="findings">{"".join(map(_finding_item, found))}</ul>' if found else NO_FINDING
        parts.append(
            f'<article class="card" style="--run: {run_colour(position)}"><h3>{escape(name)}</h3>{content}</article>'
        )
    return f'<div class="cards">{"".join(parts)}</div>'


def _finding_item(finding: Finding) -> str:
    """The HTML list item of one finding."""
    mark = SEVERITY_SYMBOLS[finding.severity]
    evidence = finding.evidence[:1].upper() + finding.evidence[1:]
    return (
        f'<li class="{finding.severity}"><span class="mark" role="img" aria-label="{finding.severity}">{mark}</span>'
        f"<div><strong>{escape(finding.symptom)}</strong><p>{escape(evidence)}.</p>"
        f'<p class="remedy">Remedy: {escape(finding.remedy)}.</p></div></li>'
    )


def figure_section(illustration: Illustration) -> Section:
    """A section with the figure, its narrow version for phones, and its caption."""
    wide = data_uri(render_png(illustration.figure, DOTS_PER_INCH))
    narrow = data_uri(render_png(illustration.narrow or stack_panels(illustration.figure), PHONE_DOTS_PER_INCH))
    content = (
        f'<figure><picture><source media="(max-width: 640px)" srcset="{narrow}">'
        f'<img src="{wide}" alt="{escape(illustration.alt)}"></picture>'
        f"<figcaption>{escape(illustration.caption)}</figcaption></figure>"
    )
    return illustration.anchor, illustration.title, content


def generated_section(
    pixels: Tensor, caption: str, anchor: str = "generated", title: str = "Generated images"
) -> Section:
    """A section with a picture of generated images, uint8 (1 or 3, H, W)."""
    size = f'style="--width: {pixels.shape[-1]}px"'
    image = f'<img class="generated" {size} src="{data_uri(encode_png(pixels))}" alt="A grid of generated images.">'
    content = f"<figure><picture>{image}</picture><figcaption>{escape(caption)}</figcaption></figure>"
    return anchor, title, content


def data_uri(png: bytes) -> str:
    """The image as a URI that embeds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
