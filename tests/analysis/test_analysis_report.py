"""The page: well-formed, self-contained, escaped, small, and right."""

import dataclasses
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from arcvq.analysis import EvaluationResult, RunHistory, captions, report, write_report
from arcvq.analysis.comparison import compare, format_metric
from arcvq.analysis.settings import differing_settings
from arcvq.errors import ArcvqError

Pictures = tuple[torch.Tensor, dict[str, torch.Tensor]]

VOID_ELEMENTS = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that every element is closed in order, and gathers what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="session")
def written(
    collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    originals, reconstructions = pictures
    return write_report(
        [collapsed, healthy],
        tmp_path_factory.mktemp("page") / "new" / "report",
        originals=originals,
        reconstructions=reconstructions,
        title="Two codebooks <& one> budget",
        notes=["<script>alert('note')</script>"],
    )


@pytest.fixture(scope="session")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_one_small_file_is_written(written: Path) -> None:
    assert written.name == "index.html"
    assert [path.name for path in written.parent.iterdir()] == ["index.html"]
    assert written.stat().st_size < 4_000_000


def test_nothing_outside_the_page_is_needed(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    assert not page.named("script")
    assert not page.named("link")


def test_the_stylesheet_loads_nothing(written: Path) -> None:
    style = re.search(r"<style>(.*?)</style>", written.read_text(encoding="utf-8"), re.DOTALL)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)


def test_every_image_has_a_text_and_every_link_a_target(page: Page) -> None:
    images = page.named("img")
    assert len(images) == 2 + 8  # a wall per run, eight figures
    assert all(len(image["alt"] or "") > 10 for image in images)
    targets = {attributes["id"] for attributes in page.named("section")}
    links = [link["href"] for link in page.named("a")]
    assert len(links) == 13
    assert all((link or "")[1:] in targets for link in links)
    assert page.named("html") == [{"lang": "en"}]


def test_what_comes_from_outside_is_escaped(written: Path, page: Page) -> None:
    source = written.read_text(encoding="utf-8")
    assert "<script>" not in source
    assert "Two codebooks &lt;&amp; one&gt; budget" in source
    assert "<script>alert('note')</script>" in page.text


def test_the_page_says_what_was_measured(page: Page) -> None:
    assert "vq-vae uses 9 of 96 codes; arcvq-vae uses 90 of 96 codes." in page.text
    assert "abc123def456" in page.text
    assert "Protocol “exact”" in page.text
    assert "quantizer.ball.alpha" in page.text
    assert "training.seed" not in page.text
    assert "87 of 96 codes (91%) receive no token" in page.text
    assert "No symptom found." in page.text


def test_the_best_is_bold_and_the_missing_has_a_reason(written: Path) -> None:
    source = written.read_text(encoding="utf-8")
    assert '<td>22.10</td><td class="best"><strong>25.40</strong></td>' in source
    assert '<td>0.0510</td><td class="best"><strong>0.0340</strong></td>' in source
    assert "<td>0.7100</td><td>0.7100</td>" in source  # a tie has no winner
    missing = (
        '<td class="missing">missing<span class="reason">the Inception weights are not on this machine</span></td>'
    )
    assert source.count(missing) == 2


def test_captions_carry_the_numbers(collapsed: RunHistory, healthy: RunHistory, pictures: Pictures) -> None:
    runs = [collapsed, healthy]
    perplexity = f"{collapsed.last_snapshot.perplexity:.0f}"
    assert f"vq-vae ends at 9%, perplexity {perplexity}; arcvq-vae ends at 94%" in captions.usage_caption(runs)
    assert "vq-vae has 87 unused codes; arcvq-vae has 6 unused codes" in captions.map_caption(runs)
    assert "and 0.01 (unused)" in captions.norm_caption(runs)
    assert "ball that no code of arcvq-vae may leave" in captions.norm_caption(runs)
    assert "vq-vae has 87 codes with a near-twin; arcvq-vae has 0" in captions.distance_caption(runs)
    half = captions.busiest_for_half(collapsed.last_snapshot)
    counts = sorted(collapsed.last_snapshot.counts.tolist(), reverse=True)
    assert sum(counts[:half]) >= sum(counts) / 2 > sum(counts[: half - 1])
    assert f"vq-vae needs {half} of 96 codes" in captions.frequency_caption(runs)
    assert "vq-vae ends at 23.99 dB; arcvq-vae ends at 26.99 dB" in captions.quality_caption(runs)
    assert "the reconstruction term does: vq-vae ends at" in captions.loss_caption(runs)
    originals, reconstructions = pictures
    assert "On these 8 images vq-vae reaches 1" in captions.reconstruction_caption(originals, reconstructions)


def test_reconstruction_losses_of_other_objectives_are_not_compared(collapsed: RunHistory, healthy: RunHistory) -> None:
    other = dataclasses.replace(healthy, config={**healthy.config, "objective": {"reconstruction": "l1"}})
    assert "nor do the reconstruction terms" in captions.loss_caption([collapsed, other])


def test_a_large_codebook_is_said_to_be_sampled(healthy: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "are shown" not in captions.map_caption([healthy])
    monkeypatch.setattr(captions, "MAP_LIMIT", 50)
    assert "50 codes are shown, evenly spaced by rank of use" in captions.map_caption([healthy])


def test_different_protocol_hashes_have_no_winner(collapsed: RunHistory, healthy: RunHistory) -> None:
    changed = dataclasses.replace(healthy.results["exact"], protocol_hash="other")
    (group,) = compare([collapsed, dataclasses.replace(healthy, results={"exact": changed})])
    assert "do not compare" in group.warning
    assert not any(cell.best for row in group.rows for cell in row.cells)


def test_a_run_that_was_not_evaluated_is_missing_and_the_log_stands_in(
    collapsed: RunHistory, healthy: RunHistory
) -> None:
    exact, logged = compare([collapsed, dataclasses.replace(healthy, results={})])
    assert exact.rows[0].cells[1].text is None
    assert exact.rows[0].cells[1].reason == "not evaluated under “exact”"
    assert not exact.rows[0].cells[0].best  # alone, nothing is best
    assert logged.title == "Last evaluation during training"
    assert [cell.text for cell in logged.rows[0].cells] == ["9.4%", "93.8%"]


def test_an_unknown_metric_has_no_winner(collapsed: RunHistory, healthy: RunHistory) -> None:
    results = [
        EvaluationResult("exact", "h", metrics={"mystery": value}, missing={}, images=None, seconds=None)
        for value in (1.0, 2.0)
    ]
    runs = [dataclasses.replace(run, results={"exact": one}) for run, one in zip((collapsed, healthy), results)]
    (group,) = compare(runs)
    assert (group.rows[0].label, group.rows[0].direction) == ("mystery", "")
    assert not any(cell.best for cell in group.rows[0].cells)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [("usage", 0.83, "83.0%"), ("psnr", 25.4, "25.40"), ("l1", 0.00004, "4.000e-05"), ("l1", 0.0, "0.0000")],
)
def test_numbers_are_printed_at_a_fitting_length(metric: str, value: float, text: str) -> None:
    assert format_metric(metric, value) == text


def test_only_settings_that_differ_are_listed(collapsed: RunHistory, healthy: RunHistory) -> None:
    rows = dict(differing_settings([collapsed, healthy]))
    assert rows["system"] == ["vq-vae", "arcvq-vae"]
    assert rows["quantizer.arc.margin"] == ["—", "0.1"]
    assert not any(key.startswith(("training", "data", "tokenizer", "objective")) for key in rows)
    assert differing_settings([healthy, healthy]) == []


def test_one_run_alone_and_hostile_names(run_writer: Callable[..., Path], pictures: Pictures, tmp_path: Path) -> None:
    name = '<img src="http://example.org/x.png" onerror="x">'
    run = RunHistory.load(run_writer(tmp_path / "run", system="vq-vae", codes=8, used=3), name=name)
    originals, reconstructions = pictures
    path = write_report(
        [run], tmp_path / "out", originals=originals, reconstructions={name: reconstructions["vq-vae"]}, title="One"
    )
    page = Page(path.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 1 + 8
    assert all((image["src"] or "").startswith("data:") for image in page.named("img"))
    assert "not evaluated under a protocol" in page.text
    assert "There is one run" in page.text
    assert "Last evaluation during training" in page.text


def test_a_diverged_run_still_gets_its_page(
    run_writer: Callable[..., Path], pictures: Pictures, tmp_path: Path
) -> None:
    folder = run_writer(tmp_path / "run", system="vq-vae", codes=8, used=3)
    broken = {"codebook": torch.full((8, 8), float("nan")), "counts": torch.zeros(8, dtype=torch.int64)}
    save_file(broken, folder / "codebooks" / "step-00000400.safetensors")
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": NaN}\n', encoding="utf-8")
    originals, reconstructions = pictures
    path = write_report(
        [RunHistory.load(folder)],
        tmp_path / "out",
        originals=originals,
        reconstructions={"run": reconstructions["vq-vae"]},
        title="Diverged",
    )
    text = Page(path.read_text(encoding="utf-8")).text
    assert "8 of 8 codes hold NaN" in text
    assert "1 of 1 logged steps" in text
    assert " nan" not in text


@pytest.mark.parametrize("case", ["no runs", "same name", "no reconstruction", "stranger", "float images"])
def test_wrong_calls_end_in_one_line(
    case: str, collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path: Path
) -> None:
    originals, reconstructions = pictures
    runs = [collapsed, healthy]
    if case == "no runs":
        runs, expected = [], "at least one run"
    elif case == "same name":
        runs, expected = [collapsed, collapsed], "several runs are called vq-vae"
    elif case == "no reconstruction":
        reconstructions, expected = {}, "exactly the runs vq-vae, arcvq-vae; found none"
    elif case == "stranger":
        reconstructions, expected = {**reconstructions, "x": originals}, "found vq-vae, arcvq-vae, x"
    else:
        originals, expected = originals.float(), "uint8"
    with pytest.raises(ArcvqError) as raised:
        write_report(runs, tmp_path / "out", originals=originals, reconstructions=reconstructions, title="t")
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_page_beyond_the_limit_gets_coarser_then_refuses(
    collapsed: RunHistory, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    originals, reconstructions = pictures
    tried: list[int] = []

    def counted(_: object, resolution: int) -> bytes:
        tried.append(resolution)
        return b"x" * resolution * 100

    monkeypatch.setattr(report, "illustrate", lambda *_: [report.Illustration("a", "A", None, "c", "a figure")])
    monkeypatch.setattr(report, "render_png", counted)
    given = {"originals": originals, "reconstructions": {"vq-vae": reconstructions["vq-vae"]}, "title": "t"}
    largest = len(write_report([collapsed], tmp_path / "a", **given).read_bytes())
    monkeypatch.setattr(report, "LARGEST_PAGE", largest)
    tried.clear()
    write_report([collapsed], tmp_path / "b", **given)
    assert tried == [150, 110]
    monkeypatch.setattr(report, "LARGEST_PAGE", 100)
    with pytest.raises(ArcvqError, match="compare fewer runs"):
        write_report([collapsed], tmp_path / "c", **given)
    assert not (tmp_path / "c").exists()
