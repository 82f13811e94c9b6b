"""The presets for large images: each parses and says what it is, and each system trains on tiny photographs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import Tokenizer
from arcvq.data import write_png
from arcvq.quantizers import Arc, Ball
from arcvq.systems import SYSTEMS, TokenizerConfig, load_config, preset_header, preset_names, train

FOLDERS = ("faces", "ffhq", "imagenet", "photos", "photos-128")
PRESETS = [
    name for name in preset_names() if name.split("/")[0] in FOLDERS and isinstance(load_config(name), TokenizerConfig)
]
TRAINED = [*(name for name in PRESETS if name.startswith("photos-128/")), "cifar10/arcvq-gan"]
# The latents' sides at 256² and the bits of an image's tokens, as in the published tables.
PRINTED = {
    "arcvq-vqgan-f16": (16, 2560),
    "arcvq-vqgan-f8": (32, 10240),
    "cvq-vqgan": (16, 2560),
    "cvq-vqgan-4": (16, 10240),
    "df-vqgan": (32, 13312),
    "movq": (16, 10240),
    "rq-vae": (8, 14336),
    "seq-gan": (16, 2560),
    "vit-vqgan-base": (32, 13312),
    "vit-vqgan-large": (32, 13312),
    "vit-vqgan-small": (32, 13312),
    "vqgan-ema": (16, 3584),
    "vqgan-f16": (16, 2560),
    "vqgan-fc": (16, 3584),
    "vqgan-lc": (32, 17008),
}
SMALL_TRUNK = {"width": 8, "groups": 4, "multipliers": "[1, 2, 2]", "attention": "[4]", "latent_dim": 8}
SMALL_PARTS: dict[str, dict[str, Any]] = {
    "autoencoder": SMALL_TRUNK,
    "vit": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32, "patch": 4, "latent_dim": 8},
    "patch": {"width": 8, "layers": 1, "groups": 4},
    "stylegan": {"width": 8, "max_width": 16, "levels": 2},
    "quantizer": {"codebook_size": 16},
    "fsq": {"codebook_size": 16, "levels": "[4, 4]"},
}


def config_of(name: str, *arguments: str) -> TokenizerConfig:
    config = load_config(name, list(arguments))
    assert isinstance(config, TokenizerConfig)
    return config


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    torch.manual_seed(0)
    for i in range(12):
        coarse = torch.rand(1, 3, 4, 4)
        pixels = torch.nn.functional.interpolate(coarse, size=(36, 40), mode="bilinear")[0]
        write_png(folder / f"{i:02d}.png", (pixels * 255).to(torch.uint8))
    return folder


def small_settings(name: str, photographs: Path) -> list[str]:
    """Arguments that make a preset small enough for a test, and keep what its system is."""
    config = config_of(name)
    assert config.adversarial is not None
    kinds = {
        "autoencoder": SMALL_PARTS["vit" if name.endswith("vit-vqgan") else "autoencoder"],
        "quantizer": SMALL_PARTS["fsq" if name.endswith("/fsq") else "quantizer"],
        "adversarial.discriminator": SMALL_PARTS["stylegan" if name.endswith("vit-vqgan") else "patch"],
        "data": {"name": f"folder:{photographs}", "image_size": 32, "batch_size": 4, "holdout_every": 4},
        "training": {"evaluations": 1, "checkpoints": 1, "log_every": 1, "precision": "fp32", "device": "cpu"},
    }
    if config.training.stages:
        kinds["training"]["stages"] = "[{steps: 2}, {train: [autoencoder.decoder], steps: 2}]"
    else:
        kinds["training"]["steps"] = 4
    if config.adversarial.r1:
        kinds["adversarial"] = {"r1_every": 2}
    return [f"--{section}.{key}={value}" for section, parts in kinds.items() for key, value in parts.items()]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_parses_and_says_how_it_is_run(name: str) -> None:
    config, header = config_of(name), "\n".join(preset_header(name))
    assert config.system in SYSTEMS
    assert f"arcvq train {name} --out" in header
    assert SYSTEMS[config.system].citation.rstrip(".") in header
    assert "Measured:" in header
    assert config.adversarial is not None


@pytest.mark.parametrize("name", PRINTED)
def test_printed_presets_have_the_published_rate(name: str) -> None:
    config = config_of(f"imagenet/{name}")
    assert config.data.image_size == 256
    with torch.device("meta"):
        tokenizer = config.build_tokenizer(3, (256, 256), 1000)
    side, bits = PRINTED[name]
    assert 256 // tokenizer.downsampling == side
    rate = tokenizer.tokens_per_image(256, 256) * torch.tensor(float(tokenizer.quantizer.config.codebook_size)).log2()
    assert float(rate) == pytest.approx(bits, abs=1)


def test_every_printed_preset_is_compared() -> None:
    presets = {name.removeprefix("imagenet/") for name in PRESETS if name.startswith("imagenet/")}
    assert presets == set(PRINTED) | {"arcvq-vqgan-plus", "vqgan-f8"}


def test_arcvq_vqgan_has_the_printed_hyperparameters() -> None:
    for name in (
        "imagenet/arcvq-vqgan-f8",
        "imagenet/arcvq-vqgan-f16",
        *(f"ffhq/arcvq-vqgan-d{d}" for d in (4, 8, 16)),
    ):
        config = config_of(name)
        assert config.quantizer.arc == Arc(scale=10, margin=0.1, top_k=3, weight=1.0, decay=1e-4)
        assert config.quantizer.ball == Ball(alpha=1e-5)
        assert (config.quantizer.metric, config.quantizer.init) == ("cosine", "unit-sphere")
        assert config.training.learning_rate == pytest.approx(4.5e-6 * config.data.batch_size)
    assert [config_of(f"ffhq/arcvq-vqgan-d{d}").autoencoder.latent_dim for d in (4, 8, 16)] == [4, 8, 16]


def test_rivals_of_one_table_differ_only_in_what_their_system_is() -> None:
    base = config_of("photos-128/vqgan")
    for name in (
        "vqgan-sphere",
        "vqgan-bbnr",
        "cvq-vqgan",
        "arcvq-vqgan",
        "vqgan-ema",
        "rq-vae",
        "fsq",
        "lfq",
        "simvq",
    ):
        config = config_of(f"photos-128/{name}")
        same = (config.autoencoder, config.objective, config.adversarial, config.data, config.training)
        assert same == (base.autoencoder, base.objective, base.adversarial, base.data, base.training)


@pytest.mark.parametrize("name", sorted(name for name in PRESETS if name.startswith("imagenet/")))
def test_imagenet_is_cropped_at_random_from_the_whole_image(name: str) -> None:
    data = config_of(name).data
    assert (data.image_size, data.crop, data.flip) == (256, 256, False)


@pytest.mark.parametrize("name", ["imagenet/vqgan-fc", "imagenet/vqgan-lc", "photos-128/vqgan-lc", "faces/vqgan-lc"])
def test_loss_of_vqgan_lc_has_a_tenth_of_the_quantizers_terms(name: str) -> None:
    quantizer: Any = config_of(name).quantizer
    assert (quantizer.commitment_weight, quantizer.codebook_weight) == (0.1, 0.033)
    assert config_of("imagenet/vqgan-ema").quantizer.commitment_weight == 0.1


@pytest.mark.parametrize(("name", "positions"), [("imagenet/rq-vae", 64), ("photos-128/rq-vae", 256)])
def test_rq_vae_moves_codes_with_less_than_one_token_per_step(name: str, positions: int) -> None:
    config = config_of(name)
    quantizer: Any = config.quantizer
    tokens = config.data.batch_size * positions * quantizer.depth
    assert quantizer.codebook.restart.threshold == quantizer.codebook_size / tokens
    assert quantizer.codebook.restart.decay == quantizer.codebook.decay


@pytest.mark.parametrize("name", [name for name in PRESETS if "vit-vqgan" in name])
def test_weights_of_vit_vqgan_are_for_images_from_minus_1_to_1(name: str) -> None:
    config = config_of(name)
    assert config.adversarial is not None
    assert (config.objective.l2, config.adversarial.r1) == (1.0 / 2**2, 10.0 * 2**2)
    assert (config.objective.perceptual, config.objective.laplace, config.adversarial.weight) == (0.1, 0.1, 0.1)


@pytest.mark.usefixtures("lpips_weights")
@pytest.mark.parametrize("name", TRAINED)
def test_system_trains_on_tiny_photographs(name: str, photographs: Path, tmp_path: Path) -> None:
    config = config_of(name, *small_settings(name, photographs))
    train(config, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["kind"] == "train"]
    assert len(logged) == 4
    assert "adversarial" in logged[-1]
    assert "discriminator" in logged[-1]
    tokenizer = Tokenizer.from_pretrained(tmp_path / "run")
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    tokens = tokenizer.encode(images)
    assert tokenizer.decode(tokens).shape == images.shape
