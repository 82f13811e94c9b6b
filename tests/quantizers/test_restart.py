"""Restarts of unused codes."""

from typing import Any

import pytest
import torch

from arcvq import VQ, Arc, ArcVQ, ArcvqError, Ball
from arcvq.quantizers import CVQ, Restart
from arcvq.quantizers.restart import restart_


def quantizer_with_unused_codes() -> ArcVQ:
    """Codes 0 and 1 near the latents; all others on the far side, far from any latent."""
    quantizer = ArcVQ(2, 8, ball=Ball(alpha=0.0), arc=None, restart=Restart(decay=0.5, threshold=0.1))
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[0.9, 0.0], [0.8, 0.4]] + [[-0.9, -0.01 * i] for i in range(6)]))
    return quantizer


def clustered_latents() -> torch.Tensor:
    return 5 * torch.nn.functional.normalize(torch.tensor([3.0, 0.0]) + torch.rand(64, 2), dim=1)


def test_unused_codes_restart_inside_ball() -> None:
    quantizer = quantizer_with_unused_codes()
    usages = []
    for _ in range(12):
        out = quantizer(clustered_latents())
        usages.append(out.stats["usage"].item())
        quantizer.after_step(out)
        assert quantizer.codebook.detach().norm(dim=1).max() <= 1 + 1e-6
    assert usages[0] <= 0.25
    assert usages[-1] >= 0.75


def test_used_codes_never_move() -> None:
    quantizer = quantizer_with_unused_codes()
    with torch.no_grad():
        quantizer.codebook[:] = 0.9 * torch.nn.functional.normalize(torch.randn(8, 2), dim=1)
    before = quantizer.codebook.detach().clone()
    for _ in range(12):
        quantizer.after_step(quantizer(before.repeat(4, 1)))
    assert torch.equal(quantizer.codebook.detach(), before)


def test_unused_code_moves_when_running_usage_is_below_threshold() -> None:
    """With decay 1/2 the usage of an unused code halves every step: at the fourth it is below 0.1 of uniform usage."""
    quantizer = quantizer_with_unused_codes()
    before = quantizer.codebook.detach().clone()
    moved_at = []
    for step in range(1, 5):
        quantizer.after_step(quantizer(clustered_latents()))
        if not torch.equal(quantizer.codebook.detach()[2:], before[2:]):
            moved_at.append(step)
    assert moved_at == [4]


def test_moved_code_lies_on_latent_and_usage_is_reset() -> None:
    codebook, points = torch.zeros(4, 3), torch.randn(9, 3)
    share = torch.full((4,), 0.25)
    dead = restart_(codebook, share, torch.tensor([9, 0, 0, 0]), points, None, Restart(decay=0.0, threshold=0.5))
    assert dead.tolist() == [False, True, True, True]
    assert share.tolist() == [1.0, 0.25, 0.25, 0.25]
    assert torch.equal(codebook[0], torch.zeros(3))
    for row in codebook[1:]:
        assert (row == points).all(dim=1).any()


def test_padding_is_never_a_candidate() -> None:
    points = torch.cat([torch.ones(3, 2), torch.full((300, 2), -7.0)])
    valid = torch.arange(303) < 3
    codebook = torch.zeros(50, 2)
    counts = torch.tensor([3, *[0] * 49])  # the three valid ones chose the first code
    restart_(codebook, torch.full((50,), 1 / 50), counts, points, valid, Restart(decay=0.0, threshold=0.5))
    assert torch.equal(codebook, torch.cat([torch.zeros(1, 2), torch.ones(49, 2)]))


def test_restarts_use_latents_of_all_micro_batches_and_no_padding() -> None:
    torch.manual_seed(0)
    latents, padding = torch.randn(2, 8, 4, 4) + 5, torch.zeros(2, 4, 4, dtype=torch.bool)
    for last in (padding, ~padding):
        quantizer = VQ(8, 64, restart=Restart(decay=0.0, threshold=0.9))
        before = quantizer.codebook.detach().clone()
        quantizer.after_step(quantizer(latents), quantizer(latents, last))
        moved = (quantizer.codebook != before).any(dim=1)
        assert moved.sum() > 32
        rows = latents.movedim(1, -1).reshape(-1, 8)
        assert (quantizer.codebook[moved].unsqueeze(1) == rows).all(dim=2).any(dim=1).all()


@pytest.mark.parametrize("anchor", [None, "closest", "random"])
def test_step_without_tokens_changes_only_step(anchor: Any) -> None:
    restart, arc = Restart(decay=0.0, threshold=0.9), Arc(schedule="adaptive")
    options: dict[str, Any] = {"arc": arc, "ball": None}
    quantizer = CVQ(8, 4, anchor=anchor, **options) if anchor else VQ(8, 4, restart=restart, **options)
    quantizer.after_step(quantizer(torch.randn(2, 8, 4, 4)))
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    for _ in range(3):
        quantizer.after_step(quantizer(torch.randn(2, 8, 4, 4), torch.zeros(2, 4, 4, dtype=torch.bool)))
    after = quantizer.state_dict()
    assert [name for name, value in before.items() if not torch.equal(value, after[name])] == ["step"]


@pytest.mark.parametrize("values", [{"decay": 1.0}, {"decay": -0.1}, {"threshold": 0.0}, {"threshold": 1.0}])
def test_wrong_options_raise(values: dict[str, float]) -> None:
    with pytest.raises(ArcvqError, match=r"decay.*threshold"):
        Restart(**values)
