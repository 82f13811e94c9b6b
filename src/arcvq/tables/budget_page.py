"""Quality against epochs: everyone at every length, who is ahead, what SAMP gives, and what was aimed at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from arcvq.tables.chosen import after, choose, lengths, presets
from arcvq.tables.results import (
    METRICS,
    Cell,
    Result,
    cell,
    failures,
    fate,
    metric_text,
    number,
    of_run,
    precision_note,
    table,
)
from arcvq.tables.rows import ABSENT, NOTHING, Grouped
from arcvq.tables.studies import (
    BUDGETS,
    CONTENDERS,
    DATA,
    SIDES,
    Contender,
    budget_name,
    contenders,
    finals,
    preset_name,
    side_of,
    with_and_without,
)

LONGEST = BUDGETS[-1]
# What a better recipe is to reach after the longest training.
AIM = 25.5
Named = dict[str, list[Result]]


@dataclass(frozen=True)
class Outcome:
    """On the test set; `word` where no number tells it: diverged or collapsed; `failed` where that is so of some seeds."""

    psnr: Cell | None = None
    usage: Cell | None = None
    word: str = ""
    failed: str = ""

    @property
    def known(self) -> bool:
        return self.psnr is not None or bool(self.word)

    @property
    def text(self) -> str:
        if self.psnr is None or self.word:
            return self.word or NOTHING
        usage = f", {number('usage', self.usage.mean)}" if self.usage else ""
        failed = f" ({self.failed})" if self.failed else ""
        return metric_text("psnr", self.psnr, self.psnr.seeds) + usage + failed


@dataclass(frozen=True)
class Line:
    """A rival, the recipe, what was chosen before its final, or the recipe without SAMP: what came out at the lengths that it is or is
    to be trained for."""

    name: str
    side: str  # a key of SIDES
    at: dict[int, Outcome]
    longest: list[Result] = field(default_factory=list)  # of the longest training that is measured

    def psnr(self, epochs: int) -> float | None:
        found = self.at.get(epochs, Outcome())
        return found.psnr.mean if found.psnr and not found.word else None

    def seeds(self, epochs: int) -> int:
        """How many the number at a length is of."""
        found = self.at.get(epochs, Outcome())
        return found.psnr.seeds if found.psnr and not found.word else 0


def budget_lines(named: Named) -> list[Line]:
    """Presets as they are, everyone tuned, then the recipe without SAMP, what was chosen before its final, and the recipe, whose
    longest training is its preset."""
    chosen, measured = choose(named), lengths(named)
    found = list(_as_they_are(named))
    found += [_line(each, measured, side_of(each.system, chosen)) for each in contenders(chosen)]
    return sorted(found, key=lambda line: list(SIDES).index(line.side))


def _line(each: Contender, measured: Named, side: str) -> Line:
    at = {}
    for epochs in BUDGETS:
        if each.tells_of(epochs):
            of_length = measured.get(budget_name(each.name, epochs), [])
            at[epochs] = Outcome(*after(measured, each, epochs), fate(of_length), failures(of_length))
    own = [measured[run] for n in each.lengths if (run := budget_name(each.name, n)) in measured]
    return Line(each.name, side, at, own[-1] if own else [])


def _as_they_are(named: Named) -> Iterator[Line]:
    every = presets(named)
    for preset in CONTENDERS:
        results = every.get(preset, [])
        psnr, usage = (cell(results, "exact", metric) for metric in ("psnr", "usage"))
        outcome = Outcome(psnr, usage, fate(results), failures(results))
        yield Line(preset_name(preset), "rival", {LONGEST: outcome}, results)


def budgets_page(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """A row per system and schedule, a column per length; then who is ahead, and what was aimed at."""
    named = grouped.get(DATA, {})
    every = budget_lines(named)
    shown = [line for line in every if any(outcome.known for outcome in line.at.values())]
    waiting = [f"`{line.name}`" for line in every if line not in shown]
    rows = [[line.name, *(line.at.get(epochs, Outcome()).text for epochs in BUDGETS)] for line in shown]
    untuned = [system for system in CONTENDERS if system not in choose(named)["tuned"]]
    lines = table(["system", *(f"{epochs} epochs" for epochs in BUDGETS)], rows) if rows else []
    lines += [*precision_note(result for line in shown for result in line.longest), ""]
    lines += [f"Not measured yet: {', '.join(waiting)}.", ""] if waiting else []
    lines += [f"Not tuned yet: {', '.join(untuned)}.", ""] if untuned else []
    if not any(line.side == "recipe" for line in every):
        return [*lines, "No recipe is chosen yet."]
    lines += [f"- {epochs} epochs: {standing(every, epochs)}" for epochs in BUDGETS]
    return [*lines, *aims(every, printed)]


def best(lines: list[Line], side: str, epochs: int) -> tuple[Line, float] | None:
    """The line of a side with the highest PSNR at a length."""
    found = [(line, psnr) for line in lines if line.side == side and (psnr := line.psnr(epochs)) is not None]
    return max(found, key=lambda pair: pair[1], default=None)


def surest(lines: list[Line], epochs: int) -> tuple[Line, float] | None:
    """The recipe's line with the most seeds at a length, the best of several: what one seed gained by chance does not stand for it."""
    most = max((line.seeds(epochs) for line in lines if line.side == "recipe"), default=0)
    return best([line for line in lines if line.seeds(epochs) == most], "recipe", epochs)


def standing(lines: list[Line], epochs: int) -> str:
    """The recipe beside the best of all rivals, whichever of their rows that is, and beside itself without SAMP."""
    ours, rival, control = surest(lines, epochs), best(lines, "rival", epochs), best(lines, "control", epochs)
    if ours is None or rival is None:
        return ABSENT
    asked = [line for line in lines if line.side == "rival" and epochs in line.at]
    tried = [line for line in asked if line.at[epochs].known]
    count = f"of {len(tried)}" + f" tried of {len(asked)}" * (len(tried) < len(asked))
    said = f"{_said(*ours)}, best rival ({count}) {_said(*rival)}: {_gap(ours[1] - rival[1])}"
    if control is not None:
        said += f"; without ball and ArcLoss ({_said(*control)}): {_gap(ours[1] - control[1])}"
    return said


def _said(line: Line, psnr: float) -> str:
    return f"`{line.name}` {number('psnr', psnr)}"


def _gap(difference: float) -> str:
    gap = round(difference, 2)
    return f"{'ahead' if gap > 0 else 'behind'} by {abs(gap):.2f}" if gap else "level"


def aims(lines: list[Line], printed: dict[str, Any]) -> list[str]:
    """For the recipe's surest row after the longest training; and who else gets there."""
    ours = surest(lines, LONGEST)
    in_print = [row["rfid"] for row in printed.get(DATA, {}).values() if isinstance(row, dict) and "rfid" in row]
    said = [_aim(lines, ours, f"PSNR {AIM}", "exact", "psnr", lambda psnr: psnr >= AIM)]
    if in_print:
        lowest = min(in_print)
        said.append(
            _aim(
                lines, ours, f"an rFID below the lowest in print, {lowest}", "paper", "rfid", lambda rfid: rfid < lowest
            )
        )
    return said


def _aim(
    lines: list[Line], ours: tuple[Line, float] | None, what: str, protocol: str, metric: str, reaches: Any
) -> str:
    begin = f"- Aim after {LONGEST} epochs, {what} under `{protocol}`:"
    found = cell(ours[0].longest, protocol, metric) if ours else None
    if ours is None or found is None:
        return f"{begin} not measured"
    seeds = f"{found.seeds} seeds" if found.seeds > 1 else "one seed"
    verdict, so_are, is_none = (
        ("reached", "also by", "by no other so far")
        if reaches(found.mean)
        else ("not reached", "but by", "nor by any other so far")
    )
    rivals = [
        f"`{line.name}` {number(metric, theirs.mean)}"
        for line in lines
        if line is not ours[0]
        and line.psnr(LONGEST) is not None
        and (theirs := cell(line.longest, protocol, metric))
        and reaches(theirs.mean)
    ]
    others = f"{so_are} {', '.join(rivals)}" if rivals else is_none
    return f"{begin} `{ours[0].name}` {metric_text(metric, found, found.seeds)} ({seeds}), {verdict}; {others}"


def longest_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """The longest trainings in every metric, the highest PSNR first; the best number of a column is bold."""
    lines = [line for line in budget_lines(grouped.get(DATA, {})) if line.psnr(LONGEST) is not None]
    lines.sort(key=lambda line: -(line.psnr(LONGEST) or 0.0))
    columns = [
        *(("exact", metric) for metric in ("psnr", "ssim", "lpips", "rfid")),
        ("paper", "lpips"),
        ("paper", "rfid"),
    ]
    rows = [[line.name, SIDES[line.side], str(len(line.longest))] for line in lines]
    for protocol, metric in columns:
        cells = [cell(line.longest, protocol, metric) for line in lines]
        leading = max((METRICS[metric][2] * each.mean for each in cells if each), default=None)
        for row, each in zip(rows, cells):
            text = metric_text(metric, each, int(row[2]), NOTHING)
            row.append(f"**{text}**" if each and METRICS[metric][2] * each.mean == leading else text)
    headings = ["system", "what", "seeds", *(f"{METRICS[metric][0]}, {protocol}" for protocol, metric in columns)]
    note = precision_note(result for line in lines for result in line.longest)
    return [*table(headings, rows, left=2), *note] if rows else [ABSENT]


def challengers_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """Length by length, every rival that came near, and by how much the recipe is ahead of it."""
    named = grouped.get(DATA, {})
    chosen = choose(named)
    near = chosen.get("challengers", {})
    every, rows, shown = budget_lines(named), [], []
    ours = {
        epochs: outcome for line in every if line.name == chosen.get("recipe") for epochs, outcome in line.at.items()
    }
    for epochs in BUDGETS:
        theirs = [line for line in every if line.name in near.get(str(epochs), ())]
        for line in sorted(theirs, key=lambda line: -(line.psnr(epochs) or 0.0)):
            own, other = ours[epochs], line.at[epochs]
            rows.append([str(epochs), line.name, *_beside(own), *_beside(other), _lead(own.psnr, other.psnr)])
            shown += line.longest
    headings = ["epochs", "rival", "recipe's PSNR", "seeds", "rival's PSNR", "seeds", "lead ± standard error"]
    return [*table(headings, rows, left=2), *precision_note(shown)] if rows else [ABSENT]


def _beside(found: Outcome) -> tuple[str, str]:
    if found.psnr is None or found.word:
        return found.word or NOTHING, NOTHING
    return metric_text("psnr", found.psnr, found.psnr.seeds), found.failed or str(found.psnr.seeds)


def _lead(own: Cell | None, other: Cell | None) -> str:
    """With the standard error of a difference of means, where both have more seeds than one."""
    if own is None or other is None:
        return NOTHING
    lead = f"{own.mean - other.mean:+.2f}"
    if own.spread is None or other.spread is None:
        return lead
    return f"{lead} ± {math.hypot(own.spread / own.seeds**0.5, other.spread / other.seeds**0.5):.2f}"


def samp_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """The recipe with ball and ArcLoss, without one of them and without both, length by length."""
    named = grouped.get(DATA, {})
    compared, measured = with_and_without(choose(named)), lengths(named)
    if not compared:
        return ["No recipe with a control is chosen yet."]
    lines = [_line(each, measured, "recipe") for each in compared]
    rows = []
    for epochs in BUDGETS:
        outcomes = [line.at.get(epochs, Outcome()) for line in lines]
        seeds = [str(outcome.psnr.seeds) if outcome.psnr else NOTHING for outcome in outcomes]
        whole, *_between, neither = (line.psnr(epochs) for line in lines)
        gain = NOTHING if whole is None or neither is None else f"{whole - neither:+.2f}"
        rows.append([str(epochs), *(outcome.text for outcome in outcomes), ", ".join(seeds), gain])
    headings = ["epochs", *(f"`{line.name}`" for line in lines), "seeds", "gain of both"]
    return [*table(headings, rows), *precision_note(result for line in lines for result in line.longest)]


def codebooks_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """The codebooks of all that took part in the final, of the recipe, and of what it is without SAMP: the most even directions
    first."""
    named = grouped.get(DATA, {})
    last = finals(choose(named).get("finals", ()))
    found = {run.name: results for run in last.values() if not fate(results := of_run(named, run.name))}
    found |= {
        line.name: line.longest
        for line in budget_lines(named)
        if line.side != "rival" and line.psnr(LONGEST) is not None
    }
    even = {name: each.mean for name, results in found.items() if (each := cell(results, "exact", "uniformity"))}
    columns = [("exact", metric) for metric in ("uniformity", "nearest_neighbour_mean", "norm_spread", "psnr")]
    columns.append(("paper", "rfid"))
    rows = [
        [name, str(len(found[name]))]
        + [metric_text(metric, cell(found[name], at, metric), len(found[name]), NOTHING) for at, metric in columns]
        for name in sorted(even, key=lambda name: even[name])
    ]
    headings = ["run", "seeds", *(METRICS[metric][0] for _, metric in columns[:3]), "PSNR, exact", "rFID, paper"]
    note = precision_note(result for name in even for result in found[name])
    return [*table(headings, rows), *note] if rows else [ABSENT]
