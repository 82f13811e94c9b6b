"""Measured runs beside what the paper prints. Knows nothing of models: it reads results/ and writes RESULTS.md."""

from arcvq.tables.chosen import chosen_text
from arcvq.tables.experiments import Experiment
from arcvq.tables.page import results_page
from arcvq.tables.paper import TABLES, Row, Table
from arcvq.tables.results import (
    METRICS,
    PRECISIONS,
    Cell,
    Result,
    between_markers,
    group,
    metric_text,
    read_result,
    read_results,
)
from arcvq.tables.rows import read_printed
from arcvq.tables.runs import EXPERIMENTS

__all__ = [
    "EXPERIMENTS",
    "METRICS",
    "PRECISIONS",
    "TABLES",
    "Cell",
    "Experiment",
    "Result",
    "Row",
    "Table",
    "between_markers",
    "chosen_text",
    "group",
    "metric_text",
    "read_printed",
    "read_result",
    "read_results",
    "results_page",
]
