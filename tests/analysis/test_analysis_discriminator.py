"""The report on trainings with a discriminator: its figure, its findings, the picture of the docs."""

import json
import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from arcvq import ArcvqError, analysis
from arcvq.analysis import Finding, RunHistory, diagnose, write_report
from arcvq.analysis.figures.style import run_colour
from arcvq.analysis.illustrations import make_illustrations

Writer = Callable[..., Path]
JOINED, STEPS = 200, 400
SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "make_discriminator_picture.py"
ADVERSARIAL = {"loss": "hinge", "weight": 0.8, "adaptive": True, "ramp_steps": 0, "discriminator_weight": 1.0, "r1": 0.0,
               "lecam": 0.0}  # fmt: skip
# By how far the training of the discriminator is, from 0 to 1.
HEALTHY: dict[str, Callable[[float], float]] = {
    "discriminator": lambda done: 1.0 - 0.3 * done,
    "adversarial": lambda done: 0.2 - 0.5 * done,
    "real_logits": lambda done: 0.6 * done,
    "fake_logits": lambda done: -0.6 * done,
    "generator_logits": lambda done: -0.6 * done,
    "adversarial_weight": lambda _: 0.8,
    "adversarial_gradient": lambda _: 0.02,
    "reconstruction_gradient": lambda _: 0.02,
    "perceptual": lambda done: 0.3 - 0.1 * done,
}


@pytest.fixture
def gan(write_run_folder: Writer, tmp_path: Path) -> Callable[..., RunHistory]:
    """Writes a run with a healthy codebook, whose discriminator joins halfway; `numbers` change its curves, `psnr` is what
    the evaluations after it lose, `settings` change its section adversarial."""

    def write(
        name: str = "run", *, psnr: float = 0.0, settings: dict[str, Any] | None = None, **numbers: Any
    ) -> RunHistory:
        folder = write_run_folder(tmp_path / name, system="arcvq-vae", used=90, bounded=True)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["adversarial"] = ADVERSARIAL | (settings or {})
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if line["step"] != STEPS or line["kind"] == "train"]
        # Evaluations at 100 and 200 come before it, at 300 and 400 after it.
        last = [line for line in lines if line["kind"] == "eval"][-1]
        lines += [last | {"step": step, "psnr": last["psnr"] - psnr} for step in (300, STEPS)]
        for line in lines:
            if line["kind"] == "train":
                line["tokenizer_loss"] = line.pop("loss")
                line["perceptual"] = 0.3
                if line["step"] > JOINED:
                    done = (line["step"] - JOINED) / (STEPS - JOINED)
                    line |= {key: curve(done) for key, curve in (HEALTHY | numbers).items()}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return RunHistory.load(folder)

    return write


def finding(run: RunHistory) -> Finding:
    """The run's only finding."""
    (found,) = diagnose(run)
    return found


def test_healthy_discriminator_has_no_findings(gan: Callable[..., RunHistory]) -> None:
    assert diagnose(gan()) == []


@pytest.mark.parametrize(
    ("curves", "facts"),
    [
        ({"discriminator": lambda done: max(0.02, 1 - 2 * done)}, ["ends at 0.02", "it is 1"]),
        ({"real_logits": lambda done: 10 * done, "fake_logits": lambda done: -8 * done}, ["15.8 apart, after 11.3"]),
    ],
    ids=["loss", "logits"],
)
def test_winning_discriminator_is_found(
    curves: dict[str, Any], facts: list[str], gan: Callable[..., RunHistory]
) -> None:
    found = finding(gan(**curves))
    assert found.symptom == "discriminator wins"
    assert all(fact in found.evidence for fact in facts)
    assert found.remedy == (
        "let the discriminator start later (adversarial.start), raise its weight slowly (adversarial.ramp_steps), "
        "add adversarial.lecam: 0.001, add adversarial.r1, or give it a lower learning rate"
    )


def test_remedy_leaves_out_what_the_run_does(gan: Callable[..., RunHistory]) -> None:
    settings = {"ramp_steps": 50, "lecam": 0.001, "r1": 1.0}
    remedy = finding(gan(settings=settings, discriminator=lambda _: 0.01)).remedy
    assert remedy == "let the discriminator start later (adversarial.start), or give it a lower learning rate"


def test_loss_is_judged_by_its_kind_and_weight(gan: Callable[..., RunHistory]) -> None:
    settings = {"loss": "logistic", "discriminator_weight": 0.1}
    evidence = finding(gan(settings=settings, discriminator=lambda _: 0.013)).evidence
    assert f"it is {0.1 * 2 * math.log(2):.3g}" in evidence
    assert diagnose(gan("other", settings=settings, discriminator=lambda _: 0.1)) == []


def test_logits_that_are_far_apart_but_do_not_drift_are_no_finding(gan: Callable[..., RunHistory]) -> None:
    assert diagnose(gan(real_logits=lambda _: 5.0, fake_logits=lambda _: -5.0)) == []


def test_vanished_gradient_is_found(gan: Callable[..., RunHistory]) -> None:
    # As the adaptive weight is computed: 0.8 · reconstruction / (adversarial + 1e-4).
    run = gan(adversarial_gradient=lambda _: 2e-7, adversarial_weight=lambda _: 0.8 * 0.02 / (2e-7 + 1e-4))
    found = finding(run)
    assert found.symptom == "adversarial gradient vanished"
    assert "ends at 2e-07 and that of all other terms at 0.02, with a weight of 160" in found.evidence
    assert "lower learning rate" in found.remedy


def test_weight_at_its_bound_is_found(gan: Callable[..., RunHistory]) -> None:
    curves = {"reconstruction_gradient": lambda _: 1.5, "adversarial_gradient": lambda _: 1e-5}
    found = finding(gan(adversarial_weight=lambda _: 0.8e4, **curves))
    assert found.symptom == "adversarial gradient vanished"
    assert "with a weight of 8e+03, its bound" in found.evidence


def test_gradients_are_not_judged_during_the_ramp_or_without_a_decoder_that_learns(
    gan: Callable[..., RunHistory],
) -> None:
    assert diagnose(gan("ramp", settings={"ramp_steps": 10_000}, adversarial_weight=lambda _: 1e-4)) == []
    none = {"adversarial_gradient": lambda _: 0.0, "reconstruction_gradient": lambda _: 0.0}
    assert diagnose(gan("encoder", **none)) == []


def test_psnr_that_fell_with_lpips_is_found(gan: Callable[..., RunHistory]) -> None:
    run = gan(psnr=2.5, perceptual=lambda _: 0.4)
    found = finding(run)
    last = run.evaluation_series("psnr").values[-1]
    assert found.symptom == "worse with the discriminator"
    assert f"PSNR was {last + 2.5:.2f} dB" in found.evidence
    assert f"(step 201) and ends at {last:.2f} dB; the LPIPS term went from 0.3 to 0.4" in found.evidence
    assert found.remedy == "lower adversarial.weight"


def test_psnr_that_fell_a_little_or_for_a_better_lpips_is_no_finding(gan: Callable[..., RunHistory]) -> None:
    assert diagnose(gan("little", psnr=0.9, perceptual=lambda _: 0.4)) == []
    assert diagnose(gan("better", psnr=2.5)) == []


def test_figure_shows_the_numbers_of_the_runs_that_have_them(
    gan: Callable[..., RunHistory], collapsed: RunHistory
) -> None:
    run = gan()
    logits, loss, weight, gradients = analysis.discriminator_health([collapsed, run]).axes
    assert [text.get_text() for text in logits.get_legend().get_texts()] == ["run, images", "run, reconstructions"]
    assert logits.lines[0].get_ydata()[-1] == pytest.approx(0.6)
    assert logits.lines[2].get_ydata()[-1] == pytest.approx(-0.6)
    assert [line.get_linestyle() for line in logits.lines] == ["-", "-", "-", "--"]
    assert loss.lines[0].get_ydata()[-1] == pytest.approx(0.7)
    assert [panel.get_yscale() for panel in (logits, loss, weight, gradients)] == ["linear", "linear", "log", "log"]
    assert {line.get_color() for line in gradients.lines} == {run_colour(1)}  # its place in the report


def test_report_has_the_figure_only_for_runs_with_a_discriminator(
    gan: Callable[..., RunHistory], healthy: RunHistory, tmp_path: Path
) -> None:
    assert "discriminator" not in [each.anchor for each in make_illustrations([healthy])]
    run = gan(discriminator=lambda _: 0.01)
    *_, last = make_illustrations([healthy, run])
    assert last.anchor == "discriminator"
    assert "run ends with a loss of 0.01, logits of images at 0.587, of reconstructions at -0.587" in last.caption
    assert "arcvq-vae" not in last.caption
    page = write_report([healthy, run], tmp_path / "page", title="two").read_text()
    assert 'id="discriminator"' in page
    assert "discriminator wins" in page


def test_loss_that_becomes_negative_is_drawn_whole_on_a_linear_scale(gan: Callable[..., RunHistory]) -> None:
    panels = {one.get_title(loc="left"): one for one in analysis.loss_curves([gan()]).axes}
    assert {"total of the tokenizer", "adversarial", "discriminator"} <= set(panels)
    assert (panels["adversarial"].get_yscale(), panels["discriminator"].get_yscale()) == ("linear", "log")
    raw, smoothed = panels["adversarial"].lines
    assert len(raw.get_ydata()) == STEPS - JOINED
    assert raw.get_ydata()[-1] == pytest.approx(-0.3)
    assert smoothed.get_ydata()[-1] < 0


def test_nan_in_the_tokenizers_total_is_found(gan: Callable[..., RunHistory]) -> None:
    found = finding(gan(tokenizer_loss=lambda done: None if done > 0.5 else 1.0))
    assert "first at step 301" in found.evidence


def test_picture_of_the_docs_shows_a_healthy_run_above_a_sick_one(gan: Callable[..., RunHistory]) -> None:
    draw = runpy.run_path(str(SCRIPT))["draw"]
    healthy, sick = gan("healthy").path, gan("sick", discriminator=lambda _: 0.01).path
    panels = draw(healthy, sick).axes
    assert [panel.get_title(loc="left") for panel in panels] == [
        "Healthy: logits",
        "Healthy: loss of the discriminator",
        "Discriminator wins: logits",
        "Discriminator wins: loss of the discriminator",
    ]
    assert [panels[number].lines[0].get_ydata()[-1] for number in (1, 3)] == pytest.approx([0.7, 0.01])
    with pytest.raises(ArcvqError, match="sick: expected a healthy run"):
        draw(sick, healthy)


def test_picture_of_a_run_without_a_discriminator_is_refused_in_one_line(healthy: RunHistory) -> None:
    command = [sys.executable, str(SCRIPT), str(healthy.path), str(healthy.path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "logged no discriminator" in done.stderr
    assert done.stderr.count("\n") == 1
