"""Checkpoints of other projects become tokenizers with the same tokens and the same images."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from diffusers import VQModel
from other_projects import SmallVQVAE, TamingVQGAN, perturb
from torch import Tensor, nn

from arcvq import ArcvqError, Tokenizer
from arcvq.nets import MovqConfig, SmallConfig, VqganConfig
from arcvq.tokenizers.foreign import Imported, import_tokenizer
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


def some_images(channels: int = 3, height: int = 16, width: int = 24) -> Tensor:
    return (
        torch.rand(2, channels, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    )


def check_same(tokenizer: Tokenizer, images: Tensor, latents: Tensor, tokens: Tensor, decoded: Tensor) -> None:
    """In float64, so that only rounding differs."""
    tokenizer = tokenizer.double()
    torch.testing.assert_close(tokenizer.latents(images), latents, rtol=1e-10, atol=1e-10)
    assert len(tokens.unique()) > 4
    assert torch.equal(tokenizer.encode(images), tokens)
    torch.testing.assert_close(tokenizer.decode(tokens), decoded.clamp(-1, 1), rtol=1e-10, atol=1e-10)


def set_codes(codebook: Tensor, latents: Tensor) -> None:
    """Codes near the latents, of different lengths: so many are used, and distance and angle choose others."""
    rows = latents.movedim(1, -1).reshape(-1, latents.shape[1])
    picked = rows[torch.randperm(len(rows))[: len(codebook)]]
    scales = 0.4 * torch.rand(len(picked), 1, dtype=picked.dtype) + 0.8
    codebook.copy_((picked * scales).to(codebook.dtype))


# ---- taming-transformers --------------------------------------------------------------------------------------------


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


# ---- diffusers ------------------------------------------------------------------------------------------------------

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
    import json

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


# ---- the small models -----------------------------------------------------------------------------------------------


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


# ---- anything else --------------------------------------------------------------------------------------------------


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "x.pt")
    with pytest.raises(ArcvqError, match="tensors such as bias, and is no checkpoint that arcvq knows"):
        import_tokenizer(tmp_path / "x.pt")
    with pytest.raises(ArcvqError, match="no such file or folder"):
        import_tokenizer(tmp_path / "none.pt")


def test_configuration_is_refused_where_there_is_none(vqmodel_folder: Path, tmp_path: Path) -> None:
    torch.save(make_small("cosine")[0].state_dict(), tmp_path / "best.pt")
    for source in (vqmodel_folder, tmp_path / "best.pt"):
        with pytest.raises(ArcvqError, match="leave --config out"):
            import_tokenizer(source, tmp_path / "x.yaml")
