"""Checkpoints of the small models of ArcVQ-VAE and CVQ-VAE become tokenizers with the same tokens and the same images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from other_projects import SmallVQVAE
from same_results import check_same, set_codes, some_images
from torch import Tensor, nn

from arcvq import ArcvqError
from arcvq.nets import SmallConfig
from arcvq.tokenizers.foreign import import_tokenizer


def make_small(metric: str, channels: int = 1) -> tuple[SmallVQVAE, Tensor, Tensor]:
    """A model, images, and their latents."""
    torch.manual_seed(0)
    model = SmallVQVAE(channels, width=16, inner=6, blocks=2, dim=8, codes=12)
    images = some_images(channels, 12, 16)
    with torch.no_grad():
        set_codes(model._vq_vae.embedding.weight, model.latents(images.float()))
        model = model.double()
        return model, images, model.latents(images)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("project", ["ArcVQ-VAE", "CVQ-VAE"])
def test_small_model_gives_same_tokens_and_images(project: str, metric: Any, tmp_path: Path) -> None:
    model, images, latents = make_small(metric)
    state = {name: value.float() for name, value in model.state_dict().items()}
    if project == "CVQ-VAE":
        state["_vq_vae.embed_prob"] = torch.rand(12)
    torch.save(state, tmp_path / "best.pt")
    stated = None if (project, metric) == ("ArcVQ-VAE", "cosine") else metric
    imported = import_tokenizer(tmp_path / "best.pt", metric=stated)
    assert imported.metric == metric
    assert imported.tokenizer.autoencoder.config == SmallConfig(latent_dim=8, width=16, residual_width=6)
    with torch.no_grad():
        tokens = model.tokens(latents, metric)
        check_same(imported.tokenizer, images, latents, tokens, model.decode(tokens))


def test_cvq_checkpoint_needs_the_metric(tmp_path: Path) -> None:
    state = make_small("cosine")[0].state_dict() | {"_vq_vae.embed_prob": torch.rand(12)}
    torch.save(state, tmp_path / "best.pt")
    with pytest.raises(ArcvqError, match="does not say how codes are chosen: give --metric"):
        import_tokenizer(tmp_path / "best.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("_decoder._conv_1.bias"), r"missing \(e\.g\. _decoder\._conv_1\.bias\)"),
        (lambda s: s.pop("_encoder._conv_2.weight"), r"_encoder\._conv_2\.weight is missing"),
        (lambda s: s.update(extra=torch.ones(1)), r"unexpected \(e\.g\. extra\)"),
        (lambda s: s.update({"_vq_vae.embedding.weight": torch.ones(12, 9)}), r"instead of \[12, 8\]"),
    ],
)
def test_unfit_small_models_are_refused(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    state = dict(make_small("cosine")[0].state_dict())
    change(state)
    torch.save(state, tmp_path / "best.pt")
    with pytest.raises(ArcvqError, match=message):
        import_tokenizer(tmp_path / "best.pt")


def test_configuration_is_refused(tmp_path: Path) -> None:
    torch.save(make_small("cosine")[0].state_dict(), tmp_path / "best.pt")
    with pytest.raises(ArcvqError, match="leave --config out"):
        import_tokenizer(tmp_path / "best.pt", tmp_path / "x.yaml")


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "x.pt")
    with pytest.raises(ArcvqError, match="tensors such as bias, and is no checkpoint that arcvq knows"):
        import_tokenizer(tmp_path / "x.pt")
    with pytest.raises(ArcvqError, match="no such file or folder"):
        import_tokenizer(tmp_path / "none.pt")
