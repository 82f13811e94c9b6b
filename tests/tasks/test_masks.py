"""Masks of defective regions in training, and in-painting."""

from pathlib import Path

import pytest
import torch
from test_adversarial_task import SETTINGS, train_lines, trainer_of

from arcvq import ArcvqError, Tokenizer
from arcvq.tasks import MasksConfig
from arcvq.tasks.masks import draw_masks

DFVQGAN = {"kind": "dfvqgan", "width": 8, "groups": 4, "multipliers": [1, 2, 2], "attention": [4], "latent_dim": 8}


def test_masks_are_drawn_in_the_given_shares() -> None:
    torch.manual_seed(0)
    mask, connected = draw_masks(torch.zeros(4000, 1, 32, 32), MasksConfig())
    assert mask.shape == (4000, 1, 32, 32)
    assert mask.dtype == connected.dtype == torch.bool
    area = mask.float().mean(dim=(1, 2, 3))
    is_block = (area > 0) & (area < 1)
    assert float(is_block.float().mean()) == pytest.approx(0.4, abs=0.03)
    assert float((area == 0).float().mean()) == pytest.approx(0.2, abs=0.03)
    assert float(connected[is_block].float().mean()) == pytest.approx(0.5, abs=0.05)
    assert not connected[~is_block].any()
    assert float(area[is_block].min()) > 0.05
    assert float(area[is_block].max()) < 0.46
    assert float(area[is_block].mean()) == pytest.approx(0.25, abs=0.02)


def test_a_block_is_a_rectangle() -> None:
    torch.manual_seed(0)
    mask, _ = draw_masks(torch.zeros(50, 3, 24, 40), MasksConfig(block=1.0, empty=0.0))
    for each in mask[:, 0]:
        rows, columns = each.any(dim=1), each.any(dim=0)
        assert torch.equal(each, rows[:, None] & columns[None, :])
        for side in (rows, columns):
            where = side.nonzero().flatten()
            assert len(where) == where[-1] - where[0] + 1


def test_training_with_masks_gives_a_tokenizer_that_inpaints(tmp_path: Path) -> None:
    settings = {**SETTINGS, "autoencoder": DFVQGAN, "masks": {}}
    trainer_of(tmp_path, settings=settings).run()
    assert len(train_lines(tmp_path)) == 10
    tokenizer = Tokenizer.from_pretrained(tmp_path / "run")
    images = torch.rand(2, 1, 28, 28) * 2 - 1
    mask = torch.zeros(2, 1, 28, 28, dtype=torch.bool)
    mask[:, :, 8:20, 4:16] = True
    painted = tokenizer.inpaint(images, mask)
    assert torch.equal(painted[~mask], images[~mask])
    assert not torch.equal(painted[mask], images[mask])
    other = torch.where(mask, torch.rand(2, 1, 28, 28), images)
    assert torch.equal(tokenizer.inpaint(other, mask), painted)


def test_inpaint_needs_an_autoencoder_with_masks() -> None:
    with pytest.raises(ArcvqError, match="dfvqgan"):
        Tokenizer.from_pretrained("tiny").inpaint(torch.zeros(1, 1, 28, 28), torch.ones(1, 1, 28, 28))


@pytest.mark.parametrize(
    ("masks", "fact"), [({"block": 0.9}, "add up"), ({"least": 0.5}, "most"), ({"unconnected": 2}, "unconnected")]
)
def test_wrong_masks_are_refused(masks: dict[str, float], fact: str, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=fact):
        trainer_of(tmp_path, settings={**SETTINGS, "autoencoder": DFVQGAN, "masks": masks})


def test_masks_need_an_autoencoder_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="VqganAutoencoder"):
        trainer_of(tmp_path, settings={**SETTINGS, "masks": {}})
