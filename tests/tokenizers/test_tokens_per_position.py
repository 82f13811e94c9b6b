"""Tokenizers with several tokens per position: round trips, files, metrics, other libraries."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from arcvq import ArcvqError, Tokenizer
from arcvq.compat import TamingQuantizer
from arcvq.data import ImageSource, InMemoryImages, to_unit
from arcvq.metrics import evaluate
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.quantizers import GroupedVQ, MultichannelVQ, Quantizer, ResidualVQ
from arcvq.tasks import Phase, Reconstructor, TokenizerTask
from arcvq.tokenizers.card import model_card
from arcvq.tokenizers.files import Tokens, codebook_fingerprint

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)
# name → class, options, tokens per position, codebooks
KINDS: dict[str, tuple[type[Quantizer], dict[str, Any], int, int]] = {
    "residual": (ResidualVQ, {"depth": 3, "codebook": {"init": "normal"}}, 3, 1),
    "residual, unshared": (ResidualVQ, {"depth": 3, "shared": False, "codebook": {"init": "normal"}}, 3, 3),
    "grouped": (GroupedVQ, {"groups": 4, "codebook": {"init": "normal"}}, 4, 4),
    "multichannel": (MultichannelVQ, {"init": "normal"}, 4, 1),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def make_tokenizer(kind: str) -> Tokenizer:
    torch.manual_seed(3)
    cls, options, *_ = KINDS[kind]
    return Tokenizer(SmallAutoencoder(1, SMALL), cls(8, 16, **options), image_size=(28, 28)).eval()


@each_kind
def test_decoded_tokens_equal_reconstruction_also_from_file(kind: str, tmp_path: Path, sample_pixels: Tensor) -> None:
    tokenizer, images, width = make_tokenizer(kind), to_unit(sample_pixels), KINDS[kind][2]
    tokens = tokenizer.encode(images)
    assert tokens.shape == (12, 7, 7, width)
    assert tokenizer.tokens_per_image(28, 28) == 49 * width
    Tokens(tokens, [str(i) for i in range(12)], codebook_fingerprint(tokenizer)).save(tmp_path / "tokens.npz")
    stored = Tokens.load(tmp_path / "tokens.npz")
    assert torch.equal(stored.tokens, tokens)
    assert stored.codebook == codebook_fingerprint(tokenizer)
    assert torch.equal(tokenizer.decode(stored.tokens), tokenizer.reconstruct(images))
    with pytest.raises(ArcvqError, match="tokens per position"):
        tokenizer.decode(tokens[..., 0])


@each_kind
def test_metrics_count_codes_of_all_codebooks_and_bits_of_one(kind: str, sample_pixels: Tensor) -> None:
    tokenizer, (_, _, width, codebooks) = make_tokenizer(kind), KINDS[kind]
    images = InMemoryImages("sample", sample_pixels)
    quantizer = tokenizer.quantizer
    found = evaluate(
        Reconstructor(tokenizer),
        images,
        codebook=quantizer.codebook,
        choices=quantizer.config.codebook_size,
        metrics=["usage", "bits_per_image"],
    )
    tokens = tokenizer.encode(to_unit(sample_pixels)).flatten(0, 2)
    assert found.counts is not None
    assert found.counts.shape == (16 * codebooks,)
    parts = tokens.t() if codebooks > 1 else [tokens]
    expected = torch.cat([torch.bincount(part.flatten(), minlength=16) for part in parts])
    assert torch.equal(found.counts, expected)
    assert found.metrics["usage"] == pytest.approx(float((expected > 0).double().mean()))
    assert found.metrics["bits_per_image"] == pytest.approx(49 * width * math.log2(16))


@each_kind
def test_task_saves_count_of_every_code(kind: str, tmp_path: Path, sample_pixels: Tensor) -> None:
    tokenizer, codebooks = make_tokenizer(kind), KINDS[kind][3]
    task = TokenizerTask(tokenizer, lambda made, images: (made - images).square().mean())
    source = ImageSource(InMemoryImages("sample", sample_pixels), batch_size=4)
    line = task.evaluate(source, tmp_path, step=5)
    saved = load_file(tmp_path / "codebooks" / "step-00000005.safetensors")
    assert saved["codebook"].shape[0] == saved["counts"].shape[0] == 16 * codebooks
    assert int(saved["counts"].sum()) == 12 * 49 * KINDS[kind][2]
    assert 0 < line["usage"] <= 1


@pytest.mark.parametrize("kind", ["residual", "residual, unshared", "grouped"])
def test_stage_without_quantizer_freezes_every_codebook(kind: str, sample_pixels: Tensor) -> None:
    tokenizer = make_tokenizer(kind).train()
    stages = [(1, ("autoencoder",)), (1, ("autoencoder", "quantizer"))]
    task = TokenizerTask(tokenizer, lambda made, images, *_: {"mse": (made - images).square().mean()}, stages=stages)
    before = tokenizer.quantizer.codebook.detach().clone()
    for stage, moves in enumerate((False, kind != "grouped")):  # vq's codes are moved by the optimizer alone
        tokenizer.quantizer.requires_grad_(stage == 1)  # as the trainer does
        task.begin_phase(Phase(stage))
        _, out = tokenizer(to_unit(sample_pixels))
        tokenizer.quantizer.after_step(out)
        assert torch.equal(tokenizer.quantizer.codebook, before) != moves
        assert all(each.frozen == (stage == 0) for each in (tokenizer.quantizer, *tokenizer.quantizer.vqs()))
        assert all(layer.step == tokenizer.quantizer.step == stage + 1 for layer in tokenizer.quantizer.vqs())


def test_card_names_codebooks_and_bits() -> None:
    card = model_card(make_tokenizer("grouped"), {})
    assert "GroupedVQ, 4 codebooks of 16 codes of width 2" in card
    assert "| bits per image | 784 |" in card


@each_kind
def test_taming_layer_takes_flat_tokens(kind: str) -> None:
    cls, options, *_ = KINDS[kind]
    layer = TamingQuantizer(cls(8, 16, **options)).eval()
    quantized, _, (_, _, tokens) = layer(torch.randn(2, 8, 3, 5))
    assert torch.equal(layer.get_codebook_entry(tokens.flatten(), (2, 3, 5, 8)), quantized)
