"""The benchmark measures what it says, and a library that is not there is said to be missing, never a number."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from arcvq import ArcvqError, functional
from arcvq.bench import SUITES, Size, all_contenders, contenders, limits, run_suite
from arcvq.bench.contenders import MARGIN, SCALE, TOP_K, plain_arc_loss, plain_assign
from arcvq.bench.measure import cost
from arcvq.bench.plot import growth_figure
from arcvq.bench.suite import suite
from arcvq.bench.training import run_steps
from arcvq.cli import main
from arcvq.tokenizers.inference import choose_device

CPU = torch.device("cpu")
TINY = [Size(64, 16, 8), Size(64, 32, 8), Size(128, 32, 8)]


@pytest.fixture(scope="module", autouse=True)
def _small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(limits.PRODUCT, "cpu", 64)
        patch.setitem(limits.COPY, "cpu", 2**16)
        yield


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return run_suite(TINY, CPU, seconds=0.0)


def test_the_plain_way_computes_the_same() -> None:
    latents, codes = torch.randn(200, 8), torch.randn(16, 8)
    assert torch.equal(plain_assign(latents, codes), functional.assign(latents, codes, "cosine"))
    expected = functional.arc_loss(latents, codes, SCALE, MARGIN, TOP_K)
    torch.testing.assert_close(plain_arc_loss(latents, codes), expected, rtol=1e-5, atol=1e-6)


def test_every_contender_has_a_row_at_every_size(document: dict[str, Any]) -> None:
    assert len(document["rows"]) == len(TINY) * len(all_contenders(CPU))
    for row in document["rows"]:
        assert ("milliseconds" in row) != ("missing" in row)
        assert ("exponentials" in row) == (row["task"] in ("arc", "samp") and "missing" not in row)
        if row["name"].startswith(("arcvq", "plain")):
            assert row["milliseconds"] > 0
            assert row["operations"] >= 2 * row["tokens"] * row["codes"] * row["width"]
    assert json.loads(json.dumps(document)) == document


def test_a_library_that_is_not_there_is_missing_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    rows = run_suite(TINY[:1], CPU, seconds=0.0, tasks=["layer"])["rows"]
    missing = {row["name"]: row["missing"] for row in rows if "missing" in row}
    assert missing["vector-quantize-pytorch SimVQ"] == (
        "vector-quantize-pytorch is not installed: pip install vector-quantize-pytorch"
    )
    assert missing["diffusers VQModel's quantizer"] == "diffusers is not installed: pip install diffusers"
    assert len(missing) == 4


def test_a_contender_that_runs_out_of_memory_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(latents: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**60)

    monkeypatch.setattr(contenders, "plain_assign", greedy)
    rows = run_suite(TINY[:1], CPU, seconds=0.0, tasks=["assign"])["rows"]
    plain = next(row for row in rows if row["name"] == "plain")
    assert plain["missing"].startswith("out of memory")
    assert "milliseconds" not in plain


def test_the_memory_is_the_peak_beyond_what_was_there() -> None:
    held = torch.zeros(2**20)

    def work() -> torch.Tensor:
        first = held + 1  # 4 MiB
        second = first * 2  # 4 MiB, while the first is held
        del first
        return second.sum()

    assert cost(work, CPU, 0.0).mebibytes == pytest.approx(8, abs=0.1)


def test_bounded_blocks_hold_less_than_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functional.chunks.ELEMENTS, "cpu", 2**14)
    rows = run_suite([Size(2048, 512, 8)], CPU, seconds=0.0, tasks=["samp"])["rows"]
    ours, plain = (next(row for row in rows if row["name"] == name) for name in ("arcvq chunked", "plain"))
    assert ours["mebibytes"] < plain["mebibytes"] / 5


def test_the_figure_shows_the_measured_numbers(document: dict[str, Any]) -> None:
    """Three tasks over K and over N, each with time, memory and the share of the limit."""
    figure = growth_figure(document)
    axes = figure.axes
    assert len(axes) == 3 * 6
    assert all(axis.get_xscale() == axis.get_yscale() == "log" for axis in axes)
    rows = [row for row in document["rows"] if row["task"] == "assign" and row["name"] == "arcvq chunked"]
    for column, growth, own in ((0, "codes", rows[:2]), (3, "tokens", rows[1:])):
        for axis, measure in zip(axes[column::6], ("milliseconds", "mebibytes", "limit_fraction")):
            line = next(line for line in axis.get_lines() if line.get_label() == "arcvq chunked")
            assert list(line.get_xdata()) == [row[growth] for row in own]
            assert list(line.get_ydata()) == [max(row[measure], 1e-3) for row in own]
    limit = next(line for line in axes[0].get_lines() if line.get_label() == "limit")
    assert list(limit.get_ydata()) == [row["limit_milliseconds"] for row in rows[:2]]


def test_a_suite_of_one_task_draws_only_that() -> None:
    document = run_suite(TINY[:2], CPU, seconds=0.0, tasks=["assign"])
    assert len(growth_figure(document).axes) == 3


def test_the_search_suite_is_the_search_alone_with_faiss_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SUITES, "search", TINY[:1])
    out = tmp_path / "search.json"
    assert main(["bench", "--suite", "search", "--seconds", "0", "--device", "cpu", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["task"], row["name"]) for row in rows] == [
        ("assign", name) for name in ("arcvq chunked", "plain", "faiss IndexFlatIP")
    ]
    assert "milliseconds" in rows[2] or rows[2]["missing"] == "faiss-cpu is not installed: pip install faiss-cpu"


def test_what_does_not_exist_is_named() -> None:
    for call, message in (
        (lambda: suite("huge"), "unknown suite 'huge': expected one of small, full"),
        (lambda: choose_device("gpux"), "unknown device 'gpux'"),
        (lambda: run_suite(TINY, CPU, tasks=["search"]), "unknown task 'search'"),
    ):
        with pytest.raises(ArcvqError, match=message):
            call()


def test_the_command_writes_numbers_and_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SUITES, "small", TINY)
    out, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    assert main(["bench", "--seconds", "0", "--device", "cpu", "--out", str(out), "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    assert "layer: N = 64, K = 32, D = 8" in said
    assert "of limit" in said
    assert {row["task"] for row in json.loads(out.read_text())["rows"]} == {"assign", "arc", "samp", "layer"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_call_of_the_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Callable[[], int]] = [lambda: main(["bench", "--suite", "x"]), lambda: main(["bench", "--out", "."])]
    for call in calls:
        assert call() == 2
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["bench", "--seconds", "nan"])
    assert "expected a number of seconds, got 'nan'" in capsys.readouterr().err


def test_steps_are_measured_in_the_ways_that_are_asked_for() -> None:
    document = run_steps(CPU, presets=["sample/fsq"], ways=["fp32 eager"], limit=8, batch_size=8, seconds=0.0)
    assert [row["way"] for row in document["rows"]] == ["fp32 eager"]
    with pytest.raises(ArcvqError, match="--ways 'bf16 captured': on cpu there are 'fp32 eager'"):
        run_steps(CPU, presets=["sample/fsq"], ways=["bf16 captured"], limit=8, batch_size=8, seconds=0.0)


def test_steps_of_any_system_are_measured() -> None:
    presets = ["sample/vae", "sample/hvq-vae", "sample/vq-vae-ema"]
    saved: list[int] = []
    document = run_steps(
        CPU, presets=presets, limit=12, batch_size=8, seconds=0.0, save=lambda there: saved.append(len(there["rows"]))
    )
    assert [row["preset"] for row in document["rows"]] == presets
    assert saved == [1, 2, 3]  # an interruption loses one
    assert all(row["milliseconds"] > 0 and row["batch_size"] == 8 for row in document["rows"])


def test_the_steps_of_each_preset_begin_with_nothing_compiled() -> None:
    """Or one would be measured with what the others hold, and the ninth not compiled."""
    compiled = CompileCounter()

    @torch.compile(backend=compiled)
    def twice(value: torch.Tensor) -> torch.Tensor:
        return 2 * value

    def call(_: object) -> None:
        twice(torch.ones(3))
        twice(torch.ones(3))
        counts.append(compiled.frame_count)

    counts: list[int] = []
    call(None)
    run_steps(CPU, presets=["sample/fsq", "sample/lfq"], limit=8, batch_size=8, seconds=0.0, save=call)
    assert counts == [1, 2, 3]
