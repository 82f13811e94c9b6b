"""A smaller codebook for a trained tokenizer: k-means centres take the place of codes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import VQ, ArcVQ, ArcvqError, Ball, Tokenizer
from arcvq.data import to_unit
from arcvq.functional import unit
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.quantizers import (
    CVQ,
    EMAVQ,
    FSQ,
    HVQ,
    LFQ,
    SQ,
    Gaussian,
    GroupedVQ,
    MultichannelVQ,
    ProjectedVQ,
    Quantizer,
    ResidualVQ,
    SimVQ,
)
from arcvq.tokenizers import reduce_codebook

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)
QUANTIZERS: dict[str, tuple[type[Quantizer], dict[str, Any]]] = {
    "vq": (VQ, {"init": "normal"}),
    "vq with heads": (VQ, {"init": "normal", "heads": 2, "code_dim": 3}),
    "vq from k-means": (VQ, {"init": "kmeans"}),
    "unit codes": (VQ, {"init": "normal", "metric": "cosine", "output": "unit"}),
    "arcvq": (ArcVQ, {}),
    "emavq": (EMAVQ, {"init": "normal"}),
    "cvq": (CVQ, {"init": "normal", "anchor": "random"}),
    "multichannel": (MultichannelVQ, {"init": "normal"}),
    "simvq": (SimVQ, {}),
    "simvq in a ball": (SimVQ, {"metric": "cosine", "ball": Ball()}),
    "projected": (ProjectedVQ, {"feature_dim": 12}),
}
each_kind = pytest.mark.parametrize("kind", QUANTIZERS)
in_each_space = pytest.mark.parametrize("space", ["projected", "raw"])


def make_tokenizer(kind: str) -> Tokenizer:
    torch.manual_seed(3)
    cls, options = QUANTIZERS[kind]
    quantizer = cls(8, 64, **options)
    with torch.no_grad():
        quantizer.step.fill_(17)
    return Tokenizer(SmallAutoencoder(1, SMALL), quantizer, image_size=(28, 28), system="mine").eval()


@each_kind
@in_each_space
def test_as_many_codes_as_before_give_same_tokens_and_images(kind: str, space: Any, sample_pixels: Tensor) -> None:
    tokenizer, images = make_tokenizer(kind), to_unit(sample_pixels)
    reduced = reduce_codebook(tokenizer, 64, space=space)
    assert torch.equal(reduced.quantizer.codebook, tokenizer.quantizer.codebook)
    assert torch.equal(reduced.encode(images), tokenizer.encode(images))
    assert torch.equal(reduced.reconstruct(images), tokenizer.reconstruct(images))


@each_kind
@in_each_space
def test_reduced_tokenizer_has_fewer_codes_and_can_be_saved(
    kind: str, space: Any, tmp_path: Path, sample_pixels: Tensor
) -> None:
    tokenizer, images = make_tokenizer(kind), to_unit(sample_pixels)
    before = copy.deepcopy(tokenizer.state_dict())
    reduced = reduce_codebook(tokenizer, 8, space=space)
    assert reduced.quantizer.codebook.shape == (8, tokenizer.quantizer.code_dim)
    assert reduced.quantizer.config.codebook_size == 8
    assert reduced.quantizer.step == 17
    assert (reduced.image_size, reduced.system) == ((28, 28), "mine")
    is_plain = isinstance(tokenizer.quantizer, SimVQ) and space == "projected"
    assert type(reduced.quantizer) is (VQ if is_plain else type(tokenizer.quantizer))
    tokens = reduced.encode(images)
    assert int(tokens.max()) < 8
    loaded = Tokenizer.from_pretrained(reduced.save_pretrained(tmp_path / "model"))
    assert torch.equal(loaded.encode(images), tokens)
    assert torch.equal(loaded.decode(tokens), reduced.reconstruct(images))
    assert all(torch.equal(value, before[name]) for name, value in tokenizer.state_dict().items())


def test_layer_around_raw_centres_is_kept() -> None:
    tokenizer = make_tokenizer("projected")
    reduced = reduce_codebook(tokenizer, 8, space="raw")
    assert torch.equal(reduced.quantizer.projection.weight, tokenizer.quantizer.projection.weight)
    assert reduced.quantizer.basis.shape == (8, 12)


@pytest.mark.parametrize("kind", ["vq", "arcvq", "projected"])
def test_more_codes_lie_nearer(kind: str) -> None:
    quantizer = make_tokenizer(kind)
    codes = quantizer.quantizer.codebook.detach()
    angles = quantizer.quantizer.config.metric == "cosine"
    errors = []
    for number in (2, 8, 32, 64):
        centres = reduce_codebook(quantizer, number, seed=1).quantizer.codebook.detach()
        pair = (unit(codes), unit(centres)) if angles else (codes, centres)
        errors.append(float(torch.cdist(*pair).amin(dim=1).square().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5 < errors[0]


def test_centres_by_angle_have_mean_length_of_their_codes() -> None:
    tokenizer = make_tokenizer("arcvq")
    with torch.no_grad():
        directions = torch.eye(8).repeat_interleave(8, dim=0)
        tokenizer.quantizer.codebook.copy_(directions * torch.arange(1.0, 9).repeat(8).unsqueeze(1))
    centres = reduce_codebook(tokenizer, 8).quantizer.codebook.detach()
    torch.testing.assert_close(centres.sum(dim=0), torch.full((8,), 4.5))
    torch.testing.assert_close(centres.norm(dim=1), torch.full((8,), 4.5))


def test_seed_decides_centres() -> None:
    tokenizer = make_tokenizer("vq")
    first, again, other = (reduce_codebook(tokenizer, 8, seed=seed).quantizer.codebook for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "quantizer",
    [FSQ(8, 64), LFQ(8, 64), HVQ(8, 64), SQ(8, 64), Gaussian(8), ResidualVQ(8, 64), GroupedVQ(8, 64)],
    ids=lambda quantizer: type(quantizer).__name__,
)
def test_other_quantizers_are_refused(quantizer: Quantizer) -> None:
    tokenizer = Tokenizer(SmallAutoencoder(1, SMALL), quantizer)
    with pytest.raises(ArcvqError, match=f"can be reduced, and this is {type(quantizer).__name__}"):
        reduce_codebook(tokenizer, 8)


@pytest.mark.parametrize("codes", [0, -1, 65])
def test_wrong_number_of_codes_is_refused(codes: int) -> None:
    with pytest.raises(ArcvqError, match=f"has 64 codes and can be reduced to 1 to 64 codes, not to {codes}"):
        reduce_codebook(make_tokenizer("vq"), codes)


def test_unknown_space_is_refused() -> None:
    with pytest.raises(ArcvqError, match="space must be projected or raw, got 'latent'"):
        reduce_codebook(make_tokenizer("vq"), 8, space="latent")  # type: ignore[arg-type]
