"""Folders of diffusers' VQModel become tokenizers with the same tokens and the same images."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import VQModel
from other_projects import perturb
from same_results import check_same, set_codes, some_images

from arcvq import ArcvqError
from arcvq.nets import MovqConfig, VqganConfig
from arcvq.tokenizers.foreign import Imported, import_tokenizer

VQMODEL: dict[str, Any] = {
    "down_block_types": ("AttnDownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
    "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D", "AttnUpDecoderBlock2D"),
    "block_out_channels": (16, 32, 32),
    "layers_per_block": 1,
    "latent_channels": 6,
    "vq_embed_dim": 4,
    "norm_num_groups": 8,
    "num_vq_embeddings": 16,
}
SPATIAL: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
    "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
    "block_out_channels": (32, 64),
    "latent_channels": 4,
    "num_vq_embeddings": 16,
    "norm_type": "spatial",
}


def make_vqmodel(**options: Any) -> Any:
    torch.manual_seed(0)
    model = VQModel(**options)
    perturb(model)
    with torch.no_grad():
        set_codes(model.quantize.embedding.weight, model.encode(some_images().float()).latents)
    return model.eval()


def write_vqmodel(folder: Path, safe: bool = True, **changes: Any) -> Path:
    make_vqmodel(**{**VQMODEL, **changes}).save_pretrained(folder, safe_serialization=safe)
    return folder


def check_same_as_vqmodel(imported: Imported, theirs: Any) -> None:
    theirs, images = theirs.double(), some_images()
    with torch.no_grad():
        latents = theirs.encode(images).latents
        _, _, (_, _, tokens) = theirs.quantize(latents)
        decoded = theirs.decode(latents).sample
    grid = tokens.view(latents.shape[0], *latents.shape[2:])
    check_same(imported.tokenizer, images, latents, grid, decoded)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, VqganConfig),
        ({"mid_block_add_attention": False, "layers_per_block": 2}, VqganConfig),
        (SPATIAL, MovqConfig),
    ],
    ids=["attention", "no attention in the middle", "modulated norms"],
)
def test_vqmodel_gives_same_tokens_and_images(changes: dict[str, Any], expected: type, tmp_path: Path) -> None:
    options = changes if changes is SPATIAL else {**VQMODEL, **changes}
    model = make_vqmodel(**options)
    model.save_pretrained(tmp_path / "model")
    imported = import_tokenizer(tmp_path / "model")
    assert type(imported.tokenizer.autoencoder.config) is expected
    check_same_as_vqmodel(imported, model)


def test_vqmodel_in_a_pickle_and_with_old_names_gives_same_tokens_and_images(tmp_path: Path) -> None:
    model = make_vqmodel(**VQMODEL)
    model.save_pretrained(tmp_path / "model", safe_serialization=False)
    file = tmp_path / "model" / "diffusion_pytorch_model.bin"
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def rename(name: str) -> str:
        for new, before in old.items():
            name = name.replace(f".{new}.", f".{before}.")
        return name

    state = {rename(name): value for name, value in torch.load(file).items()}
    assert any(".query." in name for name in state)
    torch.save(state, file)
    check_same_as_vqmodel(import_tokenizer(tmp_path / "model"), model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "AutoencoderKL"}, "_class_name is 'AutoencoderKL', expected 'VQModel'"),
        ({"_class_name": None, "format": "x", "quantizer": {}}, "a tokenizer of arcvq already"),
        ({"act_fn": "relu"}, "act_fn must be silu, got 'relu'"),
        ({"out_channels": 4}, "in_channels and out_channels must be equal, got 3 and 4"),
        ({"block_out_channels": [16, 24, 32]}, "multiples of the first"),
        ({"block_out_channels": [16, 32]}, "one entry a level"),
        ({"up_block_types": ["UpDecoderBlock2D"] * 3}, "attention at the same levels"),
        ({"down_block_types": ["DownBlock2D"] * 3}, "a level is 'DownBlock2D'"),
        ({"norm_type": "spatial"}, "norm_type spatial needs norm_num_groups 32"),
        ({"norm_type": "layer"}, "norm_type"),
        ({"layers_per_block": "two"}, "layers_per_block: expected a number"),
        ({"norm_num_groups": 7}, "multiple of autoencoder.groups"),
        ({"layers_per_block": 2}, "missing"),
        ({"num_vq_embeddings": 17}, r"quantize\.embedding\.weight of shape \[16, 4\] instead of \[17, 4\]"),
        ({"new_option": 1}, "unknown key 'new_option'"),
    ],
)
def test_unfit_vqmodels_are_refused(
    changes: dict[str, Any], message: str, vqmodel_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(vqmodel_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ArcvqError, match=message):
        import_tokenizer(folder)


@pytest.fixture(scope="module")
def vqmodel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vqmodel(tmp_path_factory.mktemp("vqmodel") / "model")


def test_folder_without_weights_or_configuration_is_refused(vqmodel_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"config\.json is missing"):
        import_tokenizer(tmp_path)
    shutil.copy(vqmodel_folder / "config.json", tmp_path)
    with pytest.raises(ArcvqError, match=r"neither diffusion_pytorch_model\.safetensors nor"):
        import_tokenizer(tmp_path)


def test_configuration_beside_a_folder_is_refused(vqmodel_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="leave --config out"):
        import_tokenizer(vqmodel_folder, tmp_path / "x.yaml")
