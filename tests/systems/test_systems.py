"""Every registered system, from the least that a YAML can say."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from arcvq import Arc, ArcvqError, Ball
from arcvq.config import to_dict
from arcvq.quantizers import Entropy
from arcvq.systems import SYSTEMS, load_system, parse_system

LENGTH = {"training": {"steps": 3}}
# system → quantizer, parameters beside the trunk's, and the settings that make it what it is
TRUNK, CODES = 658_625, 512 * 64
TOP = ["encoder", "quantizer", "decoder"]
PLAIN = {
    "metric": "euclidean",
    "start": "uniform",
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
    "simvq": ("SimVQ", 64 * 65, {**PLAIN, "start": "scaled-normal"}),
    "hvq-vae": ("HVQ", 694_593 - TRUNK, {"total_steps": 2}),  # two autoencoders, two codebooks
    "arcvq-vae": ("ArcVQ", CODES, {**PLAIN, "metric": "cosine", "start": "unit-sphere", "ball": Ball(), "arc": Arc()}),
    "sq-vae": ("SQ", CODES + 1, {"type": "I", "start_variance": 20.0, "floor": 1.0, "elements": 16}),
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
        parse_system(data)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_the_table_here_has_every_system() -> None:
    assert SETTINGS.keys() == SYSTEMS.keys()


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_system_and_a_length_are_enough_to_build_it(name: str) -> None:
    system = parse_system({"system": name, **LENGTH})
    tokenizer = system.build_tokenizer(1, (28, 28), 3)
    quantizer, parameters, settings = SETTINGS[name]
    assert type(system) is SYSTEMS[name]
    assert type(tokenizer.quantizer).__name__ == quantizer
    config: Any = tokenizer.quantizer.config
    expected = {"codebook_size": 512, "total_steps": 3, **settings}
    assert {key: getattr(config, key) for key in expected} == expected
    assert (tokenizer.system, tokenizer.image_size) == (name, (28, 28))
    assert sum(parameter.numel() for parameter in tokenizer.parameters()) == TRUNK + parameters


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_system_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    assert len(SYSTEMS[name].summary) > 20
    assert len(SYSTEMS[name].citation) > 20


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_resolved_system_parses_back_to_itself(name: str) -> None:
    system = parse_system({"system": name, **LENGTH})
    written = yaml.safe_dump({**to_dict(system), "training": {**to_dict(system)["training"], "betas": [0.9, 0.999]}})
    assert parse_system(yaml.safe_load(written)) == system


def test_the_papers_defaults_are_the_systems() -> None:
    quantizer: Any = parse_system({"system": "arcvq-vae", **LENGTH}).quantizer
    assert quantizer.arc == Arc(scale=10.0, margin=0.1, top_k=3, weight=1.0, decay=5e-4, stop_gradient=True)
    assert quantizer.ball == Ball(schedule="exponential", alpha=3e-4, start=1.0)
    assert (quantizer.codebook_weight, quantizer.commitment_weight) == (1.0, 0.25)


@pytest.mark.parametrize("name", ["vq-vae", "arcvq-vae"])
def test_the_codebook_starts_as_the_system_says(name: str) -> None:
    torch.manual_seed(0)
    codebook = parse_system({"system": name, **LENGTH}).build_tokenizer(1, (28, 28), 3).quantizer.codebook
    if name == "arcvq-vae":
        torch.testing.assert_close(codebook.norm(dim=1), torch.ones(512))
    else:
        assert 0.9 / 512 < codebook.abs().max() <= 1 / 512


def test_a_name_of_ones_own_is_the_title() -> None:
    assert parse_system({"system": "vq-vae", **LENGTH}).title == "vq-vae"
    assert parse_system({"system": "vq-vae", "name": "mine", **LENGTH}).title == "mine"


def test_a_missing_or_unknown_system_is_answered_with_what_there_is() -> None:
    assert ", ".join(sorted(SYSTEMS)) in message_of({})
    assert "arcvq-vae" in message_of({"system": "arcvqvae"})
    for name in (["vq-vae"], {"class_path": "os.system"}, 3):
        assert message_of({"system": name}).startswith("unknown system ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"quantiser": {}}, "did you mean quantizer?"),
        ({"quantizer": {"codebok_size": 3}}, "codebook_size"),
        ({"quantizer": {"arc": {"scal": 3}}}, "'quantizer.arc.scal'"),
        ({"class_path": "os.system"}, "'class_path'"),
        ({"quantizer": {"codebook_size": "many"}}, "quantizer.codebook_size"),
        ({"quantizer": {"metric": "angle"}}, "quantizer.metric"),
        ({"data": {"batch_size": 2.5}}, "data.batch_size"),
        ({"data": {"batch_size": 0}}, "data.batch_size"),
        ({"data": {"limit": 0}}, "data.limit"),
        ({"data": ["sample"]}, "['sample']"),
        ({"tokenizer": {"trunk": "large"}}, "tokenizer.trunk"),
        ({"objective": {"normalise": "all"}}, "objective.normalise"),
        ({"training": {"steps": 3, "compile": "yes"}}, "training.compile"),
        ({"training": {}}, "either epochs or steps"),
        ({"training": {"steps": 3, "epochs": 1}}, "either epochs or steps"),
        ({"training": {"steps": 0}}, "epochs or steps must be at least 1"),
        ({"training": {"stages": [{"steps": 1}, {}]}}, "training.stages[1]: "),
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


def test_stages_take_the_learning_rate_of_the_whole_unless_they_have_their_own() -> None:
    training = parse_system(
        {
            "system": "vq-vae",
            "training": {
                "learning_rate": 0.5,
                "stages": [{"train": ["encoder"], "epochs": 2}, {"steps": 3, "learning_rate": 0.1}],
            },
        }
    ).training
    assert [stage.learning_rate for stage in training.plan()] == [0.5, 0.1]
    assert training.stage_steps(batches_per_epoch=4) == [8, 3]


def test_a_yaml_of_ones_own_loads_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("system: vq-vae\ntraining: {steps: 3}\n")
    system = load_system(str(path), ["--quantizer.codebook_size", "64", "--training.seed=7"])
    assert (system.title, system.quantizer.codebook_size, system.training.seed) == ("mine", 64, 7)
    with pytest.raises(ArcvqError) as raised:
        load_system(str(path), ["--quantizer.codebook_siz", "64"])
    assert str(raised.value).startswith(f"{path}: unknown key 'quantizer.codebook_siz': did you mean codebook_size")


@pytest.mark.parametrize(
    ("length", "stages"), [({"epochs": 5}, [(2, None), (3, None)]), ({"steps": 6}, [(None, 3), (None, 3)])]
)
def test_a_hierarchy_divides_its_training_among_its_layers(length: dict[str, int], stages: list[Any]) -> None:
    training = parse_system({"system": "hvq-vae", "training": length}).training
    assert [(stage.epochs, stage.steps) for stage in training.plan()] == stages
    assert [stage.train for stage in training.plan()] == [["lower.0"], ["encoder", "quantizer", "decoder"]]


@pytest.mark.parametrize(
    ("training", "total", "layers"),
    [
        ({"epochs": 5}, 5 * 7, [2 * 7, 3 * 7]),
        ({"steps": 7}, 7, [3, 4]),
        ({"stages": [{"train": ["lower.0"], "steps": 10}, {"train": TOP, "epochs": 9}]}, 10 + 9 * 7, [10, 9 * 7]),
        ({"stages": [{"train": ["lower.0"], "steps": n} for n in (4, 6)]}, 10, [10, 1]),
        ({"stages": [{"train": ["lower"], "steps": 4}, {"train": ["lower.0.decoder"], "steps": 5}]}, 9, [9, 1]),
    ],
)
def test_the_temperature_of_each_layer_falls_over_the_layer_s_own_training(
    training: dict[str, Any], total: int, layers: list[int]
) -> None:
    tokenizer: Any = parse_system({"system": "hvq-vae", "training": training}).build_tokenizer(1, (28, 28), total)
    assert [quantizer.config.total_steps for quantizer in tokenizer.quantizers] == layers
    for quantizer, steps in zip(tokenizer.quantizers, layers):
        quantizer.step.fill_(steps)
        coldest = quantizer.train()(torch.zeros(1, 64, 1, 1)).stats["temperature"]
        assert float(coldest) == pytest.approx(0.001, rel=1e-4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"training": {"steps": 1}}, "2 layers"),
        ({"training": {"stages": [{"steps": 1}]}}, "training.stages"),
        ({"tokenizer": {"layers": 1}}, "tokenizer.layers must be from 2 to 16, got 1"),
        ({"tokenizer": {"width": 6}}, "tokenizer.width"),
        ({"tokenizer": {"trunk": "small"}}, "hierarchical"),
        ({"quantizer": {"arc": {}}}, "'quantizer.arc'"),
    ],
)
def test_a_hierarchy_says_what_it_cannot_do(data: dict[str, Any], message: str) -> None:
    assert message in message_of({"system": "hvq-vae", **LENGTH, **data})


@pytest.mark.parametrize("option", ["arc", "ball"])
@pytest.mark.parametrize("name", ["fsq", "hvq-vae", "hyperspherical-vae", "lfq", "vae"])
def test_samp_is_refused_where_there_is_no_codebook_to_put_it_on(name: str, option: str) -> None:
    message = message_of({"system": name, **LENGTH, "quantizer": {option: {}}})
    assert message.startswith(f"unknown key 'quantizer.{option}'")


@pytest.mark.parametrize("kind", ["I", "II", "III", "IV"])
def test_every_type_of_sq_vae_is_built_from_a_preset(kind: str) -> None:
    tokenizer: Any = load_system("sample/sq-vae", [f"--quantizer.type={kind}"]).build_tokenizer(1, (28, 28), 10).train()
    assert tokenizer.quantizer.config.positions == 49
    _, quantized = tokenizer(torch.rand(2, 1, 28, 28) * 2 - 1)
    assert quantized.loss.isfinite()
