"""Tokenizers without codes: they reconstruct, refuse tokens in one line, and work with every command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import ArcvqError, Tokenizer
from arcvq.analysis import RunHistory
from arcvq.cli import main
from arcvq.data import to_unit, write_png
from arcvq.systems import dry_run, load_config, measure, train
from arcvq.tasks import Reconstructor


@pytest.fixture(scope="module", params=["vae", "hyperspherical-vae"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_system: Callable[..., Any]
) -> Path:
    folder = tmp_path_factory.mktemp("continuous") / request.param
    train(tiny_system(request.param), folder, quiet=True)
    return folder


def test_reconstruction_is_deterministic_and_survives_loading(run: Path, sample_pixels: torch.Tensor) -> None:
    tokenizer, images = Tokenizer.from_pretrained(run), to_unit(sample_pixels)
    copies = tokenizer.reconstruct(images)
    assert copies.shape == images.shape
    assert torch.equal(tokenizer.reconstruct(images), copies)
    assert torch.equal(Tokenizer.from_pretrained(run).reconstruct(images), copies)
    torch.testing.assert_close(tokenizer.decode_latents(tokenizer.latents(images)), copies)


def test_reconstruct_works_in_batches_and_half_precision(run: Path, sample_pixels: torch.Tensor) -> None:
    tokenizer, images = Tokenizer.from_pretrained(run), to_unit(sample_pixels)
    copies = tokenizer.reconstruct(images)
    torch.testing.assert_close(tokenizer.reconstruct(images, batch_size=5), copies)
    half = tokenizer.reconstruct(images, precision="bf16")
    assert half.dtype == torch.float32
    assert 0 < (half - copies).abs().mean() < 0.05


def test_encode_and_decode_are_refused(run: Path, sample_pixels: torch.Tensor) -> None:
    tokenizer = Tokenizer.from_pretrained(run)
    for work in (
        lambda: tokenizer.encode(to_unit(sample_pixels)),
        lambda: tokenizer.decode(torch.zeros(1, 7, 7, dtype=torch.int64)),
    ):
        with pytest.raises(ArcvqError, match="is continuous: it has no codes and no tokens; reconstruct images"):
            work()


def test_logged_metrics_have_rate_but_no_usage(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    evaluated = [line for line in lines if line["kind"] == "eval"]
    assert all(line["vector_rate"] > 0 and "divergence" in line and "perplexity" not in line for line in trained)
    assert all("psnr" in line and line["rate"] > 0 and "usage" not in line for line in evaluated)
    assert not list((run / "codebooks").glob("*"))


def test_measure_gives_reasons_for_missing_codebook_metrics(run: Path) -> None:
    evaluation = measure(
        run, metrics=["psnr", "usage", "perplexity", "bits_per_image", "geometry"], limit=20
    ).evaluations[0]
    assert set(evaluation.metrics) == {"psnr", "rate"}
    assert evaluation.missing == {
        **dict.fromkeys(("usage", "perplexity", "bits_per_image"), "not applicable: the model gave no tokens"),
        "geometry": "not applicable: the model has no codebook of vectors",
    }


def test_rate_is_divergence_of_image_latents(run: Path) -> None:
    measured = measure(run, metrics=["bits_per_image"], limit=20)
    assert set(measure(run, metrics=["psnr"], limit=20).evaluations[0].metrics) == {"psnr"}
    tokenizer: Any = measured.tokenizer.eval()
    with torch.no_grad():  # by hand: one posterior for all of an image's positions
        latents = tokenizer.autoencoder.encoder(to_unit(measured.images.gather(torch.arange(20))))
        parameters = tokenizer.quantizer.to_posterior(latents.movedim(1, -1).reshape(20, -1))
        _, divergence = tokenizer.quantizer.posterior(parameters, sample=False)
    assert divergence.shape == (20,)
    assert measured.evaluations[0].metrics["rate"] == pytest.approx(divergence.mean().item(), rel=1e-4)


def test_rate_sums_over_positions() -> None:
    tokenizer: Any = load_config("sample/vae", ["--quantizer.positions=1"]).build_tokenizer(1, (28, 28), 10).eval()
    images = torch.rand(3, 1, 28, 28) * 2 - 1
    reconstruct = Reconstructor(tokenizer)
    reconstruct(images)
    with torch.no_grad():
        latents = tokenizer.autoencoder.encoder(images).movedim(1, -1)  # (3, 7, 7, 64)
        _, divergence = tokenizer.quantizer.posterior(tokenizer.quantizer.to_posterior(latents.flatten(0, 2)), False)
    expected = divergence.reshape(3, 49).sum(dim=1).mean().item()
    assert reconstruct.metrics["rate"] == pytest.approx(expected, rel=1e-4)


def test_run_history_has_no_codebook_snapshots(run: Path) -> None:
    history = RunHistory.load(run)
    assert history.evaluations[-1]["psnr"] > 0
    assert history.snapshots == ()


def test_model_card_mentions_no_tokens(run: Path) -> None:
    card = (run / "model" / "README.md").read_text()
    assert "| recipe | " in card
    assert "no codes" in card
    assert "tokenizer.reconstruct(images)" in card
    assert "encode" not in card
    assert "bits per image" not in card


def test_commands_work_or_fail_in_one_line(
    run: Path, sample_pixels: torch.Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "image.png"
    write_png(image, sample_pixels[0])
    assert main(["reconstruct", str(run), str(image), "--out", str(tmp_path / "copies")]) == 0
    assert main(["evaluate", str(run), "--limit", "20", "--metrics", "psnr", "usage"]) == 0
    assert "missing usage: not applicable" in capsys.readouterr().out
    assert main(["encode", str(run), str(image), "--out", str(tmp_path / "tokens.npz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "tokens.npz").exists()


def test_dry_run_counts_no_tokens(tiny_system: Callable[..., Any]) -> None:
    assert dry_run(tiny_system("vae")).facts["tokens"] == "0 per image"
