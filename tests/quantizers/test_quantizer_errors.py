"""Wrong input ends in one line that says what was wrong, what was expected and what to do."""

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
        ({}, torch.randn(2, 5, 3, 3), "expected latents (B, 4, *spatial), got shape (2, 5, 3, 3)"),
        ({}, torch.randn(4), "expected latents (B, 4, *spatial), got shape (4,)"),
        ({"channel_last": True}, torch.randn(2, 4, 3), "expected latents (B, *spatial, 4), got shape (2, 4, 3)"),
        ({}, torch.ones(2, 4, dtype=torch.int64), "latents must be floating point, got torch.int64"),
        ({}, torch.randn(2, 4), "top_k is 3 but the batch has only 2 tokens: lower arc.top_k or enlarge the batch"),
    ],
)
def test_wrong_latents_are_described(options: dict[str, Any], latents: torch.Tensor, message: str) -> None:
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
def test_a_negative_weight_is_refused(make: Callable[[], Any], name: str) -> None:
    assert message_of(make) == f"{name} must not be negative, got -1.0"


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_latents_that_are_not_finite_are_counted_and_the_first_is_placed(
    value: float, training: bool, channel_last: bool
) -> None:
    latents = torch.randn(2, 3, 5, 4)
    latents[1, 2, 4, 3] = value
    latents[1, 0, 1, 2] = value
    quantizer = ArcVQ(4, 8, channel_last=channel_last).train(training)
    message = message_of(lambda: quantizer(latents if channel_last else latents.movedim(-1, 1)))
    assert f"latents hold 2 non-finite values of 120, the first ({value}) in channel 2 at position (1, 0, 1)" in message
    assert "the encoder has diverged" in message


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 3), "expected a bool mask of shape (2, 3), got torch.float32 (2, 3)"),
        (torch.ones(2, 4, dtype=torch.bool), "expected a bool mask of shape (2, 3), got torch.bool (2, 4)"),
        (torch.ones(2, 3, 1, dtype=torch.bool), "got torch.bool (2, 3, 1)"),
    ],
)
def test_a_wrong_mask_is_described(mask: torch.Tensor, message: str) -> None:
    assert message in message_of(lambda: ArcVQ(4, 8)(torch.randn(2, 4, 3), mask))


@pytest.mark.parametrize(
    ("options", "tokens", "message"),
    [
        ({}, torch.tensor([[0, 8]]), "token 8 is out of range: this codebook has tokens 0 to 7"),
        ({}, torch.tensor([[0, -2]]), "token -2 is out of range: this codebook has tokens 0 to 7"),
        ({}, torch.zeros(2, 3), "tokens must be whole numbers, got torch.float32"),
        ({}, torch.ones(2, 3, dtype=torch.bool), "tokens must be whole numbers, got torch.bool"),
        ({}, torch.tensor(3), "expected tokens (B, *spatial), got a single number"),
        ({"heads": 2}, torch.zeros(2, 3, dtype=torch.int64), "expected tokens (B, *spatial, 2), one per head"),
        ({"heads": 2}, torch.zeros(2, dtype=torch.int64), "got shape (2,)"),
    ],
)
def test_wrong_tokens_are_described(options: dict[str, Any], tokens: torch.Tensor, message: str) -> None:
    assert message in message_of(lambda: ArcVQ(4, 8, **options).decode(tokens))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codebok_size": 9}, "unknown option 'codebok_size': did you mean codebook_size"),
        ({"comitment_weight": 1.0}, "unknown option 'comitment_weight': did you mean commitment_weight"),
        ({"zzz": 1}, "unknown option 'zzz': expected one of arc, backend, ball"),
        ({"metric": "cosin"}, "metric: expected one of cosine, euclidean, got 'cosin'"),
        ({"backend": "cuda"}, "backend: expected one of auto, reference, chunked, triton, got 'cuda'"),
        ({"init": "kmean"}, "init: expected one of uniform, unit-sphere, normal, scaled-normal, kmeans, got 'kmean'"),
        ({"loss_space": "sphere"}, "loss_space: expected one of raw, unit, got 'sphere'"),
        ({"legacy": 1}, "legacy: expected true or false, got 1"),
        ({"arc": {"scal": 3}}, "unknown key 'arc.scal': did you mean scale"),
        ({"arc": Arc(scale="ten")}, "arc.scale: expected a number, got 'ten'"),
        ({"arc": 3}, "arc: expected a mapping of keys to values, got 3"),
        ({"commitment_weight": float("nan")}, "commitment_weight: expected a finite number, got nan"),
        ({"codebook_size": 0}, "codebook_size must be at least 1, got 0"),
        ({"codebook_size": 2.5}, "codebook_size: expected a whole number, got 2.5"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"heads": 3}, "dim 4 cannot be cut into 3 equal heads: choose another number or give code_dim"),
        ({"code_dim": 0}, "code_dim must be at least 1, got 0"),
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"dim": 8.0}, "dim must be a whole number of at least 1, got 8.0"),
        ({"ball": {"start": -1}}, "ball: the radius must stay positive, got start -1.0"),
        ({"ball": {"schedule": "linear", "end": 0, "duration": 5}}, "ball: the radius must stay positive"),
        ({"arc": {"weight": -3}}, "arc: the weight must not be negative, got weight -3.0"),
        ({"entropy": {"temperature": 0}}, "entropy: the temperature must be positive, got 0.0"),
    ],
)
def test_wrong_options_are_named_with_what_was_expected(options: dict[str, Any], message: str) -> None:
    assert message in message_of(lambda: ArcVQ(**{"dim": 4, "codebook_size": 8, **options}))


@pytest.mark.parametrize("option", ["arc", "ball"])
@pytest.mark.parametrize("cls", [FSQ, HVQ, LFQ, Gaussian, VonMisesFisher])
def test_samp_is_refused_by_what_has_no_codes_of_its_own_to_choose(cls: type[Quantizer], option: str) -> None:
    for value in ({}, None):
        assert message_of(lambda value=value: cls(4, **{option: value})).startswith(f"unknown option '{option}': ")


def test_options_may_be_plain_mappings_and_numbers_of_other_libraries() -> None:
    quantizer = ArcVQ(4, numpy.int64(8), arc={"scale": "2e1", "top_k": 2}, commitment_weight=numpy.float32(0.5))
    assert quantizer.config.codebook_size == 8
    assert quantizer.config.arc == Arc(scale=20.0, top_k=2)
    assert quantizer.config.commitment_weight == 0.5


def test_the_signature_shows_every_option_with_its_default() -> None:
    parameters = inspect.signature(ArcVQ).parameters
    assert list(parameters)[:2] == ["dim", "codebook_size"]
    assert parameters["codebook_size"].default == 512
    assert parameters["commitment_weight"].default == 0.25
    assert parameters["metric"].default == "cosine"
    assert inspect.signature(VQ).parameters["metric"].default == "euclidean"


def test_the_bare_contract_cannot_quantize() -> None:
    with pytest.raises(NotImplementedError):
        Quantizer(4, 8)(torch.randn(5, 4))


def test_update_takes_what_the_quantizer_returned() -> None:
    quantizer = VQ(8, 4)
    with pytest.raises(ArcvqError, match="after_step takes what the quantizer returned, a Quantized, not a Tensor"):
        quantizer.after_step(quantizer(torch.randn(2, 8, 3)).quantized)  # type: ignore[arg-type]
