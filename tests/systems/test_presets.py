"""Every shipped preset parses, says how it is run, and is what its name says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from arcvq import Arc, ArcvqError, Ball
from arcvq.config import to_dict
from arcvq.data import to_unit
from arcvq.quantizers import Entropy
from arcvq.systems import (
    SYSTEMS,
    TokenizerConfig,
    load_config,
    preset_header,
    preset_names,
    preset_path,
    preset_title,
)

# The presets that train a tokenizer; those of priors need one.
TOKENIZERS = [name for name in preset_names() if isinstance(load_config(name), TokenizerConfig)]
DATA_SETS = ("cifar10", "fashion-mnist", "mnist", "sample")
NAMES = (
    "arcvq-vae",
    "arcvq-vae-fixed-ball",
    "cvq-vae",
    "cvq-vae-samp",
    "hvq-vae",
    "released-code",
    "simvq",
    "simvq-samp",
    "vq-vae",
    "vq-vae-bbnr",
    "vq-vae-bbnr-euclidean",
    "vq-vae-cosine",
    "vq-vae-ema",
    "vq-vae-ema-samp",
    "vq-vae-rotation",
    "vq-vae-rotation-samp",
)
# preset → metric, init, ball, arc
PAPER_ARC, PAPER_BALL = Arc(), Ball()
QUANTIZERS: dict[str, tuple[str, str, Ball | None, Arc | None]] = {
    "arcvq-vae": ("cosine", "unit-sphere", PAPER_BALL, PAPER_ARC),
    "arcvq-vae-fixed-ball": ("cosine", "unit-sphere", Ball(schedule="constant", start=1.0), PAPER_ARC),
    "released-code": ("cosine", "unit-sphere", PAPER_BALL, Arc(scale=5.0)),
    "vq-vae": ("euclidean", "uniform", None, None),
    "vq-vae-bbnr": ("cosine", "unit-sphere", PAPER_BALL, None),
    "vq-vae-bbnr-euclidean": ("euclidean", "unit-sphere", PAPER_BALL, None),
    "vq-vae-cosine": ("cosine", "uniform", None, None),
    "vq-vae-ema": ("euclidean", "uniform", None, None),
    "vq-vae-rotation": ("euclidean", "uniform", None, None),
    "cvq-vae": ("cosine", "uniform", None, None),
    "simvq": ("euclidean", "scaled-normal", None, None),
    **{
        f"{name}-samp": ("cosine", "unit-sphere", PAPER_BALL, PAPER_ARC)
        for name in ("vq-vae-ema", "vq-vae-rotation", "cvq-vae", "simvq")
    },
}
# What the codebook's parameters become: running means are none, a linear layer takes their place, a stack is another autoencoder.
OTHER_PARAMETERS = {"vq-vae-ema": -32_768, "simvq": 64 * 65 - 32_768}
STACK = {1: 694_593, 3: 695_747}


# The other systems' presets → the settings that make them what they are
OTHERS: dict[str, dict[str, Any]] = {
    "fsq": {"codebook_size": 512, "levels": (8, 8, 8)},
    "hyperspherical-vae": {"codebook_size": 0, "latent_dim": 65, "weight": 1.0, "kappa_floor": 1.0},
    "lfq": {
        "codebook_size": 512,
        "entropy": Entropy(weight=0.1, temperature=1.0),
        "commitment_weight": 0.25,
        "balanced": True,
    },
    "sq-vae": {"codebook_size": 512, "type": "I", "floor": 1.0},
    "vae": {"codebook_size": 0, "latent_dim": 64, "weight": 1.0},
}
ELBO = ("hyperspherical-vae", "sq-vae", "vae")


TABLE = [f"{data}/{name}" for data in DATA_SETS for name in NAMES]


def test_every_data_set_has_every_preset() -> None:
    others = [f"{data}/{name}" for data in DATA_SETS for name in OTHERS]
    recipes = [f"{data}/arcvq-scaffold" for data in DATA_SETS]
    small = [name for name in TOKENIZERS if name.split("/")[0] in DATA_SETS]
    assert small == sorted([*TABLE, *others, *recipes, "cifar10/arcvq-gan", "sample/tiny"])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("data", DATA_SETS)
def test_another_systems_preset_is_what_its_path_says_at_the_same_budget(data: str, name: str) -> None:
    run, beside = (load_config(f"{data}/{each}") for each in (name, "vq-vae"))
    assert (run.system, run.data.name, run.title) == (name, data, name)
    assert {key: getattr(run.quantizer, key) for key in OTHERS[name]} == OTHERS[name]
    assert run.objective.reconstruction == ("likelihood" if name in ELBO else "mse")
    assert (run.autoencoder, run.data, run.training) == (beside.autoencoder, beside.data, beside.training)


@pytest.mark.parametrize("data", DATA_SETS)
def test_the_recipe_is_the_same_on_every_data_set_at_table_1_s_budget(data: str) -> None:
    """That it is what was chosen on CIFAR-10 is tested with the studies."""
    run, chosen, beside = (
        load_config(f"{each}") for each in (f"{data}/arcvq-scaffold", "cifar10/arcvq-scaffold", f"{data}/vq-vae")
    )
    assert (run.title, run.system) == ("arcvq-scaffold", "sq-vae")
    assert (run.quantizer, run.objective) == (chosen.quantizer, chosen.objective)
    assert (run.autoencoder, run.data) == (beside.autoencoder, beside.data)
    length = (run.training.epochs, run.training.steps, run.training.evaluations, run.training.seed)
    assert length == (beside.training.epochs, beside.training.steps, beside.training.evaluations, beside.training.seed)


@pytest.mark.parametrize("data", DATA_SETS)
def test_the_temperature_of_sq_vae_ends_where_the_released_run_of_that_data_set_did(data: str) -> None:
    """exp(−1e-5 · t) over 100 epochs in batches of 32, of 40,000 training images of CIFAR-10 or 50,000 of the others."""
    quantizer: Any = load_config(f"{data}/sq-vae").quantizer
    steps = 100 * (40_000 if data == "cifar10" else 50_000) / 32
    assert quantizer.temperature.time == "fraction"
    assert quantizer.temperature.decay == pytest.approx(1e-5 * steps, rel=0.01)
    assert quantizer.init_variance == (20.0 if data == "cifar10" else 10.0)


@pytest.mark.parametrize("preset", TABLE)
def test_a_preset_is_what_its_path_says(preset: str) -> None:
    data, name = preset.split("/")
    run: Any = load_config(preset)
    assert (run.data.name, run.title) == (data, name)
    assert run.system in SYSTEMS
    quantizer: Any = run.quantizer
    if name != "hvq-vae":
        assert (quantizer.metric, quantizer.init, quantizer.ball, quantizer.arc) == QUANTIZERS[name]
        assert quantizer.estimator == ("rotation" if "rotation" in name else "straight-through")
    assert quantizer.codebook_size == 512
    assert run.training.select == ("test-best" if name == "released-code" else "last")
    assert (run.objective.reconstruction, run.objective.normalise) == ("mse", "variance")
    # The sample's runs are too short for the paper's learning rate.
    assert (run.training.learning_rate, run.training.seed) == (1e-3 if data == "sample" else 3e-4, 1)
    assert run.training.gradient_clip == (1.0 if name == "hvq-vae" else None)
    shape = (run.training.schedule, round(run.training.flat_share, 3), run.training.final_rate)
    assert shape == (("cosine", 0.667, 0.1) if name == "hvq-vae" else ("constant", 0.0, 0.0))


@pytest.mark.parametrize("preset", TABLE)
def test_a_preset_is_the_papers_model_and_length(preset: str) -> None:
    run: Any = load_config(preset)
    channels, side = (3, 32) if preset.startswith("cifar10") else (1, 28)
    tokenizer = run.build_tokenizer(channels, (side, side), 100)
    parameters = sum(parameter.numel() for parameter in tokenizer.parameters())
    name = preset.split("/")[1]
    if name == "hvq-vae":
        assert parameters == STACK[channels]
    else:
        assert parameters == (695_491 if channels == 3 else 691_393) + OTHER_PARAMETERS.get(
            name.removesuffix("-samp"), 0
        )
    lengths = [(stage.epochs or 0, stage.steps or 0) for stage in run.training.plan()]
    epochs, steps = (sum(each) for each in zip(*lengths))
    expected = (0, 400, 128) if preset.startswith("sample") else (500, 0, 1024)
    assert (epochs, steps, run.data.batch_size) == expected


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_opens_with_what_it_is_and_its_own_command(preset: str) -> None:
    header = preset_header(preset)
    title = {
        "cifar10": "CIFAR-10",
        "faces": "faces",
        "fashion-mnist": "Fashion-MNIST",
        "ffhq": "FFHQ",
        "imagenet": "ImageNet",
        "mnist": "MNIST",
        "photos": "flowers and pets at 256²",
        "photos-128": "flowers and pets at 128²",
        "sample": "embedded sample",
    }
    assert title[preset.split("/")[0]] in header[0]
    commands = [line for line in header if line.startswith("arcvq train ")]
    assert len(commands) == 1
    command, out = commands[0].split(" --out ")
    needs = "" if preset in TOKENIZERS else " --tokenizer "
    assert command.startswith(f"arcvq train {preset}{needs}")
    assert needs or command == f"arcvq train {preset}"
    assert out.startswith("runs/")
    assert out.endswith(f"-{preset.split('/')[1]}")


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_names_its_source_and_that_of_the_prior(preset: str) -> None:
    run: Any = load_config(preset)
    (source,) = (line for line in preset_header(preset) if line.startswith("Source: "))
    assert source.startswith(f"Source: {SYSTEMS[run.system].citation}.")
    under_samp = preset in TOKENIZERS and any(getattr(run.quantizer, part, None) for part in ("ball", "arc"))
    assert not under_samp or "Kim and Yoo, ArcVQ-VAE" in source


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_s_title_is_one_sentence(preset: str) -> None:
    title, header = preset_title(preset), " ".join(preset_header(preset))
    assert header.startswith(title)
    assert title.endswith(".")
    assert len(title) < 300
    assert ". The" not in title


@pytest.mark.parametrize("preset", [name for name in TOKENIZERS if name.split("/")[0] in DATA_SETS])
def test_a_preset_builds_a_tokenizer_for_its_images(preset: str) -> None:
    run: Any = load_config(preset)
    channels = 3 if preset.startswith("cifar10") else 1
    tokenizer = run.build_tokenizer(channels, (28, 28), 100)
    assert tokenizer.system == run.system
    assert tokenizer.quantizer.config.codebook_size == run.quantizer.codebook_size
    grey = to_unit(torch.full((2, channels, 28, 28), 128, dtype=torch.uint8))
    assert tokenizer.reconstruct(grey).shape == grey.shape  # positions and elements fit


@pytest.mark.parametrize("name", NAMES)
def test_presets_of_one_name_differ_only_in_data_and_length(name: str) -> None:
    runs: list[Any] = [load_config(f"{data}/{name}") for data in DATA_SETS]
    assert all(run.quantizer == runs[0].quantizer for run in runs)
    assert all(run.autoencoder == runs[0].autoencoder for run in runs)
    assert all(run.objective == runs[0].objective for run in runs)


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("cifar10/arcvqvae", "unknown preset 'cifar10/arcvqvae': did you mean cifar10/arcvq-vae"),
        ("cifar/vq-vae", "unknown preset 'cifar/vq-vae': did you mean cifar10/vq-vae"),
        ("nothing.yaml", "nothing.yaml: no such file"),
        ("../secrets", "unknown preset '../secrets'"),
    ],
)
def test_an_unknown_preset_is_answered_with_the_nearest_names(preset: str, message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        preset_path(preset)
    assert str(raised.value).startswith(message)


def test_settings_go_on_top_of_a_preset() -> None:
    settings = ["--quantizer.arc.scale", "20", "--quantizer.ball=null", "--training.steps=9", "--training.epochs=null"]
    run: Any = load_config("cifar10/arcvq-vae", settings)
    quantizer: Any = run.quantizer
    assert quantizer.arc == Arc(scale=20.0)
    assert quantizer.ball is None
    assert (run.training.steps, run.training.epochs) == (9, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--quantizer.arc.skale", "20"], "'quantizer.arc.skale'"),
        (["--training.steps", "soon"], "training.steps"),
        (["--training.steps"], "--training.steps needs a value"),
        (["--training", "3"], "mapping"),
        (["--system", "vqvae"], "vq-vae"),
    ],
)
def test_a_wrong_setting_is_named(settings: list[str], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        load_config("sample/arcvq-vae", settings)
    assert str(raised.value).startswith("sample/arcvq-vae: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_runs_own_config_takes_another_length(tmp_path: Path) -> None:
    written = json.loads(json.dumps(to_dict(load_config("cifar10/arcvq-vae"))))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
    run: Any = load_config(str(tmp_path / "config.yaml"), ["--training.steps", "3"])
    assert (run.training.steps, run.training.epochs) == (3, None)


def test_places_are_absolute_so_that_a_run_can_be_measured_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    arguments = ["--data.name", "folder:pictures", "--data.root", "~/sets"]
    data = load_config("sample/vq-vae", arguments).data
    assert data.name == f"folder:{tmp_path / 'pictures'}"
    assert data.root == str(tmp_path / "home" / "sets")


def test_the_name_of_a_folder_is_taken_as_it_is() -> None:
    run: Any = load_config("sample/vq-vae", ["--data.name", "folder:my #1 photos"])
    assert run.data.name.endswith("/my #1 photos")


def test_a_setting_without_its_section_is_named_with_it() -> None:
    with pytest.raises(ArcvqError, match=r"training\.steps"):
        load_config("sample/vq-vae", ["--steps", "5"])


@pytest.mark.parametrize(
    ("arguments", "name", "title"),
    [
        ([], "arcvq-vae", "arcvq-vae"),
        (["--quantizer.arc.scale", "20"], "arcvq-vae", "arcvq-vae"),
        (["--quantizer.kind", "fsq"], None, "tokenizer"),
        (["--system", "vq-vae"], None, "vq-vae"),
        (["--quantizer.kind", "fsq", "--name", "mine"], "mine", "mine"),
    ],
)
def test_a_run_with_another_quantizer_or_system_is_not_called_by_the_presets_name(
    arguments: list[str], name: str | None, title: str
) -> None:
    run = load_config("sample/arcvq-vae", arguments)
    assert (run.name, run.title) == (name, title)


def test_a_stack_is_refused_outside_its_task() -> None:
    with pytest.raises(ArcvqError, match="task: stacked"):
        load_config("sample/hvq-vae", ["--task", "tokenizer"])
