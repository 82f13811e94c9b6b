"""Encode, decode and reconstruct agree, and wrong images or tokens are refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import VQ, ArcVQ, ArcvqError, Tokenizer
from arcvq.data import to_unit
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.quantizers import CVQ, EMAVQ, FSQ, HVQ, Gaussian, Quantizer, SimVQ
from arcvq.tokenizers.inference import MAPS_PER_CHANNEL, inference_batch_size

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)


def make_tokenizer(quantizer: type[VQ] = ArcVQ, **options: Any) -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(SmallAutoencoder(1, SMALL), quantizer(8, 32, **options)).eval()


@pytest.fixture
def images(sample_pixels: Tensor) -> Tensor:
    return to_unit(sample_pixels)


@pytest.mark.parametrize("quantizer", [VQ, ArcVQ, EMAVQ, CVQ, SimVQ, HVQ])
@pytest.mark.parametrize("heads", [1, 2])
def test_decoded_tokens_equal_reconstruction(quantizer: type[VQ], heads: int, images: Tensor) -> None:
    tokenizer = make_tokenizer(quantizer, heads=heads)
    tokens = tokenizer.encode(images)
    assert tokens.shape == ((12, 7, 7) if heads == 1 else (12, 7, 7, heads))
    assert torch.equal(tokenizer.decode(tokens), tokenizer.reconstruct(images))


def test_decode_equals_decoder_of_quantized_latents(images: Tensor) -> None:
    tokenizer = make_tokenizer()
    quantized = tokenizer.quantize(tokenizer.latents(images))
    assert torch.equal(tokenizer.encode(images), quantized.tokens)
    with torch.no_grad():
        assert torch.equal(
            tokenizer.decode(quantized.tokens), tokenizer.autoencoder.decoder(quantized.quantized).clamp(-1, 1)
        )


def test_decode_latents_quantizes_first(images: Tensor) -> None:
    tokenizer = make_tokenizer()
    latents = tokenizer.latents(images)
    nearby = latents + 1e-6 * torch.randn_like(latents)
    assert torch.equal(tokenizer.quantize(nearby).tokens, tokenizer.encode(images))
    torch.testing.assert_close(tokenizer.decode_latents(nearby), tokenizer(images)[0].images, rtol=0, atol=1e-5)
    assert torch.equal(tokenizer.decode_latents(latents), tokenizer(images)[0].images)


def test_forward_is_not_clamped_but_images_are(images: Tensor) -> None:
    tokenizer = make_tokenizer()
    with torch.no_grad():
        tokenizer.autoencoder.decoder[-1].bias.fill_(3.0)
    assert tokenizer(images)[0].images.min() > 1
    assert torch.equal(tokenizer.reconstruct(images), torch.ones_like(images))
    assert torch.equal(tokenizer.decode(tokenizer.encode(images)), torch.ones_like(images))


def test_gradient_passes_unchanged_from_quantized_to_latents(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    latents = tokenizer.latents(images).detach().requires_grad_()
    quantized = tokenizer.quantize(latents).quantized
    quantized.retain_grad()
    (tokenizer.autoencoder.decoder(quantized) - images).square().mean().backward()
    assert quantized.grad is not None
    assert latents.grad is not None
    assert quantized.grad.abs().sum() > 0
    assert torch.equal(latents.grad, quantized.grad)


def test_training_loss_has_gradient_for_every_parameter(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    decoded, quantized = tokenizer(images)
    ((decoded.images - images).square().mean() + quantized.loss).backward()
    for name, parameter in tokenizer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_encode_builds_no_graph_and_changes_no_state(images: Tensor) -> None:
    tokenizer = make_tokenizer().train()
    before = {name: tensor.clone() for name, tensor in tokenizer.state_dict().items()}
    tokens, copies = tokenizer.encode(images), tokenizer.reconstruct(images)
    assert not copies.requires_grad
    assert not tokenizer.decode(tokens).requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in tokenizer.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_of_other_dtypes_give_same_tokens(dtype: torch.dtype, images: Tensor) -> None:
    tokenizer = make_tokenizer()
    rounded = images.to(dtype)
    assert torch.equal(tokenizer.encode(rounded), tokenizer.encode(rounded.float()))


def test_bfloat16_tokenizer_accepts_float_images(images: Tensor) -> None:
    tokenizer = make_tokenizer().bfloat16()
    copies = tokenizer.reconstruct(images)
    assert copies.dtype == torch.bfloat16
    assert torch.equal(tokenizer.decode(tokenizer.encode(images)), copies)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 28, 28), "(2, 3, 28, 28)"),
        (torch.zeros(1, 28, 28), "(1, 28, 28)"),
        (torch.zeros(2, 1, 28, 30), "28×30"),
        (torch.zeros(2, 1, 0, 28), "0×28"),
        (
            torch.zeros(2, 1, 28, 28, dtype=torch.uint8),
            "torch.uint8",
        ),
    ],
)
def test_wrong_images_are_refused_in_one_line(images: Tensor, message: str) -> None:
    tokenizer = make_tokenizer()
    for call in (tokenizer.encode, tokenizer.reconstruct, tokenizer.latents, tokenizer):
        with pytest.raises(ArcvqError) as raised:
            call(images)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)


def test_images_with_nan_are_refused_in_one_line(images: Tensor) -> None:
    images[3, 0, 5, 5] = float("nan")
    with pytest.raises(ArcvqError, match=r"^latents hold \d+ non-finite values.*$"):
        make_tokenizer().encode(images)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(7, 7, dtype=torch.int64), "(7, 7)"),
        (torch.zeros(1, 7, 7, 2, dtype=torch.int64), "(1, 7, 7, 2)"),
        (torch.full((1, 7, 7), 32), "token 32 "),
        (torch.full((1, 7, 7), -2), "token -2 "),
        (torch.zeros(1, 7, 7), "torch.float32"),
    ],
)
def test_wrong_tokens_are_refused_in_one_line(tokens: Tensor, message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        make_tokenizer().decode(tokens)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tokens_without_head_dimension_are_refused() -> None:
    with pytest.raises(ArcvqError) as raised:
        make_tokenizer(heads=2).decode(torch.zeros(1, 7, 7, dtype=torch.int64))
    assert "tokens per position" in str(raised.value)


def test_encode_is_the_same_in_train_and_eval_mode() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(
        SmallAutoencoder(1, SmallConfig(width=16, residual_width=8, latent_dim=8)), ArcVQ(8, 32)
    ).train()
    image = torch.rand(1, 1, 4, 4) * 2 - 1  # one token: too few for the ArcLoss of training
    tokens, copy = tokenizer.encode(image), tokenizer.reconstruct(image)
    assert tokenizer.quantizer.training
    tokenizer.eval()
    assert torch.equal(tokenizer.encode(image), tokens)
    assert torch.equal(tokenizer.reconstruct(image), copy)


def test_decode_latents_clamps_images() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(
        SmallAutoencoder(1, SmallConfig(width=16, residual_width=8, latent_dim=8)), ArcVQ(8, 32)
    ).eval()
    with torch.no_grad():
        tokenizer.autoencoder.decoder[-1].bias.fill_(5.0)
    assert tokenizer.decode_latents(torch.randn(2, 8, 3, 3)).max().item() == 1.0


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_changes_few_tokens_and_searches_in_float32(precision: Any, images: Tensor) -> None:
    tokenizer = Tokenizer.from_pretrained("tiny")
    seen: list[torch.dtype] = []
    tokenizer.quantizer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    exact, half = tokenizer.encode(images), tokenizer.encode(images, precision=precision)
    assert seen == [torch.float32, torch.float32]
    assert 0.9 < (exact == half).double().mean() <= 1
    copies = tokenizer.decode(half, precision=precision)
    assert copies.dtype == torch.float32
    assert not torch.equal(copies, tokenizer.decode(half))
    torch.testing.assert_close(copies, tokenizer.decode(half), rtol=0, atol=0.1)
    assert torch.equal(tokenizer.reconstruct(images, precision=precision), copies)


@pytest.mark.parametrize(
    "quantizer",
    [VQ(8, 32), VQ(8, 32, code_dim=3), FSQ(8, 64), Gaussian(8, latent_dim=5)],
    ids=lambda q: type(q).__name__,
)
def test_fp32_ignores_outer_autocast(quantizer: Quantizer, images: Tensor) -> None:
    config = SmallConfig(width=16, residual_width=8, latent_dim=8)
    tokenizer = Tokenizer(SmallAutoencoder(1, config), quantizer).eval()
    exact = tokenizer.reconstruct(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tokenizer.reconstruct(images), exact)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "'fp8'"),
        ({"precision": "tf32"}, "tf32 needs an NVIDIA GPU"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_inference_options_are_refused_in_one_line(options: Any, message: str, images: Tensor) -> None:
    tokenizer = make_tokenizer()
    tokens = tokenizer.encode(images)
    for call, argument in ((tokenizer.encode, images), (tokenizer.reconstruct, images), (tokenizer.decode, tokens)):
        with pytest.raises(ArcvqError) as raised:
            call(argument, **options)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)


def test_batched_inference_equals_one_batch(images: Tensor) -> None:
    tokenizer = Tokenizer.from_pretrained("tiny")
    sizes: list[int] = []
    tokenizer.autoencoder.encoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    tokens = tokenizer.encode(images)
    assert torch.equal(tokenizer.encode(images, batch_size=5), tokens)
    assert sizes == [12, 5, 5, 2]
    torch.testing.assert_close(tokenizer.decode(tokens, batch_size=5), tokenizer.decode(tokens))
    torch.testing.assert_close(tokenizer.reconstruct(images, batch_size=5), tokenizer.reconstruct(images))


def test_batch_size_shrinks_for_larger_images() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.batch_size(32, 32) == 256
    assert tokenizer.batch_size(64, 64) == 64
    assert tokenizer.batch_size(4096, 4096) == 1


def test_gpu_batch_fits_half_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    gpu = torch.device("cuda")
    assert inference_batch_size(32, 32, 16, gpu) == 4096  # limited by work, not by memory
    fitting = inference_batch_size(256, 256, 128, gpu)
    assert 1 <= fitting < 64
    assert fitting * 4 * MAPS_PER_CHANNEL * 128 * 256 * 256 <= free / 2
    assert inference_batch_size(8192, 8192, 1024, gpu) == 1


def test_channels_last_changes_only_layout(images: Tensor, tmp_path: Path) -> None:
    plain, last = Tokenizer.from_pretrained("tiny"), Tokenizer.from_pretrained("tiny").speed_up(channels_last=True)
    assert last.autoencoder.encoder[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last.encode(images), plain.encode(images))
    torch.testing.assert_close(last.reconstruct(images), plain.reconstruct(images))
    again = Tokenizer.from_pretrained(last.save_pretrained(tmp_path / "saved"))
    assert torch.equal(again.reconstruct(images), plain.reconstruct(images))


def test_compiled_tokenizer_gives_same_tokens(images: Tensor) -> None:
    plain, compiled = Tokenizer.from_pretrained("tiny"), Tokenizer.from_pretrained("tiny").speed_up(compile=True)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(compiled.encode(images), plain.encode(images))
    torch.testing.assert_close(compiled.reconstruct(images), plain.reconstruct(images), rtol=0, atol=1e-4)
