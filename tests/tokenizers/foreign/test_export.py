"""Tokenizers in other formats: diffusers decodes to the same images, ONNX files do all the same."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from diffusers import VQModel
from other_projects import perturb
from torch import Tensor

from arcvq import ArcvqError, Tokenizer
from arcvq.config import parse
from arcvq.nets import (
    AutoencoderConfig,
    DfvqganConfig,
    MovqConfig,
    SmallConfig,
    StackedConfig,
    VitConfig,
    VqganConfig,
)
from arcvq.quantizers import QUANTIZERS
from arcvq.tokenizers import build_tokenizer
from arcvq.tokenizers.foreign import import_tokenizer
from arcvq.tokenizers.foreign.diffusers_export import export_diffusers
from arcvq.tokenizers.foreign.onnx_export import export_onnx

VQGAN: dict[str, Any] = {
    "width": 8,
    "multipliers": (1, 2, 2),
    "attention": (2,),
    "blocks": 1,
    "groups": 4,
    "latent_dim": 4,
    "z_channels": 6,
}
MOVQ: dict[str, Any] = {"width": 32, "multipliers": (1, 2), "attention": (2,), "blocks": 1, "latent_dim": 4}
SMALL = SmallConfig(width=8, residual_width=4, latent_dim=8)
UNIT = {"metric": "cosine", "output": "unit", "init": "normal"}


def make_tokenizer(
    autoencoder: AutoencoderConfig, kind: str = "vq", grid: tuple[int, int] = (5, 7), **options: Any
) -> Tokenizer:
    """An untrained tokenizer of RGB images, whose codes lie where its latents are."""
    torch.manual_seed(0)
    quantizer = parse(QUANTIZERS.config(kind), {"codebook_size": 16, **options})
    tokenizer = build_tokenizer(3, autoencoder, quantizer, image_size=(32, 32)).eval()
    perturb(tokenizer)
    if kind in ("vq", "arcvq"):
        with torch.no_grad():
            rows = tokenizer.quantizer.to_code_space(tokenizer.latents(some_images(tokenizer, 3, *grid)).movedim(1, -1))
            tokenizer.quantizer.codebook.copy_(rows[torch.randperm(len(rows))[:16]] * (0.4 * torch.rand(16, 1) + 0.8))
    return tokenizer


def some_images(tokenizer: Tokenizer, number: int = 3, height: int = 5, width: int = 7) -> Tensor:
    sides = (height * tokenizer.downsampling, width * tokenizer.downsampling)
    return torch.rand(number, tokenizer.channels, *sides, generator=torch.Generator().manual_seed(7)) * 2 - 1


# ---- diffusers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("autoencoder", "kind", "options", "same_tokens"),
    [
        (VqganConfig(**VQGAN), "vq", {}, True),
        (VqganConfig(**{**VQGAN, "blocks": 2, "middle_attention": False}), "emavq", {"init": "normal"}, True),
        (VqganConfig(**{**VQGAN, "attention": (1, 4), "z_channels": None}), "simvq", {}, True),
        (VqganConfig(**VQGAN), "vq", UNIT, True),
        (VqganConfig(**VQGAN), "arcvq", {}, False),
        (MovqConfig(**MOVQ), "vq", {}, True),
    ],
    ids=["vq", "emavq", "simvq", "unit codes", "arcvq", "movq"],
)
def test_vqmodel_decodes_tokens_to_same_images(
    autoencoder: VqganConfig, kind: str, options: dict[str, Any], same_tokens: bool, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer(autoencoder, kind, **options)
    assert export_diffusers(tokenizer, tmp_path / "model", decoder_only=not same_tokens) is same_tokens
    model, about = VQModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(about.values())
    images = some_images(tokenizer)
    tokens = tokenizer.encode(images)
    with torch.no_grad():
        latents = model.encode(images).latents
        found = model.quantize(latents)[2][2].view(tokens.shape)
        decoded = model.decode(tokens, force_not_quantize=True, shape=(*tokens.shape, 4)).sample
        codes = tokenizer.quantizer.decode(tokens)
        from_codes = model.decode(codes, force_not_quantize=False).sample
    torch.testing.assert_close(latents, tokenizer.latents(images), rtol=1e-4, atol=1e-4)
    assert torch.equal(found, tokens) is same_tokens
    torch.testing.assert_close(decoded.clamp(-1, 1), tokenizer.decode(tokens), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(from_codes, decoded, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["vq", "arcvq"])
def test_readme_of_the_folder_gives_same_tokens_and_images(kind: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(VqganConfig(**VQGAN), kind)
    export_diffusers(tokenizer, tmp_path / "model", decoder_only=True)
    code = (tmp_path / "model" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    images = some_images(tokenizer)
    batch, _, height, width = tokenizer.latents(images).shape
    names: dict[str, Any] = {"images": images, "batch": batch, "height": height, "width": width}
    with torch.no_grad():
        exec(code.replace("PATH", str(tmp_path / "model")), names)
    assert torch.equal(names["tokens"], tokenizer.encode(images))
    torch.testing.assert_close(names["images"], tokenizer.reconstruct(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("autoencoder", [VqganConfig(**VQGAN), MovqConfig(**MOVQ)], ids=["vqgan", "movq"])
def test_exported_folder_can_be_imported_again(autoencoder: VqganConfig, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(autoencoder)
    export_diffusers(tokenizer, tmp_path / "model")
    again = import_tokenizer(tmp_path / "model").tokenizer
    assert type(again.autoencoder) is type(tokenizer.autoencoder)
    weights = tokenizer.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())


def test_cosine_tokenizer_is_refused_without_the_flag(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(VqganConfig(**VQGAN), "arcvq")
    with pytest.raises(ArcvqError, match=r"chooses codes by cosine, .* other tokens; add --decoder-only"):
        export_diffusers(tokenizer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("autoencoder", "kind", "options", "message"),
    [
        (SMALL, "vq", {}, "no SmallAutoencoder"),
        (VitConfig(width=64, depth=1, heads=1, feedforward=8, latent_dim=4), "vq", {}, "no VitAutoencoder"),
        (DfvqganConfig(**{**VQGAN, "z_channels": None}), "vq", {}, "no DfvqganAutoencoder"),
        (StackedConfig(width=8), "hvq", {}, "no StackedAutoencoder"),
        (VqganConfig(**{**VQGAN, "multipliers": (2, 2)}), "vq", {}, "begin with 1, not 2"),
        (VqganConfig(**{**VQGAN, "decoder_blocks": 1}), "vq", {}, "one block more .* 2, not 1"),
        (MovqConfig(**MOVQ, condition_conv=True), "vq", {}, "condition_conv"),
        (MovqConfig(**MOVQ, z_channels=6), "vq", {}, "z_channels equal to latent_dim"),
        (MovqConfig(**MOVQ, groups=16), "vq", {}, "need groups 32"),
        (VqganConfig(**VQGAN), "fsq", {}, "FSQ does not fit"),
        (VqganConfig(**VQGAN), "residual", {}, "ResidualVQ does not fit"),
        (VqganConfig(**VQGAN), "gaussian", {"codebook_size": 0}, "Gaussian does not fit"),
        (VqganConfig(**VQGAN), "vq", {"heads": 2}, "VQ with heads"),
        (VqganConfig(**VQGAN), "multichannel", {"channels": 2}, "MultichannelVQ with heads"),
        (VqganConfig(**VQGAN), "vq", {"code_dim": 3}, "a code_dim of its own"),
    ],
)
def test_what_vqmodel_cannot_be_is_refused(
    autoencoder: AutoencoderConfig, kind: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    quantizer = parse(QUANTIZERS.config(kind), {"codebook_size": 16, **options})
    tokenizer = build_tokenizer(3, autoencoder, quantizer)
    with pytest.raises(ArcvqError, match=message):
        export_diffusers(tokenizer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_diffusers_configuration_says_the_size(tmp_path: Path) -> None:
    export_diffusers(make_tokenizer(VqganConfig(**VQGAN)), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert (config["_class_name"], config["sample_size"], config["num_vq_embeddings"]) == ("VQModel", 32, 16)


# ---- ONNX -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("autoencoder", "kind", "options"),
    [
        (SMALL, "vq", {"heads": 2, "code_dim": 3}),
        (VqganConfig(**{**VQGAN, "multipliers": (1, 2)}), "arcvq", {}),
    ],
    ids=["small, by distance, with heads", "vqgan, by cosine"],
)
def test_onnx_files_give_same_tokens_and_images(
    autoencoder: AutoencoderConfig, kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = make_tokenizer(autoencoder, kind, **options)
    given = copy.deepcopy(tokenizer).train()
    result = export_onnx(given, tmp_path / "onnx")
    assert given.training
    assert all(torch.equal(value, given.state_dict()[name]) for name, value in tokenizer.state_dict().items())
    assert result.same_tokens == 1
    assert 0 < result.pixel_difference < 1e-4
    encoder, decoder = (
        onnxruntime.InferenceSession(tmp_path / "onnx" / f"{side}.onnx") for side in ("encoder", "decoder")
    )
    for number, height, width in ((1, 1, 1), (3, 5, 7), (2, 9, 4)):  # none is the size that was traced
        images = some_images(tokenizer, number, height, width)
        tokens = tokenizer.encode(images)
        (found,) = encoder.run(["tokens"], {"images": images.numpy()})
        assert found.dtype == np.int64
        assert np.array_equal(found, tokens.numpy())
        (decoded,) = decoder.run(["images"], {"tokens": tokens.numpy()})
        np.testing.assert_allclose(decoded, tokenizer.decode(tokens).numpy(), rtol=0, atol=1e-4)
    assert len(tokenizer.encode(some_images(tokenizer)).unique()) > 4


def test_onnx_files_of_a_fixed_size_take_any_batch(tmp_path: Path) -> None:
    config = VitConfig(latent_dim=4, patch=8, width=64, depth=1, heads=1, feedforward=8)
    tokenizer = make_tokenizer(config, grid=(4, 4))
    export_onnx(tokenizer, tmp_path / "onnx")
    encoder = onnxruntime.InferenceSession(tmp_path / "onnx" / "encoder.onnx")
    images = some_images(tokenizer, 5, 4, 4)
    (found,) = encoder.run(None, {"images": images.numpy()})
    assert np.array_equal(found, tokenizer.encode(images).numpy())
    assert "of 32×32 pixels" in (tmp_path / "onnx" / "README.md").read_text(encoding="utf-8")
    with pytest.raises(Exception, match="Got: 40 Expected: 32"):
        encoder.run(None, {"images": some_images(tokenizer, 1, 5, 4).numpy()})


def test_continuous_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(1, SMALL, parse(QUANTIZERS.config("gaussian"), {"codebook_size": 0}))
    with pytest.raises(ArcvqError, match="Gaussian is continuous"):
        export_onnx(tokenizer, tmp_path / "onnx")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arcvq.tokenizers.foreign import onnx_export

    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None if name == "onnxscript" else sys)
    with pytest.raises(ArcvqError, match=r"needs onnxscript: pip install 'arcvq\[export\]'"):
        export_onnx(make_tokenizer(SMALL), tmp_path / "onnx")


def test_files_that_differ_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the runtime computed something else."""
    from arcvq.tokenizers.foreign import onnx_export

    class OtherSession:
        def __init__(self, path: Path) -> None:
            pass

        def run(self, outputs: Any, inputs: dict[str, Any]) -> list[Any]:
            name = next(iter(inputs))
            shape = (3, 8, 10) if name == "images" else (3, 3, 32, 40)
            return [np.full(shape, 99, np.int64 if name == "images" else np.float32)]

    monkeypatch.setattr(onnx_export, "_write", lambda *_: None)
    monkeypatch.setattr("onnxruntime.InferenceSession", OtherSession)
    with pytest.raises(ArcvqError, match=r"differ from the tokenizer \(0\.0% of tokens the same"):
        export_onnx(make_tokenizer(SMALL), tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []
