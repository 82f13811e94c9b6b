"""Labels of metrics."""

import json
from pathlib import Path

import pytest

from arcvq.metrics import METRIC_LABELS, MetricLabel, metric_label

RESULTS = Path(__file__).parents[2] / "results"


def test_every_result_metric_has_a_label():
    documents = [json.loads(path.read_text()) for path in RESULTS.glob("*/*.json")]
    measured = [[*each.get("protocols", {}).values(), each.get("generation", {"metrics": {}})] for each in documents]
    names = {name for sections in measured for section in sections for name in section["metrics"]}
    assert names
    assert names <= METRIC_LABELS.keys()


def test_labels_are_unique_words():
    labels = [metric.label for metric in METRIC_LABELS.values()]
    assert len(set(labels)) == len(labels)
    assert not any("_" in label for label in labels)


@pytest.mark.parametrize(("name", "best"), [("psnr", 2.0), ("lpips", 1.0), ("bits_per_image", None)])
def test_best_follows_better_direction(name, best):
    assert metric_label(name).best([1.0, 2.0]) == best


def test_text_uses_metric_format():
    assert metric_label("usage").text(0.916) == "91.6%"
    assert metric_label("psnr").text(18.926) == "18.93"


def test_unknown_metric_is_labelled_by_its_name():
    assert metric_label("my_metric") == MetricLabel("my metric")
