import json
import math
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from arcvq.data import InMemoryImages, load_images
from arcvq.errors import ArcvqError
from arcvq.metrics import METRICS, PAPER, Evaluation, evaluate, protocol

QUICK = ["l1", "psnr", "ssim"]


@pytest.fixture
def no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))


def toy_images(count: int = 6, channels: int = 1, side: int = 16) -> InMemoryImages:
    generator = torch.Generator().manual_seed(0)
    return InMemoryImages("toy", torch.randint(20, 200, (count, channels, side, side), generator=generator).byte())


def identity(images: torch.Tensor) -> tuple[torch.Tensor, None]:
    return images, None


@pytest.mark.parametrize("batch_size", [1, 4, 500])
def test_known_offset_gives_known_metrics(batch_size: int) -> None:
    result = evaluate(lambda x: (x + 10 / 127.5, None), toy_images(), metrics=QUICK, batch_size=batch_size)
    assert result.metrics["l1"] == pytest.approx(10 / 255, rel=1e-5)
    assert result.metrics["psnr"] == pytest.approx(20 * math.log10(25.5), rel=1e-5)
    assert 0.9 < result.metrics["ssim"] < 1.0
    assert (result.images, result.protocol, result.missing, result.counts) == (6, "exact", {}, None)


def test_perfect_reconstruction_gives_best_metrics() -> None:
    assert evaluate(identity, toy_images(), metrics=QUICK).metrics == pytest.approx(
        {"l1": 0.0, "psnr": 100.0, "ssim": 1.0}
    )


def test_random_reconstructions_repeat_and_random_state_is_restored() -> None:
    def drawing(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 0.1 * torch.randn_like(x), torch.randint(9, (len(x), 4))

    def measured() -> Evaluation:
        return evaluate(drawing, toy_images(), metrics=["psnr", "perplexity"], codebook_size=9, batch_size=4)

    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first = measured()
    assert torch.equal(torch.randn(3), expected)
    assert measured().metrics == first.metrics


def test_psnr_is_mean_over_images() -> None:
    offsets = torch.tensor([1.0, 50.0]).view(2, 1, 1, 1) / 127.5
    result = evaluate(lambda x: (x + offsets, None), toy_images(2), metrics=["psnr"])
    assert result.metrics["psnr"] == pytest.approx((20 * math.log10(255) + 20 * math.log10(5.1)) / 2, rel=1e-5)


def test_paper_protocol_changes_metrics() -> None:
    def noisy(x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + 0.1 * torch.sin(37.0 * x), None

    images = toy_images(channels=3, side=32)
    exact, paper = (evaluate(noisy, images, protocol=name, metrics=QUICK) for name in ("exact", "paper"))
    assert exact.metrics["l1"] != pytest.approx(paper.metrics["l1"], rel=1e-3)
    assert (paper.protocol, paper.protocol_hash) == ("paper", PAPER.hash)
    assert evaluate(noisy, images, protocol=PAPER, metrics=QUICK).metrics == paper.metrics


def test_paper_protocol_floors_both_sides() -> None:
    # Unchanged originals are floored in the same way on both sides.
    assert evaluate(identity, toy_images(), protocol="paper", metrics=QUICK).metrics["l1"] == 0.0


def test_metrics_of_known_tokens_and_codes(no_weights: None) -> None:
    tokens = torch.tensor([[0, 0, 1], [2, 2, -1]])  # one position is padding
    codebook = torch.diag(torch.tensor([1.0, 2.0, 3.0, 10.0]))
    result = evaluate(lambda x: (x, tokens), toy_images(2), codebook=codebook)
    found = result.metrics
    assert result.counts is not None
    assert result.counts.tolist() == [2, 1, 2, 0]
    assert found["usage"] == 0.75
    assert found["tokens_per_image"] == 2.5
    assert found["tokens_per_code"] == 1.25
    assert found["bits_per_image"] == 5.0
    assert found["perplexity"] == pytest.approx(math.exp(-(0.8 * math.log(0.4) + 0.2 * math.log(0.2))))
    assert (found["coverage_50"], found["coverage_90"], found["coverage_99"]) == (2, 3, 3)
    assert found["uniformity"] == pytest.approx(-4.0)
    assert found["norm_mean"] == 4.0
    assert found["norm_mean_used"] == 2.0


def test_choices_of_a_token_decide_its_bits_but_not_its_usage() -> None:
    tokens = torch.tensor([[[0, 5]], [[1, 7]]])  # of two codebooks of four
    names = ["usage", "bits_per_image", "tokens_per_image"]
    found = evaluate(lambda x: (x, tokens), toy_images(2), codebook=torch.eye(8), choices=4, metrics=names)
    assert found.metrics == {"usage": 0.5, "tokens_per_image": 2.0, "bits_per_image": 4.0}


def test_codebook_size_replaces_codebook() -> None:
    tokens = torch.tensor([[[3, 1]], [[3, 3]]])
    with_size = evaluate(
        lambda x: (x, tokens), toy_images(2), codebook_size=8, metrics=["usage", "bits_per_image", "geometry"]
    )
    assert with_size.metrics == {"usage": 0.25, "bits_per_image": 6.0}
    assert with_size.missing == {"geometry": "not applicable: the model has no codebook of vectors"}
    without = evaluate(lambda x: (x, tokens), toy_images(2), metrics=["usage", "perplexity"])
    assert "pass codebook or codebook_size" in without.missing["usage"]
    assert without.counts is not None
    assert without.counts.tolist() == [0, 1, 0, 3]
    assert without.metrics == pytest.approx({"perplexity": math.exp(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))})


def test_counts_grow_if_codebook_size_is_unknown() -> None:
    calls = iter([torch.tensor([[1]]), torch.tensor([[4]]), torch.tensor([[0]])])
    result = evaluate(lambda x: (x, next(calls)), toy_images(3), batch_size=1, metrics=["perplexity"])
    assert result.counts is not None
    assert result.counts.tolist() == [1, 1, 0, 0, 1]


def test_missing_weights_give_reasons(no_weights: None) -> None:
    result = evaluate(identity, toy_images())
    assert "torchvision.models.vgg16" in result.missing["lpips"]
    assert "ARCVQ_WEIGHTS" in result.missing["rfid"]
    assert result.missing["usage"] == "not applicable: the model gave no tokens"
    assert set(result.metrics) == {"l1", "mse", "psnr", "ssim"}
    plain = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert plain["missing"] == result.missing
    assert plain["metrics"] == result.metrics
    assert (plain["images"], plain["protocol"], plain["protocol_hash"]) == (6, "exact", result.protocol_hash)
    assert plain["seconds"] > 0


def test_small_images_and_sets_skip_metrics() -> None:
    result = evaluate(identity, toy_images(1, side=10), metrics=["l1", "ssim", "lpips", "rfid"])
    assert set(result.metrics) == {"l1"}
    assert "at least 11 pixels" in result.missing["ssim"]
    assert "at least 16 pixels" in result.missing["lpips"]
    assert "at least 2 images" in result.missing["rfid"]


def test_lpips_and_rfid_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a random LPIPS trunk and a small Inception network, only an equal reconstruction has distance 0."""
    save_file(torchvision.models.alexnet().features.state_dict(), tmp_path / "alexnet-features.safetensors")
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    small = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())  # (B, 3, 299, 299) -> (B, 12)
    # The module is imported by name, because `arcvq.metrics.evaluate` is the function.
    monkeypatch.setattr(import_module("arcvq.metrics.paired"), "fid_network", lambda device, download: small)

    images = toy_images(8, side=32)
    for name in ("exact", "paper"):
        measure = replace(protocol(name), lpips_network="alex")
        same = evaluate(identity, images, metrics=["lpips", "rfid"], protocol=measure, batch_size=3)
        other = evaluate(lambda x: (x / 2 + 0.5, None), images, metrics=["lpips", "rfid"], protocol=measure)
        assert same.metrics == pytest.approx({"lpips": 0.0, "rfid": 0.0}, abs=1e-6)
        assert other.metrics["lpips"] > 1e-3
        # Means near 0.43 move to near 0.72, twelve features, two units to the network's range.
        assert other.metrics["rfid"] == pytest.approx(12 * 0.565**2, rel=0.05)


def test_progress_sees_every_batch() -> None:
    seen: list[tuple[int, int]] = []
    evaluate(
        identity, toy_images(5), metrics=["l1"], batch_size=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_evaluate_runs_without_gradient() -> None:
    weight = torch.ones((), requires_grad=True)
    seen: list[bool] = []

    def reconstruct(x: torch.Tensor) -> tuple[torch.Tensor, None]:
        seen.append((weight * x).requires_grad)
        return weight * x, None

    random_state = torch.get_rng_state()
    evaluate(reconstruct, toy_images(), metrics=QUICK)
    assert seen == [False]
    assert torch.equal(torch.get_rng_state(), random_state)


def test_two_thousand_small_images_take_seconds() -> None:
    images = load_images("sample", split="test")
    started = time.perf_counter()
    result = evaluate(
        lambda x: (0.9 * x, torch.zeros(len(x), 7, 7, dtype=torch.int64)),
        images,
        codebook=torch.randn(512, 64, generator=torch.Generator().manual_seed(0)),
        metrics=[name for name in METRICS if name not in ("lpips", "rfid")],
    )
    assert time.perf_counter() - started < 15.0
    assert isinstance(result, Evaluation)
    assert result.counts is not None
    assert int(result.counts.sum()) == 2_000 * 49


@pytest.mark.parametrize(
    ("reconstruct", "line"),
    [
        (lambda x: (x * float("nan"), None), "values that are not finite"),
        (lambda x: (x / 0.0, None), "values that are not finite"),
        (lambda x: (x[:, :, :-1], None), r"shape \(6, 1, 15, 16\), but the images have \(6, 1, 16, 16\)"),
        (lambda x: (x, torch.tensor([4])), "tokens must lie in 0 to 3, or be -1 for padding, but go from 4 to 4"),
        (lambda x: (x, torch.tensor([-2])), "go from -2 to -2"),
        (lambda x: (x, torch.tensor([0.5])), r"tokens must be integers, but reconstruct returned torch\.float32"),
    ],
)
def test_wrong_reconstructions_are_refused(reconstruct: object, line: str) -> None:
    with pytest.raises(ArcvqError, match=line):
        evaluate(reconstruct, toy_images(), metrics=["l1"], codebook_size=4)  # type: ignore[arg-type]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArcvqError, match=r"'fid'.*l1, mse, psnr"):
        evaluate(identity, toy_images(), metrics=["fid"])
    with pytest.raises(ArcvqError, match="unknown protocol 'quick'"):
        evaluate(identity, toy_images(), protocol="quick")
    with pytest.raises(ArcvqError, match="toy has no images to evaluate on"):
        evaluate(identity, toy_images(0))
