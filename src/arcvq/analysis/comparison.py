"""The metrics of several runs side by side, with the best marked where marking is fair."""

from collections.abc import Sequence
from dataclasses import dataclass

from arcvq.analysis.history import EvaluationResult, RunHistory

# Which way is better. A metric that is not listed is shown without a winner.
HIGHER_IS_BETTER = {"psnr", "ssim", "usage", "perplexity", "inception_score", "precision", "recall"}
LOWER_IS_BETTER = {"l1", "l2", "mse", "lpips", "fid", "rfid"}

LABELS = {
    "psnr": "PSNR (dB)",
    "ssim": "SSIM",
    "l1": "ℓ1 error",
    "l2": "ℓ2 error",
    "mse": "mean squared error",
    "lpips": "LPIPS",
    "fid": "FID",
    "rfid": "rFID",
    "inception_score": "Inception score",
    "usage": "codes in use",
    "perplexity": "perplexity",
    "precision": "precision",
    "recall": "recall",
}

# What the training loop logs at each evaluation, for runs that were never evaluated under a protocol.
LOGGED_METRICS = ("usage", "perplexity", "psnr", "l1")


@dataclass(frozen=True)
class Cell:
    """One number as printed, or the reason why there is none."""

    text: str | None
    best: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Row:
    metric: str
    label: str
    direction: str  # "↑", "↓" or ""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    """Rows that were measured the same way."""

    title: str
    rows: tuple[Row, ...]
    warning: str = ""


def compare(runs: Sequence[RunHistory]) -> list[Group]:
    """One group per protocol; the last logged evaluation as well where some run lacks the protocols' numbers."""
    protocols = list(dict.fromkeys(protocol for run in runs for protocol in run.results))
    groups = [_protocol_group(runs, protocol) for protocol in protocols]
    if not protocols or any(set(run.results) != set(protocols) for run in runs):
        groups.append(_logged_group(runs))
    return groups


def _protocol_group(runs: Sequence[RunHistory], protocol: str) -> Group:
    results = [run.results.get(protocol) for run in runs]
    measured = [result for result in results if result is not None]
    hashes = {result.protocol_hash for result in measured}
    metrics = dict.fromkeys(name for result in measured for name in (*result.metrics, *result.missing))
    rows = []
    for metric in metrics:
        values = [None if result is None else result.metrics.get(metric) for result in results]
        reasons = [_reason(result, metric, protocol) for result in results]
        rows.append(_row(metric, values, reasons, fair=len(hashes) == 1))
    warning = ""
    if len(hashes) > 1:
        warning = "The runs were measured under different versions of this protocol: their numbers do not compare."
    return Group(f"Protocol “{protocol}”", tuple(rows), warning)


def _logged_group(runs: Sequence[RunHistory]) -> Group:
    rows = []
    for metric in LOGGED_METRICS:
        series = [run.evaluation_series(metric) for run in runs]
        values = [float(one.values[-1]) if len(one) else None for one in series]
        rows.append(_row(metric, values, ["not logged"] * len(runs), fair=True))
    return Group("Last evaluation during training", tuple(rows))


def _reason(result: EvaluationResult | None, metric: str, protocol: str) -> str:
    if result is None:
        return f"not evaluated under “{protocol}”"
    return result.missing.get(metric, "not measured")


def _row(metric: str, values: Sequence[float | None], reasons: Sequence[str], *, fair: bool) -> Row:
    texts = [None if value is None else format_metric(metric, value) for value in values]
    numbers = [value for value in values if value is not None]
    direction = "↑" if metric in HIGHER_IS_BETTER else "↓" if metric in LOWER_IS_BETTER else ""
    best = None
    # A winner needs a loser, and equal when printed is equal: nobody wins by a digit that is not shown.
    if fair and direction and len({text for text in texts if text is not None}) > 1:
        best = format_metric(metric, max(numbers) if direction == "↑" else min(numbers))
    cells = tuple(
        Cell(text, best=text is not None and text == best, reason="" if text is not None else reason)
        for text, reason in zip(texts, reasons)
    )
    return Row(metric, LABELS.get(metric, metric), direction, cells)


def format_metric(metric: str, value: float) -> str:
    if metric == "usage":
        return f"{value:.1%}"
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3e}"
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4f}"
