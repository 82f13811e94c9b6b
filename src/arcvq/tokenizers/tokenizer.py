"""Tokenizer: encoder, quantizer, decoder. Images ↔ tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets import Autoencoder
from arcvq.quantizers import Quantized, Quantizer
from arcvq.tokenizers.inference import Precision, check_precision, images_at_once, plain_float32, trunk_precision


class Tokenizer(nn.Module):
    """Images (B, C, H, W) in [-1, 1] ↔ tokens (B, h, w).

        tokenizer = Tokenizer.from_pretrained("runs/cifar10-arc/model")
        tokens = tokenizer.encode(images)
        images = tokenizer.decode(tokens)

    `forward` is for training: it returns the reconstruction and the quantizer's whole output.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        quantizer: Quantizer,
        *,
        image_size: tuple[int, int] | None = None,
        system: str | None = None,
    ) -> None:
        """`image_size` and `system` only travel with it: what it was trained on, and which row of the tables it is."""
        super().__init__()
        if quantizer.dim != autoencoder.latent_dim:
            raise ArcvqError(
                f"the quantizer takes latents {quantizer.dim} wide but the autoencoder makes them "
                f"{autoencoder.latent_dim} wide"
            )
        self.autoencoder, self.quantizer = autoencoder, quantizer
        self.channels, self.downsampling = autoencoder.channels, autoencoder.config.downsampling
        self.image_size, self.system = image_size, system

    def forward(self, images: Tensor) -> tuple[Tensor, Quantized]:
        self._check(images)
        latents, context = self.autoencoder.encode(images.to(self.device, self.dtype))
        quantized = self.quantize(latents)
        return self.autoencoder.decode(quantized.quantized, context).images, quantized

    def after_step(self, *outputs: Quantized) -> None:
        """Update the quantizer, once after each optimizer step, with the outputs of that step's micro-batches."""
        self.quantizer.after_step(*outputs)

    def encode(self, images: Tensor, *, precision: Precision = "fp32", batch_size: int | None = None) -> Tensor:
        """Images (B, C, H, W) in [-1, 1] → tokens (B, h, w), int64.

        `precision` is that of the trunk (fp32, tf32, fp16, bf16); the search is float32 in all of them. Tokens are for keeps,
        and another precision than fp32 moves some. Images go through `batch_size` at a time: by default, as many as keep the
        device busy and fit.
        """
        self.quantizer.require_codebook()
        self._check(images)

        def work(part: Tensor) -> Tensor:
            tokens = self._through(part, precision).tokens
            assert tokens is not None
            return tokens

        with self._inference(precision):
            return self._in_batches(work, images, batch_size, images.shape[-2:])

    def decode(self, tokens: Tensor, *, precision: Precision = "fp32", batch_size: int | None = None) -> Tensor:
        """Tokens (B, h, w) → images (B, C, H, W), in [-1, 1]. `precision` and `batch_size` as in `encode`."""
        self.quantizer.require_codebook()
        expected = 3 + (self.quantizer.tokens_per_position > 1)
        if tokens.dim() != expected:
            shape = "(B, h, w)" if expected == 3 else "(B, h, w, tokens per position)"
            raise ArcvqError(f"expected tokens {shape}, got shape {tuple(tokens.shape)}")
        size = torch.Size(side * self.downsampling for side in tokens.shape[1:3])

        def work(part: Tensor) -> Tensor:
            return self._images(self.quantizer.decode(part.to(self.device)).to(self.dtype), precision)

        with self._inference(precision):
            return self._in_batches(work, tokens, batch_size, size)

    def reconstruct(self, images: Tensor, *, precision: Precision = "fp32", batch_size: int | None = None) -> Tensor:
        """Images → tokens → images: what is left after the bottleneck, in [-1, 1]. `precision` and `batch_size` as in `encode`."""
        self._check(images)

        def work(part: Tensor) -> Tensor:
            return self._images(self._through(part, precision).quantized, precision)

        with self._inference(precision):
            return self._in_batches(work, images, batch_size, images.shape[-2:])

    def speed_up(self, *, compile: bool = False, channels_last: bool = False) -> Tokenizer:
        """For many images: `torch.compile` the trunk, and lay its weights out with the channels last. Changes this module in place."""
        if channels_last:
            self.to(memory_format=torch.channels_last)
        if compile:
            for module in self.modules_to_compile():
                module.compile()
        return self

    def latents(self, images: Tensor) -> Tensor:
        """Images → latents (B, D, h, w), before quantization."""
        self._check(images)
        return self.autoencoder.encode(images.to(self.device, self.dtype))[0]

    def quantize(self, latents: Tensor) -> Quantized:
        return self.quantizer(latents)

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Latents (B, D, h, w), as a prior makes them, are quantized first, then decoded: images in [-1, 1]."""
        return self.to_images(self.quantize(latents).quantized).clamp(-1, 1)

    def to_images(self, quantized: Tensor) -> Tensor:
        """Quantized latents (B, D, h, w) → images, not clamped."""
        return self.autoencoder.decode(quantized).images

    def batch_size(self, height: int, width: int) -> int:
        """How many images of this size `encode` and `decode` take at a time unless told."""
        return images_at_once(height, width, self.autoencoder.maps_per_pixel, self.device)

    def _through(self, images: Tensor, precision: Precision) -> Quantized:
        with trunk_precision(precision, self.device):
            latents = self.latents(images)
        return self.quantize(latents.to(self.dtype))

    def _images(self, quantized: Tensor, precision: Precision) -> Tensor:
        with trunk_precision(precision, self.device):
            images = self.to_images(quantized)
        return images.to(self.dtype).clamp(-1, 1)

    def _in_batches(
        self, work: Callable[[Tensor], Tensor], whole: Tensor, batch_size: int | None, size: torch.Size
    ) -> Tensor:
        if batch_size is not None and batch_size < 1:
            raise ArcvqError(f"batch_size must be at least 1, got {batch_size}")
        parts = whole.split(batch_size or self.batch_size(*size))
        return work(whole) if len(parts) < 2 else torch.cat([work(part) for part in parts])

    def modules_to_compile(self) -> list[nn.Module]:
        """What lies outside quantizers, in the modules that are compiled."""
        return self.autoencoder.modules_to_compile()

    @contextmanager
    def _inference(self, precision: str) -> Iterator[None]:
        """Without gradient, without the losses of training, and in float32 but for the trunk."""
        check_precision(precision, self.device)
        was_training = self.quantizer.training
        self.quantizer.eval()
        try:
            with torch.no_grad(), plain_float32(next(self.parameters())):
                yield
        finally:
            self.quantizer.train(was_training)

    def tokens_per_image(self, height: int, width: int) -> int:
        """How many tokens an image of this size becomes; 0 when the bottleneck is continuous."""
        positions = (height // self.downsampling) * (width // self.downsampling)
        return positions * self.quantizer.tokens_per_position

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _check(self, images: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ArcvqError(f"expected images (B, {self.channels}, H, W), got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ArcvqError(
                f"expected floating-point images in [-1, 1], got {images.dtype}: scale bytes with x / 127.5 - 1"
            )
        self.check_size(*images.shape[-2:])

    def check_size(self, height: int, width: int) -> None:
        if height % self.downsampling or width % self.downsampling or not height or not width:
            raise ArcvqError(f"image sides must be multiples of {self.downsampling}, got {height}×{width}")

    # ---- files ----------------------------------------------------------------------------------------------------------

    def save_pretrained(self, directory: str | Path, *, notes: Mapping[str, Any] | None = None) -> Path:
        """config.json, model.safetensors and a card (README.md), all or nothing; an older save there is replaced."""
        from arcvq.tokenizers.saving import save

        return save(self, Path(directory), notes or {})

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> Tokenizer:
        """From a folder, a run, the name of an embedded tokenizer (`tiny`), or a repository on the Hugging Face Hub."""
        from arcvq.tokenizers.saving import load

        return load(source).to(device).eval()

    def push_to_hub(self, repository: str, *, private: bool = False, notes: Mapping[str, Any] | None = None) -> str:
        """Upload to the Hugging Face Hub (log in first: `hf auth login`); returns the page's address."""
        from arcvq.tokenizers.saving import push

        return push(self, repository, private, notes or {})
