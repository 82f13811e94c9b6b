"""Checkpoints of taming-transformers become tokenizers with the same tokens and the same images."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from other_projects import TamingVQGAN, perturb
from same_results import check_same, set_codes, some_images
from torch import Tensor, nn

from arcvq import ArcvqError, Tokenizer
from arcvq.nets import VqganConfig
from arcvq.tokenizers.foreign import import_tokenizer
from arcvq.tokenizers.foreign.weights import read_weights

DDCONFIG: dict[str, Any] = {
    "double_z": False,
    "z_channels": 6,
    "resolution": 16,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 32,
    "ch_mult": [1, 1, 2],
    "num_res_blocks": 1,
    "attn_resolutions": [16, 4],
    "dropout": 0.0,
}


@pytest.fixture(scope="module")
def taming() -> TamingVQGAN:
    torch.manual_seed(0)
    model = TamingVQGAN(embed_dim=4, n_embed=16, **DDCONFIG)
    perturb(model)
    with torch.no_grad():
        set_codes(model.quantize.embedding.weight, model.latents(some_images().float()))
    return model


def save(model: nn.Module, file: Path, **changes: Tensor | None) -> Path:
    """A checkpoint of the model, with these tensors changed, added, or left out."""
    state = {**model.state_dict(), **{name.replace("__", "."): value for name, value in changes.items()}}
    torch.save({"state_dict": {name: value for name, value in state.items() if value is not None}, "epoch": 3}, file)
    return file


def write_config(file: Path, **changes: Any) -> Path:
    network = {**DDCONFIG, **changes.pop("ddconfig", {})}
    parameters = {"embed_dim": 4, "n_embed": 16, "ddconfig": network, "lossconfig": {"target": "x.Loss"}, **changes}
    file.write_text(yaml.safe_dump({"model": {"target": "taming.models.vqgan.VQModel", "params": parameters}}))
    return file


@pytest.mark.parametrize("configured", [False, True], ids=["from shapes", "with its configuration"])
def test_taming_checkpoint_gives_same_tokens_and_images(configured: bool, taming: TamingVQGAN, tmp_path: Path) -> None:
    config = write_config(tmp_path / "x.yaml") if configured else None
    imported = import_tokenizer(save(taming, tmp_path / "x.ckpt"), config)
    tokenizer, images = imported.tokenizer, some_images()
    assert tokenizer.autoencoder.config == VqganConfig(
        latent_dim=4, width=32, multipliers=(1, 1, 2), blocks=1, attention=(1, 4), z_channels=6
    )
    assert tokenizer.image_size == ((16, 16) if configured else None)
    assert imported.metric == "euclidean"
    assert tokenizer.quantizer.config.legacy
    theirs = TamingVQGAN(4, 16, **DDCONFIG).double()
    theirs.load_state_dict(taming.state_dict())
    with torch.no_grad():
        latents = theirs.latents(images)
        tokens = theirs.tokens(latents)
        check_same(tokenizer, images, latents, tokens, theirs.decode(tokens))


def test_imported_tokenizer_can_be_saved_and_loaded(taming: TamingVQGAN, tmp_path: Path) -> None:
    tokenizer = import_tokenizer(save(taming, tmp_path / "x.ckpt")).tokenizer
    loaded = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path / "model"))
    images = some_images().float()
    assert torch.equal(loaded.encode(images), tokenizer.encode(images))
    assert torch.equal(loaded.reconstruct(images), tokenizer.reconstruct(images))
    assert loaded.quantizer.step == 0


@pytest.mark.parametrize(
    ("number", "blocks", "multipliers", "attended"), [(1, 2, [1, 2], []), (2, 1, [2], [8, 16]), (3, 3, [2, 1, 3], [8])]
)
def test_configurations_are_found_by_shapes(
    number: int, blocks: int, multipliers: list[int], attended: list[int], tmp_path: Path
) -> None:
    options = {"num_res_blocks": blocks, "ch_mult": multipliers, "attn_resolutions": attended, "z_channels": 3 + number}
    model = TamingVQGAN(embed_dim=number, n_embed=5, **{**DDCONFIG, **options})
    found = import_tokenizer(save(model, tmp_path / "x.ckpt")).tokenizer.autoencoder.config
    levels = [2**level for level in range(len(multipliers)) if 16 // 2**level in attended]
    assert found == VqganConfig(
        latent_dim=number,
        width=32,
        multipliers=tuple(multipliers),
        blocks=blocks,
        attention=tuple(levels),
        z_channels=3 + number,
    )


def test_trunk_without_attention_is_found_by_shapes(taming: TamingVQGAN, tmp_path: Path) -> None:
    without = {name.replace(".", "__"): None for name in taming.state_dict() if "attn" in name}
    found = import_tokenizer(save(taming, tmp_path / "x.ckpt", **without)).tokenizer.autoencoder.config
    assert (found.attention, found.middle_attention) == ((), False)


def test_configuration_of_the_papers_vqgan_says_cosine(taming: TamingVQGAN, tmp_path: Path) -> None:
    config = write_config(tmp_path / "x.yaml", bbnr_alpha=5e-5)
    assert import_tokenizer(save(taming, tmp_path / "x.ckpt"), config).metric == "cosine"


def test_half_precision_becomes_float32(taming: TamingVQGAN, tmp_path: Path) -> None:
    half = save(TamingVQGAN(4, 16, **DDCONFIG).half(), tmp_path / "x.ckpt")
    tokenizer = import_tokenizer(half).tokenizer
    assert tokenizer.dtype == torch.float32
    assert torch.equal(tokenizer.quantizer.codebook, read_weights(half).read("quantize.embedding.weight").float())


def test_metric_that_is_given_counts(taming: TamingVQGAN, tmp_path: Path) -> None:
    file = save(taming, tmp_path / "x.ckpt")
    by_distance, by_angle = (import_tokenizer(file, metric=metric).tokenizer for metric in ("euclidean", "cosine"))
    images = some_images().float()
    assert not torch.equal(by_distance.encode(images), by_angle.encode(images))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder__conv_in__bias": None}, r"1 missing \(e\.g\. encoder\.conv_in\.bias\)"),
        ({"decoder__up__0__extra__weight": torch.ones(1)}, r"1 unexpected \(e\.g\. decoder\.up\.0\.extra\.weight\)"),
        ({"colorize": torch.ones(3)}, r"1 unexpected \(e\.g\. colorize\)"),
        ({"decoder__conv_out__weight": torch.ones(1, 32, 3, 3)}, r"decoder\.conv_out\.weight of shape \[1, 32, 3, 3\]"),
        ({"encoder__conv_out__weight": None}, r"encoder\.conv_out\.weight is missing"),
        ({"encoder__conv_in__weight": torch.ones(33, 3, 3, 3)}, "its first layer 33"),
        ({"quantize__embedding__weight": None}, "has no codebook"),
        ({"quantize__embedding__weight": torch.ones(16, 5)}, r"quantize\.embedding\.weight of shape \[16, 5\]"),
        ({"quantize__embed__weight": torch.ones(16, 4)}, "GumbelQuantize"),
        ({"quantize__used": torch.ones(4)}, "remap"),
        ({"quantize__embedding__embed_avg": torch.ones(16, 4)}, "EMAVectorQuantizer"),
        ({"first_stage_model__quant_conv__weight": torch.ones(1)}, "its first stage"),
        ({"encoder__conv_in__bias": torch.full((32,), float("nan"))}, "encoder.conv_in.bias has NaN"),
    ],
)
def test_unfit_taming_checkpoints_are_refused(
    changes: dict[str, Any], message: str, taming: TamingVQGAN, tmp_path: Path
) -> None:
    with pytest.raises(ArcvqError, match=message):
        import_tokenizer(save(taming, tmp_path / "x.ckpt", **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embed": 32}, "n_embed is 32, but the checkpoint's tensors say 16"),
        ({"ddconfig": {"ch_mult": [1, 2, 2]}}, r"ch_mult is \[1, 2, 2\]"),
        ({"ddconfig": {"attn_resolutions": [8]}}, r"attn_resolutions is \[8\], .* \[16, 4\]"),
        ({"ddconfig": {"resolution": "big"}}, "resolution: expected the side"),
        ({"ddconfig": 3}, "ddconfig is missing"),
    ],
)
def test_configuration_of_another_network_is_refused(
    changes: dict[str, Any], message: str, taming: TamingVQGAN, tmp_path: Path
) -> None:
    if changes == {"ddconfig": 3}:
        config = tmp_path / "x.yaml"
        config.write_text("model: {params: {n_embed: 3}}")
    else:
        config = write_config(tmp_path / "x.yaml", **changes)
    with pytest.raises(ArcvqError, match=message):
        import_tokenizer(save(taming, tmp_path / "x.ckpt"), config)
