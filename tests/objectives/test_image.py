"""The weighted sum of distances: each term by hand, LPIPS by its stages, processes, precision, and a training with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import ArcvqError, distributed
from arcvq.functional import logit_laplace_nll
from arcvq.metrics import Lpips
from arcvq.objectives import OBJECTIVES, PerceptualConfig, PerceptualLoss, PerceptualObjective
from arcvq.systems import train


@pytest.fixture(scope="module")
def pair() -> tuple[Tensor, Tensor]:
    """Reconstructions and images (3, 3, 16, 16) in [-1, 1]."""
    x, y = torch.rand(2, 3, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return x, y


def make(**settings: Any) -> PerceptualObjective:
    """Built as a run builds it. The pixels' variance is not asked for."""

    def refuse() -> float:
        raise AssertionError("the variance was computed")

    objective = OBJECTIVES.build(PerceptualConfig(**settings), refuse)
    assert isinstance(objective, PerceptualObjective)
    return objective


def plain(**settings: Any) -> PerceptualObjective:
    """Without LPIPS."""
    return make(**{"perceptual": 0.0, "l1": 0.0, **settings})


def test_pixel_terms_are_means_over_elements(pair: tuple[Tensor, Tensor]) -> None:
    difference = (pair[0] - pair[1]).double()
    terms = plain(l1=2.0, l2=0.5)(*pair)
    assert list(terms) == ["l1", "l2"]
    assert terms["l1"].item() == pytest.approx(2 * difference.abs().mean().item(), rel=1e-6)
    assert terms["l2"].item() == pytest.approx(0.5 * difference.square().mean().item(), rel=1e-6)


def test_default_is_l1_and_lpips(lpips_weights: Path, random_vgg: Lpips, pair: tuple[Tensor, Tensor]) -> None:
    terms = make()(*pair)
    assert list(terms) == ["l1", "perceptual"]
    assert terms["perceptual"].item() == pytest.approx(PerceptualLoss(random_vgg)(*pair).mean().item(), rel=1e-6)
    assert make(perceptual=0.25)(*pair)["perceptual"].item() == pytest.approx(0.25 * terms["perceptual"].item())


def test_semantic_weighs_deep_stages_against_shallow_ones(
    lpips_weights: Path, random_vgg: Lpips, pair: tuple[Tensor, Tensor]
) -> None:
    features = [random_vgg.features((each + 1) / 2) for each in pair]
    per_stage = random_vgg.stage_distances(*features).mean(dim=1)
    shallow, deep = per_stage[:3].sum().item(), per_stage[3:].sum().item()
    assert min(shallow, deep) > 0
    objective = make(semantic=(1.0, 0.8, 0.0), perceptual=2.0)
    values = [objective(*pair, stage=stage)["perceptual"].item() for stage in range(4)]
    expected = [2 * deep, 2 * (0.8 * deep + 0.2 * shallow), 2 * shallow, 2 * shallow]
    assert values == pytest.approx(expected, rel=1e-5)


def test_laplace_is_the_mean_over_elements(pair: tuple[Tensor, Tensor]) -> None:
    extra = {"location": 3 * pair[0], "log_scale": pair[0] - 1}
    terms = plain(laplace=0.1, laplace_margin=0.2)(*pair, extra)
    expected = 0.1 * logit_laplace_nll(pair[1], extra["location"], extra["log_scale"], 0.2).mean()
    assert list(terms) == ["laplace"]
    torch.testing.assert_close(terms["laplace"], expected)


def test_laplace_needs_a_decoder_with_location_and_scale(pair: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ArcvqError, match=r"gives location and log_scale.*objective\.laplace to 0"):
        plain(laplace=0.1)(*pair, {"location": pair[0]})


def test_two_processes_add_up_to_the_whole_batch(
    lpips_weights: Path, pair: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = make(l2=1.0, laplace=1.0)
    extra = {"location": pair[0], "log_scale": -pair[0]}
    whole = objective(*pair, extra)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "sum_over_processes", lambda _: torch.tensor(3.0))
    parts = []
    for shard in (slice(0, 2), slice(2, 3)):
        of_shard = {name: value[shard] for name, value in extra.items()}
        parts.append(objective(pair[0][shard], pair[1][shard], of_shard))
    for name, value in whole.items():
        torch.testing.assert_close((parts[0][name] + parts[1][name]) / 2, value)


def test_a_process_without_images_adds_nothing(lpips_weights: Path) -> None:
    empty = torch.zeros(0, 3, 16, 16, requires_grad=True)
    terms = make(l2=1.0, laplace=1.0)(empty, empty.detach(), {"location": empty, "log_scale": empty})
    assert [value.item() for value in terms.values()] == [0.0] * 4
    torch.stack(list(terms.values())).sum().backward()


def test_nothing_is_read_on_the_host(
    lpips_weights: Path, pair: tuple[Tensor, Tensor], as_if_captured: Callable[[], Any]
) -> None:
    objective, x = make(semantic=(0.3,), laplace=1.0), pair[0].clone().requires_grad_()
    with as_if_captured():
        terms = objective(x, pair[1], {"location": x, "log_scale": x}, 2)
        torch.stack(list(terms.values())).sum().backward()
    assert x.grad is not None


def test_bfloat16_autocast_keeps_terms_and_gradient(lpips_weights: Path, pair: tuple[Tensor, Tensor]) -> None:
    objective, gradients, sums = make(l2=1.0, laplace=1.0), [], []
    for enabled in (False, True):
        x = pair[0].clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            terms = objective(x, pair[1], {"location": x, "log_scale": x})
            assert all(term.dtype == torch.float32 for term in terms.values())
            loss = torch.stack(list(terms.values())).sum()
        loss.backward()
        gradients.append(x.grad.flatten())  # type: ignore[union-attr]
        sums.append(loss)
    torch.testing.assert_close(sums[1], sums[0], rtol=0.02, atol=0.0)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"l1": -1.0}, "l1 is a weight and must be at least 0"),
        ({"l1": 0.0, "perceptual": 0.0}, "nothing to learn from"),
        ({"semantic": (0.5, 1.5)}, "semantic must be numbers from 0 to 1"),
        ({"semantic": ()}, "semantic must be numbers from 0 to 1"),
        ({"semantic": (0.5,), "perceptual": 0.0}, "set perceptual above 0"),
        ({"laplace_margin": 0.5}, "laplace_margin must be above 0 and below 0.5"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        PerceptualConfig(**settings)


TRAINING = {
    "objective.kind": "perceptual",
    "objective.semantic": "[1.0, 0.0]",
    "data.batch_size": 4,
    "training.steps": None,
    "training.stages": "[{steps: 1}, {steps: 1}]",
    "training.evaluations": 1,
    "training.evaluation_images": 4,
}


@pytest.mark.parametrize("preset", ["arcvq-vae", "hvq-vae"])
def test_training_logs_the_terms(
    preset: str, lpips_weights: Path, tiny_system: Callable[..., Any], tmp_path: Path
) -> None:
    train(tiny_system(preset, TRAINING), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    assert len(trained) == 2
    for line in trained:
        assert "reconstruction" not in line
        assert line["l1"] > 0
        assert line["perceptual"] > 0
        quantizer = sum(line.get(name, 0.0) for name in ("codebook", "commitment", "arc", "kl", "latents"))
        assert line["loss"] == pytest.approx(line["l1"] + line["perceptual"] + quantizer, rel=1e-5)
