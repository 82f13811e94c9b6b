"""Every system of the catalogue, from the least that a YAML can say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from arcvq import Arc, ArcvqError, Ball
from arcvq.config import to_dict
from arcvq.data import ImageSource, InMemoryImages
from arcvq.nets import AUTOENCODERS
from arcvq.quantizers import QUANTIZERS, EMAVQConfig, Entropy, FSQConfig, Restart
from arcvq.systems import SYSTEMS, load_config, parse_config

LENGTH = {"training": {"steps": 3}}
# system → quantizer, parameters beside the autoencoder's, and the settings that make it what it is
AUTOENCODER, CODES = 658_625, 512 * 64
PLAIN = {
    "metric": "euclidean",
    "init": "uniform",
    "estimator": "straight-through",
    "ball": None,
    "arc": None,
    "entropy": None,
    "restart": None,
}
VECTOR = {"codebook_size": 0, "positions": 49, "elements": 16, "latent_dim": 64, "sample": False}
SETTINGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "vq-vae": ("VQ", CODES, PLAIN),
    "vq-vae-cosine": ("VQ", CODES, {**PLAIN, "metric": "cosine"}),
    "vq-vae-ema": ("EMAVQ", 0, PLAIN),  # running means are no parameters
    "vq-vae-rotation": ("VQ", CODES, {**PLAIN, "estimator": "rotation"}),
    "cvq-vae": ("CVQ", CODES, {**PLAIN, "metric": "cosine"}),
    "simvq": ("SimVQ", 64 * 65, {**PLAIN, "init": "scaled-normal"}),
    "hvq-vae": ("HVQ", 694_593 - AUTOENCODER, {"total_steps": None}),  # two autoencoders, two codebooks
    "arcvq-vae": ("ArcVQ", CODES, {**PLAIN, "metric": "cosine", "init": "unit-sphere", "ball": Ball(), "arc": Arc()}),
    "sq-vae": ("SQ", CODES + 1, {"type": "I", "init_variance": 20.0, "floor": 1.0, "elements": 16}),
    "fsq": ("FSQ", 64 * 3 + 3 + 3 * 64 + 64, {"levels": (8, 8, 8)}),
    "lfq": (
        "LFQ",
        64 * 9 + 9 + 9 * 64 + 64,
        {"entropy": Entropy(weight=0.1, temperature=0.01), "commitment_weight": 0.25},
    ),
    "vae": ("Gaussian", (3136 + 1) * 128 + (64 + 1) * 3136, VECTOR),
    "hyperspherical-vae": ("VonMisesFisher", (3136 + 1) * 65 + (64 + 1) * 3136, {**VECTOR, "kappa_floor": 1.0}),
}


def message_of(data: Any) -> str:
    with pytest.raises(ArcvqError) as raised:
        parse_config(data)
    message = str(raised.value)
    assert "\n" not in message
    return message


# For large images: the autoencoder, the quantizer, and settings of either.
LARGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "arcvq-vqgan": (
        "VqganAutoencoder",
        "ArcVQ",
        {"metric": "cosine", "ball": Ball(alpha=1e-5), "arc": Arc(decay=1e-4)},
    ),
    "arcvq-vqgan-plus": (
        "VqganAutoencoder",
        "ArcVQ",
        {"metric": "cosine", "ball": Ball(match_run="imagenet"), "arc": Arc(match_run="imagenet")},
    ),
    "cvq-vqgan": ("VqganAutoencoder", "CVQ", {"metric": "cosine"}),
    "df-vqgan": ("DfvqganAutoencoder", "VQ", PLAIN),
    "movq": ("MovqAutoencoder", "MultichannelVQ", {"channels": 4}),
    "rq-vae": (
        "VqganAutoencoder",
        "ResidualVQ",
        {"depth": 4, "shared": True, "codebook": EMAVQConfig(restart=Restart())},
    ),
    "seq-gan": ("VqganAutoencoder", "VQ", {**PLAIN, "entropy": Entropy(weight=0.1, temperature=0.01)}),
    "vit-vqgan": (
        "VitAutoencoder",
        "VQ",
        {"metric": "cosine", "output": "unit", "loss_space": "unit", "init": "normal"},
    ),
    "vqgan": ("VqganAutoencoder", "VQ", PLAIN),
    "vqgan-ema": ("VqganAutoencoder", "EMAVQ", PLAIN),
    "vqgan-fc": (
        "VqganAutoencoder",
        "VQ",
        {"metric": "cosine", "output": "unit", "loss_space": "unit", "init": "normal"},
    ),
    "vqgan-lc": (
        "VqganAutoencoder",
        "ProjectedVQ",
        {"features": "vgg16", "feature_dim": 512, "commitment_weight": 0.1, "codebook_weight": 0.033},
    ),
}
# What else makes them what they are: settings by dotted name. The others have VQGAN's.
VQGAN = {
    "autoencoder.middle_attention": True,
    "autoencoder.decoder_blocks": None,
    "autoencoder.latent_dim": 16,
    "objective.l1": 1.0,
    "objective.l2": 0.0,
    "objective.perceptual": 1.0,
    "objective.semantic": None,
    "objective.laplace": 0.0,
    "adversarial.discriminator.kind": "patch",
    "adversarial.loss": "hinge",
    "adversarial.weight": 0.8,
    "adversarial.adaptive": True,
    "adversarial.discriminator_weight": 1.0,
    "adversarial.r1": 0.0,
    "adversarial.lecam": 0.0,
    "decoder_last": None,
    "training.betas": [0.5, 0.9],
    "training.weight_decay": 0.0,
    "training.schedule": "constant",
    "training.gradient_clip": None,
    "training.ema": None,
}
SMALL_FIXED_WEIGHT = {"adversarial.weight": 0.1, "adversarial.adaptive": False}
OWN: dict[str, dict[str, Any]] = {
    "arcvq-vqgan-plus": {
        **SMALL_FIXED_WEIGHT,
        "autoencoder.middle_attention": False,
        "autoencoder.attention": [],
        "autoencoder.decoder_blocks": 2,
        "objective.l1": 0.0,
        "objective.l2": 1.0,
        "adversarial.discriminator.norm": "group",
        "adversarial.discriminator.blur": True,
        "adversarial.lecam": 0.001,
        "training.betas": [0.9, 0.999],
        "training.weight_decay": 1e-4,
        "training.schedule": "cosine",
        "training.gradient_clip": 1.0,
        "training.ema": 0.999,
    },
    "df-vqgan": {"autoencoder.latent_dim": 256},
    "movq": {"autoencoder.latent_dim": 256},
    "rq-vae": {
        "objective.l1": 0.0,
        "objective.l2": 1.0,
        "adversarial.discriminator.layers": 2,
        "adversarial.weight": 0.75,
        "adversarial.discriminator_weight": 0.75,
    },
    "seq-gan": {
        **SMALL_FIXED_WEIGHT,
        "autoencoder.middle_attention": False,
        "autoencoder.attention": [],
        "autoencoder.latent_dim": 256,
        "objective.semantic": [0.9, 0.1],
        "decoder_last": 1 / 3,
    },
    "vit-vqgan": {
        **SMALL_FIXED_WEIGHT,
        "autoencoder.likelihood": True,
        "autoencoder.latent_dim": 32,
        "objective.l1": 0.0,
        "objective.l2": 0.25,  # the published 1.0 and R1's 10 are for images in [0, 1]
        "objective.perceptual": 0.1,
        "objective.laplace": 0.1,
        "adversarial.discriminator.kind": "stylegan",
        "adversarial.loss": "logistic",
        "adversarial.r1": 40.0,
        "training.betas": [0.9, 0.99],
        "training.weight_decay": 1e-4,
    },
    "vqgan-fc": {"autoencoder.latent_dim": 8},
    "vqgan-lc": {"autoencoder.latent_dim": 8, "adversarial.discriminator.layers": 2, "adversarial.weight": 0.1},
}


def setting(settings: dict[str, Any], key: str) -> Any:
    """The value of a dotted key, which must be there."""
    for name in key.split("."):
        settings = settings[name]
    return settings


def test_the_tables_here_have_every_system() -> None:
    priors = {name for name, system in SYSTEMS.items() if system.task == "prior"}  # built in tests/priors
    assert SETTINGS.keys() | LARGE.keys() | priors == SYSTEMS.keys()


@pytest.mark.parametrize("name", LARGE)
def test_a_system_for_large_images_is_built_from_its_name(name: str) -> None:
    run: Any = parse_config({"system": name, **LENGTH})
    with torch.device("meta"):
        tokenizer = run.build_tokenizer(3, (64, 64), 3)
    autoencoder, quantizer, settings = LARGE[name]
    assert (type(tokenizer.autoencoder).__name__, type(tokenizer.quantizer).__name__) == (autoencoder, quantizer)
    config: Any = tokenizer.quantizer.config
    assert {key: getattr(config, key) for key in settings} == settings
    assert (run.masks is not None) == (name == "df-vqgan")
    expected = VQGAN | OWN.get(name, {})
    if name == "vit-vqgan":
        expected = {key: value for key, value in expected.items() if not key.endswith(("_attention", "_blocks"))}
    assert {key: setting(to_dict(run), key) for key in expected} == expected


@pytest.mark.parametrize("name", SETTINGS)
def test_a_system_and_a_length_are_enough_to_build_it(name: str) -> None:
    run: Any = parse_config({"system": name, **LENGTH})
    tokenizer = run.build_tokenizer(1, (28, 28), 3)
    quantizer, parameters, settings = SETTINGS[name]
    assert run.system == name
    assert type(tokenizer.quantizer).__name__ == quantizer
    config: Any = tokenizer.quantizer.config
    expected = {"codebook_size": 512, "total_steps": 3, **settings}
    assert {key: getattr(config, key) for key in expected} == expected
    assert (tokenizer.system, tokenizer.image_size) == (name, (28, 28))
    assert sum(parameter.numel() for parameter in tokenizer.parameters()) == AUTOENCODER + parameters


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_system_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    assert len(SYSTEMS[name].summary) > 20
    assert len(SYSTEMS[name].citation) > 20


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_run_written_down_parses_back_to_itself(name: str) -> None:
    run = parse_config({"system": name, **LENGTH})
    assert parse_config(yaml.safe_load(yaml.safe_dump(to_dict(run)))) == run


def test_every_kind_of_quantizer_and_autoencoder_parses_back_to_itself() -> None:
    for section, registry in (("quantizer", QUANTIZERS), ("autoencoder", AUTOENCODERS)):
        for kind in registry:
            task = "stacked" if kind == "stacked" else "tokenizer"
            run = parse_config({"task": task, section: {"kind": kind}, **LENGTH})
            assert to_dict(run)[section]["kind"] == kind
            assert parse_config(json.loads(json.dumps(to_dict(run)))) == run


def test_the_papers_defaults_are_the_systems() -> None:
    run: Any = parse_config({"system": "arcvq-vae", **LENGTH})
    quantizer = run.quantizer
    assert quantizer.arc == Arc(scale=10.0, margin=0.1, top_k=3, weight=1.0, decay=5e-4, stop_gradient=True)
    assert quantizer.ball == Ball(schedule="exponential", alpha=3e-4, start=1.0)
    assert (quantizer.codebook_weight, quantizer.commitment_weight) == (1.0, 0.25)


@pytest.mark.parametrize("name", ["vq-vae", "arcvq-vae"])
def test_the_codebook_starts_as_the_system_says(name: str) -> None:
    torch.manual_seed(0)
    run: Any = parse_config({"system": name, **LENGTH})
    codebook = run.build_tokenizer(1, (28, 28), 3).quantizer.codebook
    if name == "arcvq-vae":
        torch.testing.assert_close(codebook.norm(dim=1), torch.ones(512))
    else:
        assert 0.9 / 512 < codebook.abs().max() <= 1 / 512


def test_a_name_of_ones_own_is_the_title() -> None:
    assert parse_config({"system": "vq-vae", **LENGTH}).title == "vq-vae"
    assert parse_config({"system": "vq-vae", "name": "mine", **LENGTH}).title == "mine"


def test_a_missing_or_unknown_system_is_answered_with_what_there_is() -> None:
    assert ", ".join(sorted(SYSTEMS)) in message_of({})
    assert "arcvq-vae" in message_of({"system": "arcvqvae"})
    for name in (["vq-vae"], {"class_path": "os.system"}, 3):
        assert message_of({"system": name}).startswith("unknown system ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"quantiser": {}}, "unknown key 'quantiser': did you mean quantizer?"),
        ({"quantizer": {"codebok_size": 3}}, "unknown key 'quantizer.codebok_size': did you mean codebook_size"),
        ({"quantizer": {"arc": {"scal": 3}}}, "unknown key 'quantizer.arc.scal': did you mean scale"),
        ({"class_path": "os.system"}, "unknown key 'class_path'"),
        ({"quantizer": {"codebook_size": "many"}}, "quantizer.codebook_size: expected a number, got 'many'"),
        ({"quantizer": {"metric": "angle"}}, "quantizer.metric: expected one of cosine, euclidean"),
        ({"data": {"batch_size": 2.5}}, "data.batch_size: expected a whole number, got 2.5"),
        ({"data": {"batch_size": 0}}, "data.batch_size must be at least 1, got 0"),
        ({"data": {"limit": 0}}, "data.limit must be at least 1, got 0"),
        ({"data": ["sample"]}, "data: expected a mapping of keys to values, got ['sample'] (list)"),
        ({"autoencoder": {"kind": "smal"}}, "autoencoder.kind: unknown autoencoder 'smal': did you mean small?"),
        ({"autoencoder": {"widht": 8}}, "unknown key 'autoencoder.widht': did you mean width?"),
        ({"quantizer": {"kind": "arcqv"}}, "quantizer.kind: unknown quantizer 'arcqv': did you mean arcvq"),
        ({"quantizer": {"kind": ["vq"]}}, "quantizer.kind: unknown quantizer ['vq']"),
        ({"task": "tokeniser"}, "unknown task 'tokeniser': did you mean tokenizer?"),
        ({"task": "stacked"}, "the task stacked needs the autoencoder stacked and the quantizer hvq"),
        ({"objective": {"normalise": "all"}}, "objective.normalise: expected one of variance, variance01, none"),
        ({"training": {"steps": 3, "compile": "yes"}}, "training.compile: expected true or false, got 'yes'"),
        ({"training": {}}, "training: give either epochs or steps"),
        ({"training": {"steps": 3, "epochs": 1}}, "training: give either epochs or steps"),
        ({"training": {"steps": 0}}, "training: epochs or steps must be at least 1"),
        ({"training": {"stages": [{"steps": 1}, {}]}}, "training.stages[1]: give either epochs or steps"),
        (
            {"training": {"stages": [{"steps": 1, "learning_rate": 0}]}},
            "training.stages[0].learning_rate",
        ),
        ({"training": {"steps": 3, "accumulate": 0}}, "training.accumulate"),
        ({"training": {"steps": 3, "log_every": 0}}, "training.log_every"),
        ({"training": {"steps": 3, "evaluations": -1}}, "training.evaluations"),
        ({"training": {"steps": 3, "seed": -1}}, "training.seed"),
        ({"training": {"steps": 3, "learning_rate": 0}}, "training.learning_rate"),
        ({"training": {"steps": 3, "gradient_clip": 0}}, "training.gradient_clip"),
        ({"training": {"steps": 3, "flat_share": 1.0}}, "training.flat_share"),
        ({"training": {"steps": 3, "flat_share": -0.1}}, "training.flat_share"),
        ({"training": {"steps": 3, "betas": [0.9]}}, "training.betas"),
        ({"training": {"steps": 3, "betas": [0.9, 1]}}, "training.betas"),
    ],
)
def test_a_wrong_key_or_value_is_named(data: dict[str, Any], message: str) -> None:
    assert message in message_of({"system": "arcvq-vae", **LENGTH, **data})


def test_stages_have_lengths_and_learning_rates_of_their_own() -> None:
    training = parse_config(
        {
            "system": "vq-vae",
            "training": {
                "learning_rate": 0.5,
                "stages": [{"train": ["autoencoder.encoder"], "epochs": 2}, {"steps": 3, "learning_rate": 0.1}],
            },
        }
    ).training
    assert [stage.learning_rate for stage in training.plan()] == [None, 0.1]  # None: that of the whole
    assert training.stage_steps(batches_per_epoch=4) == [8, 3]


def test_a_yaml_of_ones_own_loads_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("system: vq-vae\ntraining: {steps: 3}\n")
    run: Any = load_config(str(path), ["--quantizer.codebook_size", "64", "--training.seed=7"])
    assert (run.title, run.quantizer.codebook_size, run.training.seed) == ("mine", 64, 7)
    with pytest.raises(ArcvqError) as raised:
        load_config(str(path), ["--quantizer.codebook_siz", "64"])
    assert str(raised.value).startswith(f"{path}: unknown key 'quantizer.codebook_siz': did you mean codebook_size")


@pytest.mark.parametrize(
    ("training", "stages"),
    [
        ({"steps": 10}, [(None, 7), (None, 3)]),
        ({"epochs": 6}, [(4, None), (2, None)]),
        ({"stages": [{"steps": 5}, {"steps": 4}]}, [(None, 5), (None, 4)]),
    ],
)
def test_the_decoder_alone_learns_in_the_last_share(training: dict[str, Any], stages: list[Any]) -> None:
    plan = parse_config({"system": "seq-gan", "training": training}).training.plan()
    assert [(stage.epochs, stage.steps) for stage in plan] == stages
    if "stages" not in training:
        assert [stage.train for stage in plan] == [[], ["autoencoder.decoder"]]
    whole = parse_config({"system": "seq-gan", "decoder_last": None, "training": training}).training
    assert whole.steps == training.get("steps")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"training": {"steps": 1}}, "decoder_last: 1 steps are too few"),
        ({"decoder_last": 1.0, **LENGTH}, "decoder_last is a share, above 0 and below 1, got 1.0"),
        ({"system": "hvq-vae", "decoder_last": 0.5, **LENGTH}, "the task stacked has no adversarial, continuous_first"),
    ],
)
def test_a_last_share_that_cannot_be_is_refused(data: dict[str, Any], message: str) -> None:
    assert message in message_of({"system": "seq-gan", **data})


@pytest.mark.parametrize(
    ("length", "stages"), [({"epochs": 5}, [(2, None), (3, None)]), ({"steps": 7}, [(None, 3), (None, 4)])]
)
def test_a_stack_divides_its_training_among_its_levels(length: dict[str, int], stages: list[Any]) -> None:
    training = parse_config({"system": "hvq-vae", "training": length}).training
    assert [(stage.epochs, stage.steps) for stage in training.plan()] == stages


@pytest.mark.parametrize(
    ("training", "levels"),
    [
        ({"epochs": 5}, [2 * 7, 3 * 7]),
        ({"steps": 7}, [3, 4]),
        ({"stages": [{"steps": 10}, {"epochs": 9}]}, [10, 9 * 7]),
    ],
)
def test_the_temperature_of_each_level_falls_over_the_levels_own_training(
    training: dict[str, Any], levels: list[int]
) -> None:
    run: Any = parse_config({"system": "hvq-vae", "training": training, "objective": {"normalise": "none"}})
    source = ImageSource(InMemoryImages("seven batches", torch.zeros(7, 1, 28, 28, dtype=torch.uint8)), batch_size=1)
    tokenizer = run.build(source).tokenizer
    assert [quantizer.config.total_steps for quantizer in tokenizer.quantizers] == levels
    for quantizer, steps in zip(tokenizer.quantizers, levels):
        quantizer.step.fill_(steps)
        coldest = quantizer.train()(torch.zeros(1, 64, 1, 1)).stats["temperature"]
        assert float(coldest) == pytest.approx(0.001, rel=1e-4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"training": {"steps": 1}}, "training: 1 is too short for 2 levels, which are trained one after another"),
        ({"autoencoder": {"layers": 1}}, "autoencoder.layers must be from 2 to 16, got 1"),
        ({"autoencoder": {"width": 6}}, "autoencoder.width must be a multiple of 4, got 6"),
        ({"autoencoder": {"kind": "small"}}, "autoencoder.kind: hvq-vae is made with stacked, got 'small'"),
        ({"quantizer": {"kind": "vq"}}, "quantizer.kind: hvq-vae is made with hvq, got 'vq'"),
        ({"quantizer": {"arc": {}}}, "unknown key 'quantizer.arc'"),
    ],
)
def test_a_stack_says_what_it_cannot_do(data: dict[str, Any], message: str) -> None:
    assert message in message_of({"system": "hvq-vae", **LENGTH, **data})


@pytest.mark.parametrize("stages", [[{"steps": 1}], [{"steps": 1, "train": ["lower.0"]}, {"steps": 1}]])
def test_a_stack_takes_one_stage_for_each_level(stages: list[Any]) -> None:
    run: Any = parse_config({"system": "hvq-vae", "training": {"stages": stages}})
    with pytest.raises(ArcvqError, match=r"training\.stages: a stack of 2 levels trains one level per stage"):
        run.make_task(run.build_tokenizer(1, (28, 28), 2), None, run.training.stage_steps(1))


def test_a_task_is_enough_where_no_system_is_named() -> None:
    run: Any = parse_config(
        {"task": "tokenizer", "quantizer": {"kind": "fsq", "codebook_size": 64, "levels": [8, 8]}, **LENGTH}
    )
    tokenizer = run.build_tokenizer(1, (28, 28), 3)
    assert (run.system, run.title, tokenizer.system) == (None, "tokenizer", None)
    assert tokenizer.quantizer.config.levels == (8, 8)
    stacked: Any = parse_config({"task": "stacked", **LENGTH})
    assert len(stacked.build_tokenizer(1, (28, 28), 3).quantizers) == 2


def test_another_kind_on_the_command_line_drops_the_presets_settings() -> None:
    settings = ["--quantizer.codebook_size=64", "--quantizer.kind=fsq"]  # the kind counts first, wherever it stands
    run: Any = load_config("sample/arcvq-vae", settings)
    assert run.quantizer == FSQConfig(codebook_size=64)
    assert run.autoencoder == load_config("sample/arcvq-vae").autoencoder  # type: ignore[attr-defined]
    with pytest.raises(ArcvqError, match=r"unknown key 'quantizer\.arc"):
        load_config("sample/arcvq-vae", ["--quantizer.kind=fsq", "--quantizer.arc.scale=20"])


def test_the_same_kind_on_the_command_line_keeps_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("task: tokenizer\nquantizer: {codebook_size: 64}\ntraining: {steps: 3}\n")
    run: Any = load_config(str(path), ["--quantizer.kind=vq"])  # the default kind
    assert run.quantizer.codebook_size == 64
    assert load_config("sample/arcvq-vae", ["--quantizer.kind=arcvq"]) == load_config("sample/arcvq-vae")


def test_another_kind_drops_the_systems_own_settings() -> None:
    run: Any = parse_config({"system": "vq-vae-cosine", "quantizer": {"kind": "emavq"}, **LENGTH})
    assert type(run.quantizer) is EMAVQConfig
    assert run.quantizer.metric == "euclidean"
    assert run.system is None  # it is no row of the tables any more
    assert parse_config(to_dict(run)) == run
    same: Any = parse_config({"system": "vq-vae-cosine", "quantizer": {"kind": "vq", "codebook_size": 8}, **LENGTH})
    assert (same.quantizer.metric, same.quantizer.codebook_size) == ("cosine", 8)
    assert same.system == "vq-vae-cosine"


@pytest.mark.parametrize("option", ["arc", "ball"])
@pytest.mark.parametrize("name", ["fsq", "hvq-vae", "hyperspherical-vae", "lfq", "vae"])
def test_samp_is_refused_where_there_is_no_codebook_to_put_it_on(name: str, option: str) -> None:
    message = message_of({"system": name, **LENGTH, "quantizer": {option: {}}})
    assert message.startswith(f"unknown key 'quantizer.{option}'")


@pytest.mark.parametrize("kind", ["I", "II", "III", "IV"])
def test_every_type_of_sq_vae_is_built_from_a_preset(kind: str) -> None:
    run: Any = load_config("sample/sq-vae", [f"--quantizer.type={kind}"])
    tokenizer = run.build_tokenizer(1, (28, 28), 10).train()
    assert tokenizer.quantizer.config.positions == 49
    _, quantized = tokenizer(torch.rand(2, 1, 28, 28) * 2 - 1)
    assert quantized.loss.isfinite()
