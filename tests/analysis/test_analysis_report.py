"""The page: well-formed, self-contained, escaped, small, and right."""

import dataclasses
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from arcvq.analysis import EvaluationResult, RunHistory, illustrations, write_report
from arcvq.analysis.comparison import compare
from arcvq.analysis.settings import differing_settings
from arcvq.errors import ArcvqError

Pictures = tuple[torch.Tensor, dict[str, torch.Tensor]]

VOID_ELEMENTS = {"meta", "img", "source", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that every element is closed in order, and gathers what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.folded: list[str] = []  # of them, those inside <details>
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
        if "details" in self.open:
            self.folded.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that ask about the words: the figures have tests of their own."""
    monkeypatch.setattr("arcvq.analysis.figures.embedding.MAP_LIMIT", 9)
    monkeypatch.setattr("arcvq.analysis.page.render_png", lambda figure, resolution: b"a figure")


@pytest.fixture(scope="session")
def written(
    collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    originals, reconstructions = pictures
    return write_report(
        [collapsed, healthy],
        tmp_path_factory.mktemp("page") / "new" / "report",
        originals=originals,
        rebuilt=reconstructions,
        title="Two codebooks <& one> budget",
        notes=["<script>alert('note')</script>"],
    )


@pytest.fixture(scope="session")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_one_file_that_can_be_mailed_is_written(written: Path) -> None:
    assert [path.name for path in written.parent.iterdir()] == ["index.html"]
    assert written.stat().st_size < 4_000_000


def test_nothing_outside_the_page_is_needed(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "srcset", "href"):
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
    assert len(page.named("source")) == 8  # the figures again, for phones
    assert all(len(image["alt"] or "") > 10 for image in images)
    targets = [attributes["id"] for attributes in page.named("section")]
    assert targets[:4] == ["summary", "reconstructions", "metrics", "diagnosis"]
    assert [(link["href"] or "")[1:] for link in page.named("a")] == targets[1:]
    assert page.named("html") == [{"lang": "en"}]


def test_what_comes_from_outside_is_escaped(written: Path, page: Page) -> None:
    source = written.read_text(encoding="utf-8")
    assert "<script>" not in source
    assert "Two codebooks &lt;&amp; one&gt; budget" in source
    assert "<script>alert('note')</script>" in page.text


def test_the_page_says_what_was_measured(page: Page) -> None:
    facts = ["9 of 96", "90 of 96", "abc123def456", "quantizer.ball.alpha", "87 of 96 codes (91%)", "No symptom found"]
    assert [fact for fact in facts if fact not in page.text] == []
    assert "training.seed" not in page.text


def test_metrics_go_by_names_that_people_read_and_the_others_are_folded_away(page: Page) -> None:
    folded = " ".join(page.folded)
    assert "uniformity" in folded
    assert "near duplicates, by distance" in folded
    assert "PSNR" not in folded
    assert "near_duplicate_share" not in page.text


def test_the_best_is_bold_and_the_missing_has_a_reason(written: Path, page: Page) -> None:
    source = written.read_text(encoding="utf-8")
    bold = re.findall(r"<td><strong>([^<]*)", source)
    assert bold == ["0.0340", "25.40", "93.8%"]  # SSIM is a tie
    assert page.text.count("the Inception weights are not on this machine") == 2


@pytest.mark.usefixtures("quick_figures")
def test_captions_carry_the_numbers(collapsed: RunHistory, healthy: RunHistory, pictures: Pictures) -> None:
    runs = [collapsed, healthy]
    captions = {one.anchor: one.caption for one in illustrations.illustrate(runs)}
    half = illustrations.busiest_for_half(collapsed.last_snapshot)
    counts = sorted(collapsed.last_snapshot.counts.tolist(), reverse=True)
    assert sum(counts[:half]) >= sum(counts) / 2 > sum(counts[: half - 1])
    facts = {
        "usage": [f"9.4%, perplexity {collapsed.last_snapshot.perplexity:.0f}", "93.8%", "wakes up late"],
        "map": ["vq-vae has 87 unused codes", "arcvq-vae has 6 unused codes"],
        "norms": ["and 0.01 (unused)", "bounds the codes of arcvq-vae"],
        "distances": ["vq-vae has 87 near duplicates", "arcvq-vae has 0"],
        "frequency": [f"vq-vae needs {half} of 96 codes"],
        "quality": ["23.99 dB", "26.99 dB"],
        "losses": ["the reconstruction term does"],
    }
    for anchor, expected in facts.items():
        assert [fact for fact in expected if fact not in captions[anchor]] == [], anchor


@pytest.mark.usefixtures("quick_figures")
def test_reconstruction_losses_of_other_objectives_are_not_compared(collapsed: RunHistory, healthy: RunHistory) -> None:
    other = dataclasses.replace(healthy, config={**healthy.config, "objective": {"reconstruction": "l1"}})
    assert "nor do the reconstruction terms" in illustrations.losses([collapsed, other]).caption


@pytest.mark.usefixtures("quick_figures")
def test_a_large_codebook_is_said_to_be_sampled(healthy: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "are shown" not in illustrations.code_map([healthy]).caption
    monkeypatch.setattr(illustrations, "MAP_LIMIT", 50)
    assert "50 codes are shown" in illustrations.code_map([healthy]).caption


def test_different_protocol_hashes_have_no_winner(collapsed: RunHistory, healthy: RunHistory) -> None:
    changed = dataclasses.replace(healthy.results["exact"], protocol_hash="other")
    (group,) = compare([collapsed, dataclasses.replace(healthy, results={"exact": changed})])
    assert group.warning
    assert not any(cell.best for row in (*group.rows, *group.details) for cell in row.cells)


def test_a_run_that_was_not_evaluated_is_missing_and_the_log_stands_in(
    collapsed: RunHistory, healthy: RunHistory
) -> None:
    exact, logged = compare([collapsed, dataclasses.replace(healthy, results={})])
    assert exact.rows[0].cells[1].text is None
    assert exact.rows[0].cells[1].reason == "not evaluated under “exact”"
    assert not exact.rows[0].cells[0].best  # alone, nothing is best
    assert logged.title == "Last evaluation during training"
    usage = next(row for row in logged.rows if row.metric == "usage")
    assert [cell.text for cell in usage.cells] == ["9.4%", "93.8%"]


def test_an_unknown_metric_has_no_winner(collapsed: RunHistory, healthy: RunHistory) -> None:
    results = [
        EvaluationResult("exact", "h", metrics={"mystery": value}, missing={}, images=None) for value in (1.0, 2.0)
    ]
    runs = [dataclasses.replace(run, results={"exact": one}) for run, one in zip((collapsed, healthy), results)]
    (group,) = compare(runs)
    (row,) = group.details
    assert (row.label, row.direction) == ("mystery", "")
    assert not any(cell.best for cell in row.cells)


def test_only_settings_that_differ_are_listed(collapsed: RunHistory, healthy: RunHistory) -> None:
    rows = dict(differing_settings([collapsed, healthy]))
    assert rows["system"] == ["vq-vae", "arcvq-vae"]
    assert rows["quantizer.arc.margin"] == ["—", "0.1"]
    assert not any(key.startswith(("training", "data", "tokenizer", "objective")) for key in rows)
    assert differing_settings([healthy, healthy]) == []


@pytest.mark.usefixtures("quick_figures")
def test_one_run_alone_and_hostile_names(run_writer: Callable[..., Path], pictures: Pictures, tmp_path: Path) -> None:
    name = '<img src="http://example.org/x.png" onerror="x">'
    run = RunHistory.load(run_writer(tmp_path / "run", system="vq-vae", codes=8, used=3), name=name)
    originals, reconstructions = pictures
    path = write_report(
        [run], tmp_path / "out", originals=originals, rebuilt={name: reconstructions["vq-vae"]}, title="One"
    )
    page = Page(path.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 1 + 8
    assert all((image["src"] or "").startswith("data:") for image in page.named("img"))
    assert "Last evaluation during training" in page.text


@pytest.mark.usefixtures("quick_figures")
def test_a_diverged_run_still_gets_its_page(run_writer: Callable[..., Path], tmp_path: Path) -> None:
    folder = run_writer(tmp_path / "run", system="vq-vae", codes=8, used=3)
    broken = {"codebook": torch.full((8, 8), float("nan")), "counts": torch.zeros(8, dtype=torch.int64)}
    save_file(broken, folder / "codebooks" / "step-00000400.safetensors")
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": NaN}\n', encoding="utf-8")
    path = write_report([RunHistory.load(folder)], tmp_path / "out", title="Diverged")
    text = Page(path.read_text(encoding="utf-8")).text
    assert "8 of 8 codes hold NaN" in text
    assert "1 of 1 logged steps" in text
    assert " nan" not in text


@pytest.mark.usefixtures("quick_figures")
def test_a_run_without_a_codebook_keeps_what_applies(
    collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path: Path
) -> None:
    originals, reconstructions = pictures
    vae = dataclasses.replace(healthy, name="vae", snapshots=(), results={})
    rebuilt = {"vae": reconstructions["arcvq-vae"], "vq-vae": reconstructions["vq-vae"]}
    both = write_report([vae, collapsed], tmp_path / "both", originals=originals, rebuilt=rebuilt, title="Both")
    page = Page(both.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 1 + 8  # one wall, all figures
    assert [heading for heading in page.words if heading in ("vae", "vq-vae")][:2] == ["vq-vae", "vae"]
    alone = write_report([vae], tmp_path / "alone", title="Alone")
    page = Page(alone.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 2  # quality and losses
    assert "no codebook" in page.text


@pytest.mark.parametrize(
    ("case", "expected"),
    [("no runs", "at least one run"), ("same name", "vq-vae"), ("stranger", "of x"), ("float images", "uint8")],
)
def test_a_wrong_call_is_refused_and_writes_nothing(
    case: str, expected: str, collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path: Path
) -> None:
    originals, reconstructions = pictures
    runs = {"no runs": [], "same name": [collapsed, collapsed]}.get(case, [collapsed, healthy])
    rebuilt = {**reconstructions, **({"x": originals} if case == "stranger" else {})}
    with pytest.raises(ArcvqError, match=expected):
        write_report(
            runs,
            tmp_path / "out",
            originals=originals.float() if case == "float images" else originals,
            rebuilt=rebuilt if runs else {},
            title="t",
        )
    assert not (tmp_path / "out").exists()
