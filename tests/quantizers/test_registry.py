"""Quantizers by name, from plain mappings and back."""

import json
from typing import Any

import pytest
import torch
import yaml

from arcvq import VQ, ArcVQ, ArcvqError
from arcvq.config import to_dict
from arcvq.quantizers import (
    QUANTIZERS,
    Arc,
    Ball,
    Entropy,
    Quantizer,
    Restart,
    build_quantizer,
    quantizer_class,
    quantizer_name,
)

OPTIONS: dict[str, Any] = {
    "codebook_size": 16,
    "arc": {"scale": 20, "margin": 0.2, "schedule": "adaptive"},
    "ball": {"alpha": "1e-3"},
    "entropy": {"weight": 0.2},
    "restart": {"decay": 0.9},
    "heads": 2,
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_name_leads_to_its_class_and_back(name: str) -> None:
    continuous = quantizer_class(name).Config().codebook_size == 0
    quantizer = build_quantizer(name, 4, {} if continuous else {"codebook_size": 8})
    assert type(quantizer) is quantizer_class(name)
    assert quantizer_name(quantizer) == name
    assert quantizer.config.codebook_size == (0 if continuous else 8)


def test_a_plain_mapping_fills_every_nested_option() -> None:
    config = build_quantizer("arcvq", 4, OPTIONS).config
    assert config.arc == Arc(scale=20.0, margin=0.2, schedule="adaptive")
    assert config.ball == Ball(alpha=1e-3)
    assert config.entropy == Entropy(weight=0.2)
    assert config.restart == Restart(decay=0.9)
    assert config.heads == 2


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["defaults", "options"])
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_a_configuration_written_down_builds_the_same_quantizer(name: str, options: dict[str, Any], write: Any) -> None:
    known = quantizer_class(name).Config.__dataclass_fields__
    if quantizer_class(name).Config().codebook_size:
        options = {k: v for k, v in options.items() if k in known and (name, k) != ("simvq", "restart")}
    else:
        options = {"latent_dim": 3} if options else {}
    torch.manual_seed(2)
    first = build_quantizer(name, 4, options)
    written = write(to_dict(first.config))
    torch.manual_seed(2)
    second = build_quantizer(name, 4, yaml.safe_load(written))
    assert second.config == first.config
    latents = torch.randn(10, 4)
    assert torch.equal(first.eval()(latents).loss, second.eval()(latents).loss)


def test_null_switches_a_part_off() -> None:
    quantizer = build_quantizer("arcvq", 4, {"arc": None, "ball": None})
    assert quantizer.config.arc is None
    assert set(quantizer(torch.randn(9, 4)).losses) == {"codebook", "commitment"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arcqv", {}, "unknown quantizer 'arcqv': did you mean arcvq"),
        ("nothing-like-it", {}, "unknown quantizer 'nothing-like-it': expected one of arcvq, "),
        ("vq", {"codebok_size": 3}, "unknown key 'quantizer.codebok_size': did you mean codebook_size"),
        ("vq", {"arc": {"sclae": 3}}, "unknown key 'quantizer.arc.sclae': did you mean scale?"),
        ("vq", {"codebook_size": "many"}, "quantizer.codebook_size: expected a number, got 'many' (str)"),
        ("vq", {"class_path": "os.system"}, "unknown key 'quantizer.class_path'"),
        ("vq", {"codebook_size": None}, "quantizer.codebook_size: expected a number, got None"),
    ],
)
def test_wrong_names_and_options_are_answered_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        build_quantizer(name, 4, options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_class_that_is_not_registered_has_no_name() -> None:
    class Mine(VQ):
        pass

    with pytest.raises(ArcvqError, match="Mine is not registered"):
        quantizer_name(Mine(4, 8))
    assert isinstance(ArcVQ(4, 8), Quantizer)
