"""VQGAN at 256²: a training step with its discriminator, encoding, and decoding. Ours beside torch's layers and diffusers' VQModel."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from arcvq.data import ImageSource, InMemoryImages
from arcvq.metrics.lpips import Lpips, untrained_network
from arcvq.nets import GroupNorm
from arcvq.systems import TokenizerConfig, load_config
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.inference import PRECISIONS
from arcvq.training import Trainer
from arcvq.training.launch import make_accelerator
from benchmarks.contenders import NotInstalled, import_library
from benchmarks.measure import measure_cost

PRESET = "imagenet/vqgan-f8"
# The discriminator is on from the first step. A CPU gets a network that it can train in seconds.
SETTINGS: dict[str, list[str]] = {
    "cuda": [],
    "cpu": ["--data.image_size=32", "--data.batch_size=2", "--autoencoder.width=32", "--autoencoder.groups=8"],
}
MATRIX_SIDE = {"cuda": 8192, "cpu": 512}
STEPS: dict[str, dict[str, Any]] = {
    "torch's layers": {"capture": "never"},
    "arcvq": {"capture": "never"},
    "arcvq captured": {"capture": "always"},
}
WARM_UP = 4  # steps


def vqgan_rows(device: torch.device, peak: float, seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of training steps, with the share of `peak` operations per second that they reach, and of encoding and decoding.

    What is compiled comes last: it takes minutes.
    """
    operations = 0
    for name, way in STEPS.items():
        if device.type == "cuda" or way["capture"] == "never":
            row, counted = _measure_step(way, device, with_torchs_layers=name == "torch's layers")
            operations = counted or operations
            least = 1e3 * operations / peak
            row |= {
                "operations": operations,
                "limit_milliseconds": least,
                "limit_fraction": least / row["milliseconds"],
            }
            yield {"task": "vqgan step", "name": name} | row
    yield from _coding_rows(device, seconds)
    if device.type == "cuda":
        yield from _compiled_coding_rows(device, seconds)


def bf16_operations_per_second(device: torch.device) -> float:
    """What a large product in bf16 reaches on this device."""
    side = MATRIX_SIDE[device.type]
    a, b = torch.randn(2, side, side, device=device, dtype=torch.bfloat16)
    return 1e3 * 2 * side**3 / measure_cost(lambda: a @ b, device, seconds=0.3)["fastest"]


def _config(device: torch.device, way: dict[str, Any]) -> TokenizerConfig:
    """The preset with the settings of a device and of one way of computing."""
    settings = [*SETTINGS[device.type], "--adversarial.start=0", "--training.evaluations=0"]
    settings += [f"--training.{key}={str(value).lower()}" for key, value in way.items()]
    settings += ["--training.device=cpu"] if device.type == "cpu" else []
    config = load_config(PRESET, settings)
    assert isinstance(config, TokenizerConfig)
    return config


def _measure_step(
    way: dict[str, Any], device: torch.device, with_torchs_layers: bool
) -> tuple[dict[str, Any], int | None]:
    """Time and memory of a training step; of an eager one also how many operations its products and convolutions take."""
    torch.compiler.reset()
    gc.collect()
    config = _config(device, way)
    size, batch = config.data.image_size, config.data.batch_size
    pixels = torch.randint(256, (2 * batch, 3, size or 0, size or 0), dtype=torch.uint8)
    source = ImageSource(InMemoryImages("noise", pixels), batch)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # LPIPS takes as long with any weights, and a benchmark should need no download.
        stack.enter_context(mock.patch("arcvq.objectives.image.lpips_network", _random_lpips))
        if with_torchs_layers:
            for name, replacement in TORCHS_FUNCTIONS.items():
                stack.enter_context(mock.patch(name, replacement))
        task = config.build(source)
        if with_torchs_layers:
            _use_torchs_norms(task.networks["tokenizer"])
        accelerator = make_accelerator(config.training)
        trainer = Trainer(task, source, source, config.training, folder / "run", quiet=True, accelerator=accelerator)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trainer.begin()
        batches = trainer.batches()
        operations = None
        if way["capture"] == "never":
            with _CountOperations() as counter:
                trainer.step(next(batches))
            operations = counter.total
        for _ in range(WARM_UP):  # compiles and captures
            trainer.step(next(batches))
        peak = (
            torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        )  # a graph's memory was taken when it was captured
        cost = measure_cost(lambda: trainer.step(next(batches)), device, seconds=0.0)
        row: dict[str, Any] = {"batch_size": batch, "side": size, **cost}
        if device.type == "cuda":
            row["mebibytes"] = peak / 2**20
        return row, operations


class _CountOperations(TorchDispatchMode):
    """Counts the operations of products and convolutions, forward and backward. torch's own counter follows modules too, which
    `torch.autograd.grad` does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def _random_lpips(name: Any) -> Lpips:
    """An LPIPS network with random weights."""
    network = untrained_network(name)
    for layer in network.net:
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    return network


class _TorchsNorm(nn.GroupNorm):
    """torch's GroupNorm with the activation of ours."""

    def __init__(self, ours: GroupNorm) -> None:
        super().__init__(ours.groups, ours.weight.numel(), ours.eps)
        self.load_state_dict(ours.state_dict())
        self.silu = ours.activation == "silu"

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return F.silu(y) if self.silu else y


def _use_torchs_norms(module: nn.Module) -> None:
    """Replace every GroupNorm of ours by torch's, in place."""
    for name, child in module.named_children():
        if isinstance(child, GroupNorm):
            setattr(module, name, _TorchsNorm(child))
        else:
            _use_torchs_norms(child)


def _torchs_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)


TORCHS_FUNCTIONS: dict[str, Any] = {
    "arcvq.nets.attention.attend": _torchs_attention,
    "arcvq.nets.resampling.Upsample2x.forward": lambda self, x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "arcvq.functional.bias.uses_kernels": lambda *_: False,
    "arcvq.functional.feature_distance._uses_kernels": lambda *_: False,
}


def _coding_rows(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """A row per precision: images encoded and decoded per second, by ours and by diffusers' VQModel. Ours also say how many tokens
    are those of fp32, and by how much the PSNR differs."""
    tokenizer, images = _tokenizer_and_images(device)
    exact = _tokens_and_psnr(tokenizer, images, "fp32")
    for precision in PRECISIONS:
        if precision != "tf32" or device.type == "cuda":
            row = _coding_row(f"arcvq {precision}", *_ours(tokenizer, images, precision), images, seconds)
            yield row | _closeness(_tokens_and_psnr(tokenizer, images, precision), exact)
    for precision in ("fp32", "bf16"):
        name = f"diffusers VQModel {precision}"
        try:
            yield _coding_row(name, *_theirs(tokenizer, images, precision), images, seconds)
        except NotInstalled as missing:
            yield {"task": "vqgan coding", "name": name, "missing": str(missing)}


def _compiled_coding_rows(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of our tokenizer, compiled, in half precision."""
    for precision in ("bf16", "fp16"):
        torch.compiler.reset()
        tokenizer, images = _tokenizer_and_images(device)
        exact = _tokens_and_psnr(tokenizer, images, "fp32")
        functions = _ours(tokenizer.speed_up(compile=True), images, precision)
        row = _coding_row(f"arcvq {precision} compiled", *functions, images, seconds)
        yield row | _closeness(_tokens_and_psnr(tokenizer, images, precision), exact)


def _tokenizer_and_images(device: torch.device) -> tuple[Tokenizer, Tensor]:
    """The preset's tokenizer, untrained, its weights channels-last on a GPU; and a batch of noise."""
    config = _config(device, {})
    size, batch = config.data.image_size or 0, config.data.batch_size
    tokenizer = config.build_tokenizer(3, (size, size), 1).to(device).eval()
    images = torch.rand(batch, 3, size, size, device=device) * 2 - 1
    return tokenizer.speed_up(channels_last=device.type == "cuda"), images


def _ours(tokenizer: Tokenizer, images: Tensor, precision: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """Functions that encode and decode the images with our tokenizer."""
    options: dict[str, Any] = {"precision": precision, "batch_size": len(images)}
    tokens = tokenizer.encode(images, **options)
    return lambda: tokenizer.encode(images, **options), lambda: tokenizer.decode(tokens, **options)


def _tokens_and_psnr(tokenizer: Tokenizer, images: Tensor, precision: Any) -> tuple[Tensor, float]:
    """The images' tokens in this precision, and the PSNR of the images that are decoded from them."""
    options: dict[str, Any] = {"precision": precision, "batch_size": len(images)}
    tokens = tokenizer.encode(images, **options)
    error = (tokenizer.decode(tokens, **options).double() - images).square().mean()
    return tokens, float(10 * torch.log10(4 / error))


def _closeness(found: tuple[Tensor, float], exact: tuple[Tensor, float]) -> dict[str, float]:
    """How near tokens and PSNR are to those of fp32."""
    agreement = (found[0] == exact[0]).double().mean().item()
    return {"agreement": agreement, "psnr": found[1], "psnr_difference": found[1] - exact[1]}


def _theirs(tokenizer: Tokenizer, images: Tensor, precision: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Functions that encode and decode the images with diffusers' VQModel of the same size.

    It has attention in its middle only, and ours at the last level too, so that it has less to do.
    """
    diffusers: Any = import_library("diffusers", "diffusers")
    trunk: Any = tokenizer.autoencoder.config
    levels = len(trunk.multipliers)
    model = diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=tuple(trunk.widths),
        layers_per_block=trunk.blocks,
        latent_channels=trunk.latent_dim,
        num_vq_embeddings=1024,
        norm_num_groups=trunk.groups,
    )
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = model.to(images.device, dtype).eval()
    images = images.to(dtype)

    @torch.no_grad()
    def encode() -> Tensor:
        found: Tensor = model.quantize(model.encode(images).latents)[2][2]  # encode alone gives no tokens
        return found

    tokens, side = encode(), images.shape[-1] // tokenizer.downsampling

    @torch.no_grad()
    def decode() -> Tensor:
        codes = model.quantize.get_codebook_entry(tokens, (len(images), side, side, trunk.latent_dim))
        decoded: Tensor = model.decode(codes, force_not_quantize=True).sample
        return decoded

    return encode, decode


def _coding_row(
    name: str, encode: Callable[[], object], decode: Callable[[], object], images: Tensor, seconds: float
) -> dict[str, Any]:
    row: dict[str, Any] = {"task": "vqgan coding", "name": name, "batch_size": len(images)}
    for way, function in {"encode": encode, "decode": decode}.items():
        cost = measure_cost(function, images.device, seconds)
        row[f"{way}_images_per_second"] = 1e3 * len(images) / cost["milliseconds"]
        row[f"{way}_mebibytes"] = cost["mebibytes"]
    return row
