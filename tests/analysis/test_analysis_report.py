"""The page is well-formed, self-contained, escaped and small, and states the right numbers."""

import dataclasses
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from arcvq.analysis import EvaluationResult, RunHistory, illustrations, write_report
from arcvq.analysis.comparison import compare_metrics
from arcvq.analysis.page import generated_section, settings_table
from arcvq.analysis.settings import differing_settings
from arcvq.errors import ArcvqError

Pictures = tuple[torch.Tensor, dict[str, torch.Tensor]]

VOID_ELEMENTS = {"meta", "img", "source", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Parses the page, checks that every element is closed in order, and collects elements and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.folded: list[str] = []  # text inside <details>
        self.feed(text.replace("<wbr>", ""))
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
    """Skip the drawing, for tests of the page's text."""
    monkeypatch.setattr("arcvq.analysis.figures.embedding.MAP_LIMIT", 9)
    monkeypatch.setattr("arcvq.analysis.page.render_png", lambda figure, resolution: b"a figure")


@pytest.fixture(scope="session")
def report_file(
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
def page(report_file: Path) -> Page:
    return Page(report_file.read_text(encoding="utf-8"))


def test_report_is_one_small_file(report_file: Path) -> None:
    assert [path.name for path in report_file.parent.iterdir()] == ["index.html"]
    assert report_file.stat().st_size < 4_000_000


def test_page_loads_nothing_external(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "srcset", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    assert not page.named("script")
    assert not page.named("link")


def test_stylesheet_loads_nothing(report_file: Path) -> None:
    style = re.search(r"<style>(.*?)</style>", report_file.read_text(encoding="utf-8"), re.DOTALL)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)


def test_images_have_alt_text_and_links_have_targets(page: Page) -> None:
    images = page.named("img")
    assert len(images) == 2 + 8  # a code grid per run, eight figures
    assert len(page.named("source")) == 8  # the figures again, for phones
    assert all(len(image["alt"] or "") > 10 for image in images)
    targets = [attributes["id"] for attributes in page.named("section")]
    assert targets[:4] == ["summary", "reconstructions", "metrics", "diagnosis"]
    assert [(link["href"] or "")[1:] for link in page.named("a")] == targets[1:]
    assert page.named("html") == [{"lang": "en"}]


def test_title_and_notes_are_escaped(report_file: Path, page: Page) -> None:
    source = report_file.read_text(encoding="utf-8")
    assert "<script>" not in source
    assert "Two codebooks &lt;&amp; one&gt; budget" in source
    assert "<script>alert('note')</script>" in page.text


def test_page_states_measured_facts(page: Page) -> None:
    facts = ["9 of 96", "90 of 96", "abc123def456", "quantizer.ball.alpha", "87 of 96 codes (91%)", "No symptom found"]
    assert [fact for fact in facts if fact not in page.text] == []
    assert "training.seed" not in page.text


def test_metrics_have_labels_and_details_are_folded(page: Page) -> None:
    folded = " ".join(page.folded)
    assert "uniformity" in folded
    assert "near duplicates, by distance" in folded
    assert "PSNR" not in folded
    assert "near_duplicate_share" not in page.text


def test_best_value_is_bold_and_missing_has_reason(report_file: Path, page: Page) -> None:
    source = report_file.read_text(encoding="utf-8")
    bold = re.findall(r"<td><strong>([^<]*)", source)
    assert bold == ["0.0340", "25.40", "93.8%"]  # SSIM is a tie
    assert page.text.count("the Inception weights are not on this machine") == 2


@pytest.mark.usefixtures("quick_figures")
def test_captions_state_numbers(collapsed: RunHistory, healthy: RunHistory, pictures: Pictures) -> None:
    runs = [collapsed, healthy]
    captions = {one.anchor: one.caption for one in illustrations.make_illustrations(runs)}
    half = illustrations.codes_for_half_of_tokens(collapsed.last_snapshot)
    counts = sorted(collapsed.last_snapshot.counts.tolist(), reverse=True)
    assert sum(counts[:half]) >= sum(counts) / 2 > sum(counts[: half - 1])
    facts = {
        "usage": [f"9.4%, perplexity {collapsed.last_snapshot.perplexity:.0f}", "93.8%", "rises late"],
        "map": ["vq-vae has 87 unused codes", "arcvq-vae has 6 unused codes"],
        "norms": ["and 0.01 (unused)", "bounds the codes of arcvq-vae"],
        "distances": ["vq-vae has 87 near duplicates", "arcvq-vae has 0"],
        "frequency": [f"vq-vae needs {half} of 96 codes"],
        "quality": ["23.99 dB", "26.99 dB"],
        "losses": ["the reconstruction term is"],
    }
    for anchor, expected in facts.items():
        assert [fact for fact in expected if fact not in captions[anchor]] == [], anchor


@pytest.mark.usefixtures("quick_figures")
def test_caption_of_reconstructions_counts_the_images_of_both_figures(pictures: Pictures) -> None:
    def caption(count: int) -> str:
        originals, reconstructions = pictures[0][:count], {name: images[:count] for name, images in pictures[1].items()}
        return illustrations.reconstructions_illustration(originals, reconstructions, {}).caption

    assert "Mean PSNR over 8 images, of which a narrow screen shows 5: vq-vae " in caption(8)
    assert "Mean PSNR over 5 images: vq-vae " in caption(5)


def test_generated_images_are_enlarged_by_whole_factors_of_their_width() -> None:
    section = generated_section(torch.zeros(1, 60, 100, dtype=torch.uint8), "Made of noise.")[2]
    assert '<figure><picture><img class="generated" style="--width: 100px" ' in section
    Page(section)


@pytest.mark.usefixtures("quick_figures")
def test_caption_warns_of_different_objectives(collapsed: RunHistory, healthy: RunHistory) -> None:
    other = dataclasses.replace(healthy, config={**healthy.config, "objective": {"reconstruction": "l1"}})
    assert "nor are the reconstruction terms" in illustrations.losses_illustration([collapsed, other]).caption


@pytest.mark.usefixtures("quick_figures")
def test_caption_of_an_objective_of_several_terms_names_no_reconstruction_term(healthy: RunHistory) -> None:
    lines = tuple(
        {"l1" if key == "reconstruction" else key: value for key, value in line.items()} for line in healthy.train
    )
    caption = illustrations.losses_illustration([dataclasses.replace(healthy, train=lines)]).caption
    assert caption.endswith("Totals of different systems are not comparable.")


@pytest.mark.usefixtures("quick_figures")
def test_caption_mentions_sampling_of_large_codebook(healthy: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "are shown" not in illustrations.code_map_illustration([healthy]).caption
    monkeypatch.setattr(illustrations, "MAP_LIMIT", 50)
    assert "50 codes are shown" in illustrations.code_map_illustration([healthy]).caption


def test_different_protocol_hashes_have_no_best(collapsed: RunHistory, healthy: RunHistory) -> None:
    changed = dataclasses.replace(healthy.results["exact"], protocol_hash="other")
    (group,) = compare_metrics([collapsed, dataclasses.replace(healthy, results={"exact": changed})])
    assert group.warning
    assert not any(cell.best for row in (*group.rows, *group.details) for cell in row.cells)


def test_run_without_evaluation_adds_logged_group(collapsed: RunHistory, healthy: RunHistory) -> None:
    exact, logged = compare_metrics([collapsed, dataclasses.replace(healthy, results={})])
    assert exact.rows[0].cells[1].text is None
    assert exact.rows[0].cells[1].reason == "not evaluated under “exact”"
    assert not exact.rows[0].cells[0].best  # the only value
    assert logged.title == "Last evaluation during training"
    usage = next(row for row in logged.rows if row.metric == "usage")
    assert [cell.text for cell in usage.cells] == ["9.4%", "93.8%"]


def test_unknown_metric_has_no_best(collapsed: RunHistory, healthy: RunHistory) -> None:
    results = [
        EvaluationResult("exact", "h", metrics={"mystery": value}, missing={}, images=None) for value in (1.0, 2.0)
    ]
    runs = [dataclasses.replace(run, results={"exact": one}) for run, one in zip((collapsed, healthy), results)]
    (group,) = compare_metrics(runs)
    (row,) = group.details
    assert (row.label, row.direction) == ("mystery", "")
    assert not any(cell.best for cell in row.cells)


def test_settings_table_lists_only_differences(collapsed: RunHistory, healthy: RunHistory) -> None:
    rows = dict(differing_settings([collapsed, healthy]))
    assert rows["system"] == ["vq-vae", "arcvq-vae"]
    assert rows["quantizer.arc.margin"] == ["—", "0.1"]
    assert rows["quantizer.arc"] == ["none", "present"]
    assert not any(key.startswith(("training", "data", "autoencoder", "objective")) for key in rows)
    assert differing_settings([healthy, healthy]) == []


def test_keys_of_settings_break_after_dots(report_file: Path) -> None:
    assert "<code>quantizer.<wbr>arc.<wbr>margin</code>" in report_file.read_text(encoding="utf-8")


def test_heads_of_tables_wrap_on_a_phone_only_where_they_are_crowded(healthy: RunHistory) -> None:
    def table(*names: str) -> str:
        return settings_table(
            [dataclasses.replace(healthy, name=name) for name in names], [("key", ["1"] * len(names))]
        )

    assert "<table>" in table("vq-vae", "arcvq-vae")
    assert '<table class="crowded">' in table("vq-vae", "arcvq-vae-seed1")
    assert '<table class="crowded">' in table("a", "b", "c")


@pytest.mark.usefixtures("quick_figures")
def test_html_in_run_name_is_escaped(write_run_folder: Callable[..., Path], pictures: Pictures, tmp_path: Path) -> None:
    name = '<img src="http://example.org/x.png" onerror="x">'
    run = RunHistory.load(write_run_folder(tmp_path / "run", system="vq-vae", codes=8, used=3), name=name)
    originals, reconstructions = pictures
    path = write_report(
        [run], tmp_path / "out", originals=originals, reconstructions={name: reconstructions["vq-vae"]}, title="One"
    )
    page = Page(path.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 1 + 8
    assert all((image["src"] or "").startswith("data:") for image in page.named("img"))
    assert "Last evaluation during training" in page.text


@pytest.mark.usefixtures("quick_figures")
def test_diverged_run_gets_page(write_run_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run", system="vq-vae", codes=8, used=3)
    broken = {"codebook": torch.full((8, 8), float("nan")), "counts": torch.zeros(8, dtype=torch.int64)}
    save_file(broken, folder / "codebooks" / "step-00000400.safetensors")
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": NaN}\n', encoding="utf-8")
    path = write_report([RunHistory.load(folder)], tmp_path / "out", title="Diverged")
    text = Page(path.read_text(encoding="utf-8")).text
    assert "8 of 8 codes hold NaN" in text
    assert "1 of 1 logged steps" in text
    assert " nan" not in text


@pytest.mark.usefixtures("quick_figures")
def test_run_without_codebook_gets_page(
    collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path: Path
) -> None:
    originals, reconstructions = pictures
    vae = dataclasses.replace(healthy, name="vae", snapshots=(), results={})
    reconstructions = {"vae": reconstructions["arcvq-vae"], "vq-vae": reconstructions["vq-vae"]}
    both = write_report(
        [vae, collapsed], tmp_path / "both", originals=originals, reconstructions=reconstructions, title="Both"
    )
    page = Page(both.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 1 + 8  # one code grid, all figures
    assert [heading for heading in page.words if heading in ("vae", "vq-vae")][:2] == ["vq-vae", "vae"]
    alone = write_report([vae], tmp_path / "alone", title="Alone")
    page = Page(alone.read_text(encoding="utf-8"))
    assert len(page.named("img")) == 2  # quality and losses
    assert "no codebook" in page.text


@pytest.mark.parametrize(
    ("case", "expected"),
    [("no runs", "at least one run"), ("same name", "vq-vae"), ("unknown name", "of x"), ("float images", "uint8")],
)
def test_wrong_arguments_raise_and_write_nothing(
    case: str, expected: str, collapsed: RunHistory, healthy: RunHistory, pictures: Pictures, tmp_path: Path
) -> None:
    originals, reconstructions = pictures
    runs = {"no runs": [], "same name": [collapsed, collapsed]}.get(case, [collapsed, healthy])
    reconstructions = {**reconstructions, **({"x": originals} if case == "unknown name" else {})}
    with pytest.raises(ArcvqError, match=expected):
        write_report(
            runs,
            tmp_path / "out",
            originals=originals.float() if case == "float images" else originals,
            reconstructions=reconstructions if runs else {},
            title="t",
        )
    assert not (tmp_path / "out").exists()
