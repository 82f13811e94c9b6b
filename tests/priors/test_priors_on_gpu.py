"""On a GPU, steps of training and sampling are CUDA graphs and give what the same steps give without."""

import json
from pathlib import Path

import pytest
import torch
from every_prior import SMALL, small_generator, small_prior
from prior_runs import PRIOR_SYSTEMS, tiny_prior
from torch import Tensor

from arcvq.priors import Noise, Prior, SamplingOptions
from arcvq.priors.replay import Replay
from arcvq.systems import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LABELS = torch.tensor([0, 2, 1, 2])


def samples(prior: Prior, guidance: float = 1.5) -> list[Tensor]:
    """Two batches of one sampler, with other labels and noise."""
    sampler = prior.make_sampler(SamplingOptions(guidance=guidance), 4)
    return [
        sampler(labels.cuda(), Noise(seed, range(4), "cuda"), None, None)
        for seed, labels in ((0, LABELS), (1, LABELS.flip(0)))
    ]


@pytest.mark.parametrize("name", SMALL)
def test_recorded_steps_draw_what_eager_ones_draw(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = small_prior(name).cuda()
    recorded = samples(prior)
    monkeypatch.setattr(Replay, "__call__", lambda self: self.function())
    for one, other in zip(recorded, samples(prior)):
        torch.testing.assert_close(one.float(), other.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_second_batch_of_a_sampler_is_that_of_a_fresh_one(name: str) -> None:
    prior = small_prior(name).cuda()
    second = samples(prior)[1]
    fresh = prior.make_sampler(SamplingOptions(guidance=1.5), 4)
    assert torch.equal(fresh(LABELS.flip(0).cuda(), Noise(1, range(4), "cuda"), None, None), second)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_generator_makes_images_in_every_precision(name: str, precision: str) -> None:
    images = small_generator(name).cuda()(3, chunk=2, precision=precision)
    assert images.shape == (3, 1, 12, 16)
    assert images.isfinite().all()


@pytest.mark.parametrize("name", PRIOR_SYSTEMS)
def test_captured_training_begins_like_the_eager_one(name: str, tmp_path: Path) -> None:
    losses = {}
    for capture in ("never", "always"):
        # Dropout and hidden labels draw the same numbers in both.
        train(tiny_prior(name, {"training.capture": capture, "data.batch_size": 16}), tmp_path / capture, quiet=True)
        lines = [json.loads(line) for line in (tmp_path / capture / "metrics.jsonl").read_text().splitlines()]
        losses[capture] = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses["always"][0] == pytest.approx(losses["never"][0], rel=1e-3)
    assert all(loss < 1.5 * losses["never"][0] for loss in losses["always"])
