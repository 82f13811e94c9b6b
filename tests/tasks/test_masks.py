"""Masks of defective regions in training, and in-painting."""

from pathlib import Path

import pytest
import torch
from test_adversarial_task import SETTINGS, task_of, trainer_of

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import ImageSource, InMemoryImages
from arcvq.nets import DfvqganAutoencoder, DfvqganConfig
from arcvq.objectives.reconstruction import Reconstruction, ReconstructionConfig
from arcvq.tasks import MasksConfig, Phase, TokenizerTask
from arcvq.tasks.masks import draw_masks
from arcvq.training import Trainer, TrainingConfig

DFVQGAN = {"kind": "dfvqgan", "width": 8, "groups": 4, "multipliers": [1, 2, 2], "attention": [4], "latent_dim": 8}


def test_masks_are_drawn_in_the_given_shares() -> None:
    torch.manual_seed(0)
    mask, connected, hidden = draw_masks(torch.zeros(4000, 1, 32, 32), MasksConfig(hidden=0.3))
    assert mask.shape == (4000, 1, 32, 32)
    assert mask.dtype == connected.dtype == hidden.dtype == torch.bool
    area = mask.float().mean(dim=(1, 2, 3))
    is_block = (area > 0) & (area < 1)
    assert float(is_block.float().mean()) == pytest.approx(0.4, abs=0.03)
    assert float((area == 0).float().mean()) == pytest.approx(0.2, abs=0.03)
    assert float(connected[is_block].float().mean()) == pytest.approx(0.5, abs=0.05)
    assert float(hidden[is_block].float().mean()) == pytest.approx(0.3, abs=0.05)
    assert float(connected[is_block & hidden].float().mean()) == pytest.approx(
        0.5, abs=0.1
    )  # one says nothing of the other
    assert not (connected | hidden)[~is_block].any()
    assert float(area[is_block].min()) > 0.05
    assert float(area[is_block].max()) < 0.46
    assert float(area[is_block].mean()) == pytest.approx(0.25, abs=0.02)


def test_a_block_is_a_rectangle() -> None:
    torch.manual_seed(0)
    defects = draw_masks(torch.zeros(50, 3, 24, 40), MasksConfig(block=1.0, empty=0.0))
    for each in defects.mask[:, 0]:
        rows, columns = each.any(dim=1), each.any(dim=0)
        assert torch.equal(each, rows[:, None] & columns[None, :])
        for side in (rows, columns):
            where = side.nonzero().flatten()
            assert len(where) == where[-1] - where[0] + 1


def bands(count: int, seed: int) -> torch.Tensor:
    """uint8 images (count, 1, 16, 16) of horizontal bands, dark or light at random: what is visible of a band tells the rest."""
    light = torch.rand(count, 1, 8, 1, generator=torch.Generator().manual_seed(seed)) < 0.5
    return torch.where(light, 229, 26).to(torch.uint8).repeat_interleave(2, dim=2).expand(-1, -1, -1, 16).contiguous()


def error_of_inpainting(hidden: float, images: torch.Tensor, mask: torch.Tensor, folder: Path) -> float:
    """The mean squared error under the mask, by a tokenizer that a short training with this share of hidden defects made."""
    torch.manual_seed(0)
    config = DfvqganConfig(width=8, groups=4, multipliers=(1, 2), attention=(), latent_dim=8, blocks=1)
    objective = Reconstruction(lambda: 1.0, config=ReconstructionConfig(normalise="none"))
    masks = MasksConfig(block=1.0, empty=0.0, hidden=hidden)
    tokenizer = Tokenizer(DfvqganAutoencoder(1, config), VQ(dim=8, codebook_size=64))
    task = TokenizerTask(tokenizer, objective, masks=masks)
    source = ImageSource(InMemoryImages("bands", bands(512, seed=1)), 32)
    training = TrainingConfig(steps=60, learning_rate=5e-3, evaluations=0, device="cpu")
    Trainer(task, source, source, training, folder, quiet=True).run()
    painted = Tokenizer.from_pretrained(folder).inpaint(images, mask)
    return float((painted - images)[mask].square().mean())


def test_training_with_hidden_defects_learns_to_inpaint(tmp_path: Path) -> None:
    images = bands(64, seed=2).float() / 127.5 - 1
    mask = torch.zeros(64, 1, 16, 16, dtype=torch.bool)
    mask[:, :, 4:12, 4:12] = True
    error, without = (error_of_inpainting(share, images, mask, tmp_path / f"{share}") for share in (0.5, 0.0))
    grey = float(images[mask].square().mean())
    assert error < 0.2 * grey
    assert error < 0.5 * without


@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_hidden_defects_are_grey_in_the_input_and_nothing_else_is(hidden: float, tmp_path: Path) -> None:
    masks = {"block": 0.5, "empty": 0.2, "hidden": hidden}
    task = task_of(trainer_of(tmp_path, settings={**SETTINGS, "autoencoder": DFVQGAN, "masks": masks}))
    images = torch.rand(64, 1, 28, 28) + 0.1
    shown, options = task.forward_inputs(images, Phase())
    area = options["mask"].float().mean(dim=(1, 2, 3), keepdim=True)
    is_block = (area > 0) & (area < 1)
    assert 0 < is_block.float().mean() < 1
    assert torch.equal(shown, torch.where(options["mask"] & is_block & bool(hidden), 0, images))


def test_tokenizer_trained_with_a_discriminator_inpaints_from_what_is_visible(tmp_path: Path) -> None:
    settings = {**SETTINGS, "autoencoder": DFVQGAN, "masks": {}}
    trainer_of(tmp_path, settings=settings).run()
    tokenizer = Tokenizer.from_pretrained(tmp_path / "run")
    images = torch.rand(2, 1, 28, 28) * 2 - 1
    mask = torch.zeros(2, 1, 28, 28, dtype=torch.bool)
    mask[:, :, 8:20, 4:16] = True
    painted = tokenizer.inpaint(images, mask)
    assert torch.equal(painted[~mask], images[~mask])
    other = torch.where(mask, torch.rand(2, 1, 28, 28), images)
    assert torch.equal(tokenizer.inpaint(other, mask), painted)
    other = torch.where(mask, images, -images)
    assert not torch.allclose(tokenizer.inpaint(other, mask)[mask], painted[mask])


def test_inpaint_needs_an_autoencoder_with_masks() -> None:
    with pytest.raises(ArcvqError, match="dfvqgan"):
        Tokenizer.from_pretrained("tiny").inpaint(torch.zeros(1, 1, 28, 28), torch.ones(1, 1, 28, 28))


@pytest.mark.parametrize(
    ("masks", "fact"),
    [
        ({"block": 0.9}, "add up"),
        ({"least": 0.5}, "most"),
        ({"unconnected": 2}, "unconnected"),
        ({"hidden": -0.1}, "hidden"),
    ],
)
def test_wrong_masks_are_refused(masks: dict[str, float], fact: str, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=fact):
        trainer_of(tmp_path, settings={**SETTINGS, "autoencoder": DFVQGAN, "masks": masks})


def test_masks_need_an_autoencoder_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="VqganAutoencoder"):
        trainer_of(tmp_path, settings={**SETTINGS, "masks": {}})
