"""Wrong input raises ArcvqError in one line that says what was wrong."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from arcvq import VQ, Arc, ArcVQ, ArcvqError
from arcvq.quantizers import CVQ, FSQ, HVQ, LFQ, Contrastive, Entropy, Gaussian, Quantizer, VonMisesFisher


def message_of(work: Callable[[], Any]) -> str:
    with pytest.raises(ArcvqError) as raised:
        work()
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("options", "latents", "message"),
    [
        ({}, torch.randn(2, 5, 3, 3), "(2, 5, 3, 3)"),
        ({}, torch.randn(4), "(4,)"),
        ({"channel_last": True}, torch.randn(2, 4, 3), "(B, *spatial, 4)"),
        ({}, torch.ones(2, 4, dtype=torch.int64), "torch.int64"),
        ({}, torch.randn(2, 4), "arc.top_k"),
    ],
)
def test_wrong_latents_raise_with_reason(options: dict[str, Any], latents: torch.Tensor, message: str) -> None:
    assert message in message_of(lambda: ArcVQ(4, 8, **options)(latents))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: VQ(4, 8, codebook_weight=-1.0), "codebook_weight"),
        (lambda: VQ(4, 8, commitment_weight=-1.0), "commitment_weight"),
        (lambda: VQ(4, 8, entropy=Entropy(weight=-1.0)), "weight"),
        (lambda: CVQ(4, 8, contrastive=Contrastive(weight=-1.0)), "weight"),
        (lambda: HVQ(4, 8, kl_weight=-1.0), "kl_weight"),
        (lambda: Gaussian(4, weight=-1.0), "weight"),
    ],
)
def test_negative_weight_raises(make: Callable[[], Any], name: str) -> None:
    message = message_of(make)
    assert message.startswith(name)
    assert "-1.0" in message


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_latents_raise_with_count_and_position(value: float, training: bool, channel_last: bool) -> None:
    latents = torch.randn(2, 3, 5, 4)
    latents[1, 2, 4, 3] = value
    latents[1, 0, 1, 2] = value
    quantizer = ArcVQ(4, 8, channel_last=channel_last).train(training)
    message = message_of(lambda: quantizer(latents if channel_last else latents.movedim(-1, 1)))
    for fact in ("2 non-finite values of 120", str(value), "channel 2", "(1, 0, 1)"):
        assert fact in message


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 3), "torch.float32 (2, 3)"),
        (torch.ones(2, 4, dtype=torch.bool), "torch.bool (2, 4)"),
        (torch.ones(2, 3, 1, dtype=torch.bool), "torch.bool (2, 3, 1)"),
    ],
)
def test_wrong_mask_raises_with_reason(mask: torch.Tensor, message: str) -> None:
    assert message in message_of(lambda: ArcVQ(4, 8)(torch.randn(2, 4, 3), mask))


@pytest.mark.parametrize(
    ("options", "tokens", "message"),
    [
        ({}, torch.tensor([[0, 8]]), "token 8 "),
        ({}, torch.tensor([[0, -2]]), "token -2 "),
        ({}, torch.zeros(2, 3), "torch.float32"),
        ({}, torch.ones(2, 3, dtype=torch.bool), "torch.bool"),
        ({}, torch.tensor(3), "single number"),
        ({"heads": 2}, torch.zeros(2, 3, dtype=torch.int64), "(B, *spatial, 2)"),
        ({"heads": 2}, torch.zeros(2, dtype=torch.int64), "(2,)"),
    ],
)
def test_wrong_tokens_raise_with_reason(options: dict[str, Any], tokens: torch.Tensor, message: str) -> None:
    assert message in message_of(lambda: ArcVQ(4, 8, **options).decode(tokens))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codebok_size": 9}, "codebook_size"),
        ({"comitment_weight": 1.0}, "commitment_weight"),
        ({"zzz": 1}, "arc, backend, ball"),
        ({"metric": "cosin"}, "cosine, euclidean"),
        ({"backend": "cuda"}, "auto, reference, chunked, triton"),
        ({"init": "kmean"}, "uniform, unit-sphere, normal, scaled-normal, kmeans"),
        ({"loss_space": "sphere"}, "raw, unit"),
        ({"legacy": 1}, "legacy"),
        ({"arc": {"scal": 3}}, "'arc.scal'"),
        ({"arc": Arc(scale="ten")}, "arc.scale"),
        ({"arc": 3}, "arc: "),
        ({"commitment_weight": float("nan")}, "commitment_weight: "),
        ({"codebook_size": 0}, "codebook_size "),
        ({"codebook_size": 2.5}, "2.5"),
        ({"heads": 0}, "heads "),
        ({"heads": 3}, "3 equal heads"),
        ({"code_dim": 0}, "code_dim "),
        ({"dim": 0}, "dim "),
        ({"dim": 8.0}, "8.0"),
        ({"ball": {"start": -1}}, "start -1.0"),
        ({"ball": {"schedule": "linear", "end": 0, "duration": 5}}, "ball: "),
        ({"arc": {"weight": -3}}, "weight -3.0"),
        ({"entropy": {"temperature": 0}}, "entropy: "),
    ],
)
def test_wrong_options_raise_with_expectation(options: dict[str, Any], message: str) -> None:
    assert message in message_of(lambda: ArcVQ(**{"dim": 4, "codebook_size": 8, **options}))


@pytest.mark.parametrize("option", ["arc", "ball"])
@pytest.mark.parametrize("cls", [FSQ, HVQ, LFQ, Gaussian, VonMisesFisher])
def test_samp_options_raise_for_quantizers_without_samp(cls: type[Quantizer], option: str) -> None:
    for value in ({}, None):
        assert message_of(lambda value=value: cls(4, **{option: value})).startswith(f"unknown option '{option}'")


def test_options_accept_mappings_and_numpy_numbers() -> None:
    quantizer = ArcVQ(4, numpy.int64(8), arc={"scale": "2e1", "top_k": 2}, commitment_weight=numpy.float32(0.5))
    assert quantizer.config.codebook_size == 8
    assert quantizer.config.arc == Arc(scale=20.0, top_k=2)
    assert quantizer.config.commitment_weight == 0.5


def test_signature_shows_options_with_defaults() -> None:
    parameters = inspect.signature(ArcVQ).parameters
    assert list(parameters)[:2] == ["dim", "codebook_size"]
    assert parameters["codebook_size"].default == 512
    assert parameters["commitment_weight"].default == 0.25
    assert parameters["metric"].default == "cosine"
    assert inspect.signature(VQ).parameters["metric"].default == "euclidean"


def test_base_class_cannot_quantize() -> None:
    with pytest.raises(NotImplementedError):
        Quantizer(4, 8)(torch.randn(5, 4))


def test_after_step_raises_on_other_types() -> None:
    quantizer = VQ(8, 4)
    with pytest.raises(ArcvqError, match=r"Quantized.*Tensor"):
        quantizer.after_step(quantizer(torch.randn(2, 8, 3)).quantized)  # type: ignore[arg-type]
