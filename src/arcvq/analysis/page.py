"""HTML fragments of the report. Every text that comes from a run passes through `escape`."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from arcvq.analysis.comparison import Cell, Group
from arcvq.analysis.diagnosis import Finding
from arcvq.analysis.figures.code_wall import WALL_LIMIT, render_wall
from arcvq.analysis.figures.style import run_colour
from arcvq.analysis.history import RunHistory
from arcvq.analysis.illustrations import Illustration

SEVERITY_MARKS = {"critical": "✕", "warning": "!", "note": "i"}


def document(title: str, lead: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The whole page; a section is (anchor, heading, inner HTML)."""
    stylesheet = files("arcvq.analysis").joinpath("report.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{escape(anchor)}">{escape(heading)}</a>' for anchor, heading, _ in sections if heading)
    body = "\n".join(_section(anchor, heading, content) for anchor, heading, content in sections)
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
<footer><p>Written by arcvq from the run folders alone: every number on this page was measured, none was typed.</p></footer>
</body>
</html>
"""


def _section(anchor: str, heading: str, content: str) -> str:
    title = f"<h2>{escape(heading)}</h2>\n" if heading else ""
    return f'<section id="{escape(anchor)}">\n{title}{content}\n</section>'


def run_cards(runs: Sequence[RunHistory]) -> str:
    return f'<div class="cards">{"".join(_card(run, run_colour(place)) for place, run in enumerate(runs))}</div>'


def _card(run: RunHistory, colour: str) -> str:
    snapshot = run.last_snapshot
    facts = {
        "codes in use": f"{snapshot.used_count:,} of {snapshot.size:,}",
        "perplexity": f"{snapshot.perplexity:,.1f}" if snapshot.token_count else "no tokens",
        "training steps": f"{run.last_step:,}",
    }
    if run.system != run.name:
        facts = {"system": run.system, **facts}
    listed = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(fact)}</dd></div>" for term, fact in facts.items())
    wall = data_uri(render_wall(snapshot, colour))
    sample = f" ({WALL_LIMIT:,} of {snapshot.size:,} shown)" if snapshot.size > WALL_LIMIT else ""
    alt = f"{snapshot.used_count:,} of {snapshot.size:,} cells are lit."
    return f"""
<article class="card" style="--run: {colour}">
<h3>{escape(run.name)}</h3>
<p class="figure"><strong>{snapshot.usage:.0%}</strong> of the codes in use</p>
<img class="wall" src="{wall}" alt="{escape(alt)}">
<p class="small">One cell per code{sample}: coloured if the evaluation images use it, grey if none does.</p>
<dl>{listed}</dl>
</article>"""


def notes_list(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'


def metrics_table(runs: Sequence[RunHistory], groups: Sequence[Group]) -> str:
    columns = _run_headings(runs)
    parts = []
    for group in groups:
        rows = "".join(
            f'<tr><th scope="row">{escape(row.label)} {_arrow(row.direction)}</th>{"".join(map(_metric_cell, row.cells))}</tr>'
            for row in group.rows
        )
        warning = f' <span class="caution">{escape(group.warning)}</span>' if group.warning else ""
        parts.append(
            f'<div class="scroll"><table><caption>{escape(group.title)}{warning}</caption>'
            f'<thead><tr><th scope="col">metric</th>{columns}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
    parts.append('<p class="small">The best value of a row is bold; ↑ higher is better, ↓ lower is better.</p>')
    return "\n".join(parts)


def _arrow(direction: str) -> str:
    if not direction:
        return ""
    spoken = "higher is better" if direction == "↑" else "lower is better"
    return f'<span class="arrow" title="{spoken}" aria-label="{spoken}">{direction}</span>'


def _metric_cell(cell: Cell) -> str:
    if cell.text is None:
        return f'<td class="missing">missing<span class="reason">{escape(cell.reason)}</span></td>'
    text = escape(cell.text)
    return f'<td class="best"><strong>{text}</strong></td>' if cell.best else f"<td>{text}</td>"


def findings_list(findings: Mapping[str, Sequence[Finding]]) -> str:
    """The diagnosis of each run, by its name."""
    parts = []
    for place, (name, found) in enumerate(findings.items()):
        items = "".join(_finding(finding) for finding in found)
        content = f'<ul class="findings">{items}</ul>' if items else '<p class="sound">No symptom found.</p>'
        parts.append(
            f'<article class="card" style="--run: {run_colour(place)}"><h3>{escape(name)}</h3>{content}</article>'
        )
    return f'<div class="cards">{"".join(parts)}</div>'


def _finding(finding: Finding) -> str:
    mark = SEVERITY_MARKS[finding.severity]
    evidence = finding.evidence[:1].upper() + finding.evidence[1:]
    return (
        f'<li class="{finding.severity}"><span class="mark" role="img" aria-label="{finding.severity}">{mark}</span>'
        f"<div><strong>{escape(finding.symptom)}</strong><p>{escape(evidence)}.</p>"
        f'<p class="remedy">Remedy: {escape(finding.remedy)}.</p></div></li>'
    )


def figure_block(illustration: Illustration, png: bytes) -> str:
    return (
        f'<figure><div class="scroll"><img src="{data_uri(png)}" alt="{escape(illustration.alt)}"></div>'
        f"<figcaption>{escape(illustration.caption)}</figcaption></figure>"
    )


def settings_table(runs: Sequence[RunHistory], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    if len(runs) < 2:
        return "<p>There is one run, so nothing to compare its settings with.</p>"
    if not rows:
        return "<p>All resolved settings are the same.</p>"
    lines = "".join(
        f'<tr><th scope="row"><code>{escape(key)}</code></th>'
        + "".join(f"<td><code>{escape(value)}</code></td>" for value in values)
        + "</tr>"
        for key, values in rows
    )
    return (
        "<p>Every other resolved setting is the same in all runs.</p>"
        f'<div class="scroll"><table><thead><tr><th scope="col">setting</th>{_run_headings(runs)}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def protocol_table(runs: Sequence[RunHistory]) -> str:
    lines = []
    for run in runs:
        for result in run.results.values():
            facts = (
                result.protocol,
                result.protocol_hash or "no hash",
                "not recorded" if result.images is None else f"{result.images:,}",
                "not recorded" if result.seconds is None else f"{result.seconds:,.1f}",
            )
            cells = "".join(f"<td>{escape(fact)}</td>" for fact in facts)
            lines.append(f'<tr><th scope="row">{escape(run.name)}</th>{cells}</tr>')
        if not run.results:
            lines.append(
                f'<tr><th scope="row">{escape(run.name)}</th><td colspan="4">not evaluated under a protocol</td></tr>'
            )
    headings = "".join(
        f'<th scope="col">{heading}</th>' for heading in ("run", "protocol", "hash", "images", "seconds")
    )
    return (
        "<p>A protocol says exactly how the numbers were measured; numbers with equal hashes, taken on the same images, compare.</p>"
        f'<div class="scroll"><table><thead><tr>{headings}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _run_headings(runs: Sequence[RunHistory]) -> str:
    return "".join(
        f'<th scope="col"><span class="dot" style="--run: {run_colour(place)}"></span>{escape(run.name)}</th>'
        for place, run in enumerate(runs)
    )
