"""Quantizers by kind: building from mappings and back, and registering own classes."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import yaml

from arcvq import VQ, ArcvqError
from arcvq.config import parse, to_dict
from arcvq.quantizers import QUANTIZERS, Arc, Ball, Entropy, Quantizer, Restart, VQConfig
from arcvq.registry import Registry

OPTIONS: dict[str, Any] = {
    "codebook_size": 16,
    "arc": {"scale": 20, "margin": 0.2, "schedule": "adaptive"},
    "ball": {"alpha": "1e-3"},
    "entropy": {"weight": 0.2},
    "restart": {"decay": 0.9},
    "heads": 2,
}


REFUSED = {("simvq", "restart"), ("projected", "restart"), ("grouped", "heads"), ("multichannel", "heads")}


def build_quantizer(kind: str, dim: int, options: dict[str, Any]) -> Quantizer:
    return QUANTIZERS.build(parse(QUANTIZERS.config(kind), options, "quantizer"), dim)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_kind_maps_to_class_and_back(name: str) -> None:
    continuous = QUANTIZERS.config(name)().codebook_size == 0
    quantizer = build_quantizer(name, 4, {} if continuous else {"codebook_size": 8})
    assert type(quantizer) is QUANTIZERS[name]
    assert QUANTIZERS.kind_of(quantizer.config) == name
    assert quantizer.config.codebook_size == (0 if continuous else 8)


def test_mapping_sets_nested_options() -> None:
    config = build_quantizer("arcvq", 4, OPTIONS).config
    assert config.arc == Arc(scale=20.0, margin=0.2, schedule="adaptive")
    assert config.ball == Ball(alpha=1e-3)
    assert config.entropy == Entropy(weight=0.2)
    assert config.restart == Restart(decay=0.9)
    assert config.heads == 2


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["defaults", "options"])
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_written_config_builds_same_quantizer(name: str, options: dict[str, Any], write: Any) -> None:
    known = QUANTIZERS.config(name).__dataclass_fields__
    if QUANTIZERS.config(name)().codebook_size:
        options = {k: v for k, v in options.items() if k in known and (name, k) not in REFUSED}
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


def test_null_switches_option_off() -> None:
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
def test_wrong_names_and_options_raise_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        build_quantizer(name, 4, options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@dataclass(kw_only=True)
class NearestConfig(VQConfig):
    shift: float = 0.5


class Nearest(VQ):
    """A quantizer outside the package."""

    Config = NearestConfig


def copy_of_registry() -> Registry[Quantizer]:
    """A copy, so that the package's own stays as it is."""
    return Registry("quantizer", {kind: QUANTIZERS[kind] for kind in QUANTIZERS})


def test_registered_quantizer_is_built_from_its_config() -> None:
    quantizers = copy_of_registry()
    quantizers.register("nearest", Nearest)
    config = parse(quantizers.config("nearest"), {"codebook_size": 8, "shift": 2})
    quantizer = quantizers.build(config, 4)
    assert type(quantizer) is Nearest
    assert quantizer.config == NearestConfig(codebook_size=8, shift=2.0)
    assert quantizers.kind_of(quantizer.config) == "nearest"
    assert quantizer(torch.randn(6, 4)).tokens.shape == (6,)


def test_registering_same_name_twice_raises() -> None:
    quantizers = copy_of_registry()
    quantizers.register("nearest", Nearest)
    with pytest.raises(ArcvqError, match="quantizer 'nearest' is already registered"):
        quantizers.register("nearest", Nearest)
    assert quantizers["nearest"] is Nearest


def test_registering_class_with_shared_config_raises() -> None:
    class Subclass(VQ):
        pass

    quantizers = copy_of_registry()
    with pytest.raises(ArcvqError, match="Subclass shares its Config with the quantizer 'vq'"):
        quantizers.register("heir", Subclass)
    assert "heir" not in quantizers


def test_registering_class_without_config_raises() -> None:
    with pytest.raises(ArcvqError, match="Identity needs a dataclass Config"):
        copy_of_registry().register("identity", torch.nn.Identity)  # type: ignore[arg-type]


def test_kind_of_unregistered_config_raises() -> None:
    with pytest.raises(ArcvqError, match="NearestConfig belongs to no registered quantizer"):
        QUANTIZERS.kind_of(NearestConfig())
