"""The Tokenizer: encoder, quantizer, decoder. Images ↔ tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets import Autoencoder, Decoded
from arcvq.nets.dfvqgan import hide_defects
from arcvq.quantizers import Quantized, Quantizer
from arcvq.tokenizers.inference import (
    Precision,
    check_precision,
    float32_quantizer,
    inference_batch_size,
    trunk_precision,
)
from arcvq.tokenizers.tiles import Tile, TileGrid, as_tile, decode_tiles, encode_tiles


class Tokenizer(nn.Module):
    """Images (B, C, H, W) in [-1, 1] ↔ tokens (B, h, w).

        tokenizer = Tokenizer.from_pretrained("runs/cifar10-arc/model")
        tokens = tokenizer.encode(images)
        images = tokenizer.decode(tokens)

    `forward` is for training: it returns what the decoder gives and the quantizer's output.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        quantizer: Quantizer,
        *,
        image_size: tuple[int, int] | None = None,
        system: str | None = None,
    ) -> None:
        """`image_size` (of the training images) and `system` (its name) are only saved with the tokenizer."""
        super().__init__()
        if quantizer.dim != autoencoder.latent_dim:
            raise ArcvqError(
                f"the quantizer takes latents of width {quantizer.dim}, but the autoencoder makes latents of width "
                f"{autoencoder.latent_dim}"
            )
        self.autoencoder, self.quantizer = autoencoder, quantizer
        self.channels, self.downsampling = autoencoder.channels, autoencoder.config.downsampling
        self.image_size, self.system = image_size, system

    def forward(self, images: Tensor, *, quantize: bool = True, **options: Any) -> tuple[Decoded, Quantized | None]:
        """Training pass: images → what the decoder gives (`images` are not clamped) and the quantizer's output with its losses.

        Without `quantize` the decoder gets the latents themselves, and the second result is None. `options` go to the encoder: its
        mask, for an autoencoder that takes one.
        """
        self._check_images(images)
        latents, context = self.autoencoder.encode(images.to(self.device, self.dtype), **options)
        if not quantize:
            return self.autoencoder.decode(latents, context), None
        quantized = self.quantize(latents)
        return self.autoencoder.decode(quantized.quantized, context), quantized

    def after_step(self, *outputs: Quantized) -> None:
        """Update the quantizer after each optimizer step, with the outputs of that step's micro-batches."""
        self.quantizer.after_step(*outputs)

    def encode(
        self,
        images: Tensor,
        *,
        precision: Precision = "fp32",
        batch_size: int | None = None,
        tile: int | Tile | None = None,
    ) -> Tensor:
        """Images (B, C, H, W) in [-1, 1] → tokens (B, h, w), int64.

        `precision` is that of encoder and decoder (fp32, tf32, fp16, bf16); the code search is always float32. A precision other
        than fp32 changes some tokens. By default, `batch_size` is as large as needed to keep the device busy, and fits its memory.

        `tile` is for images that do not fit into memory: the side of overlapping tiles, in pixels (or a `Tile`, with its margin). They
        go through the autoencoder `batch_size` at a time. The tokens are a grid of the whole image all the same.
        """
        self.quantizer.require_codebook()
        self._check_images(images, tile)

        def encode_batch(batch: Tensor) -> Tensor:
            tokens = self._encode_and_quantize(batch, precision).tokens
            assert tokens is not None
            return tokens

        with self._inference_mode(precision):
            if tiles := self._tiles(images, images.shape[-2:], tile):
                return encode_tiles(encode_batch, images, tiles, self._batch_size(batch_size, tiles.tile_size))
            return self._run_in_batches(encode_batch, images, batch_size, images.shape[-2:])

    def decode(
        self,
        tokens: Tensor,
        *,
        precision: Precision = "fp32",
        batch_size: int | None = None,
        tile: int | Tile | None = None,
    ) -> Tensor:
        """Tokens (B, h, w) → images (B, C, H, W), in [-1, 1]. The options are as in `encode`; tiles are blended where they overlap."""
        self.quantizer.require_codebook()
        expected = 3 + (self.quantizer.tokens_per_position > 1)
        if tokens.dim() != expected:
            shape = "(B, h, w)" if expected == 3 else "(B, h, w, tokens per position)"
            raise ArcvqError(f"expected tokens {shape}, got shape {tuple(tokens.shape)}")
        size = torch.Size(side * self.downsampling for side in tokens.shape[1:3])
        self.check_size(size[0], size[1], tile)

        def decode_batch(batch: Tensor) -> Tensor:
            return self._decode_quantized(self.quantizer.decode(batch.to(self.device)).to(self.dtype), precision)

        with self._inference_mode(precision):
            if tiles := self._tiles(tokens, size, tile):
                return decode_tiles(decode_batch, tokens, tiles, self._batch_size(batch_size, tiles.tile_size))
            return self._run_in_batches(decode_batch, tokens, batch_size, size)

    def reconstruct(
        self,
        images: Tensor,
        *,
        precision: Precision = "fp32",
        batch_size: int | None = None,
        tile: int | Tile | None = None,
    ) -> Tensor:
        """Images → quantized latents → images in [-1, 1]. The options are as in `encode` and `decode`."""
        self._check_images(images, tile)

        def reconstruct_batch(batch: Tensor) -> Tensor:
            return self._decode_quantized(self._encode_and_quantize(batch, precision).quantized, precision)

        def encode_batch(batch: Tensor) -> Tensor:  # the latents lie as tokens do: (b, h, w, D)
            return self._encode_and_quantize(batch, precision).quantized.movedim(1, -1)

        def decode_batch(quantized: Tensor) -> Tensor:
            return self._decode_quantized(quantized.movedim(-1, 1).contiguous(), precision)

        with self._inference_mode(precision):
            if tiles := self._tiles(images, images.shape[-2:], tile):
                size = self._batch_size(batch_size, tiles.tile_size)
                return decode_tiles(decode_batch, encode_tiles(encode_batch, images, tiles, size), tiles, size)
            return self._run_in_batches(reconstruct_batch, images, batch_size, images.shape[-2:])

    def inpaint(self, images: Tensor, mask: Tensor) -> Tensor:
        """Images (B, C, H, W) with a mask (B, 1, H, W), True where they are defective → images in [-1, 1].

        The visible pixels stay as they are. The others are decoded from the tokens and from the encoder's features of what is visible;
        their own pixels are not used. For autoencoders that take a mask (dfvqgan).
        """
        self._check_images(images)
        if not self.autoencoder.takes_mask:
            raise ArcvqError(f"{type(self.autoencoder).__name__} takes no mask: inpaint needs the autoencoder dfvqgan")
        images = images.to(self.device, self.dtype)
        mask = mask.to(self.device).bool()
        with self._inference_mode("fp32"):
            latents, context = self.autoencoder.encode(hide_defects(images, mask), mask)
            decoded = self.autoencoder.decode(self.quantize(latents).quantized, context).images
        return torch.where(mask, decoded.clamp(-1, 1), images)

    def speed_up(self, *, compile: bool = False, channels_last: bool = False) -> Tokenizer:
        """Speed up inference: compile encoder and decoder, and make their weights channels-last, in place. Returns this tokenizer."""
        if channels_last:
            self.to(memory_format=torch.channels_last)
        if compile:
            for module in self.modules_to_compile():
                module.compile()
        return self

    def latents(self, images: Tensor) -> Tensor:
        """Images → latents (B, D, h, w), before quantization."""
        self._check_images(images)
        return self.autoencoder.encode(images.to(self.device, self.dtype))[0]

    def quantize(self, latents: Tensor) -> Quantized:
        """Latents (B, D, h, w) → the quantizer's output."""
        return self.quantizer(latents)

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Quantize and decode latents (B, D, h, w), e.g. those of a prior: images in [-1, 1]."""
        return self.to_images(self.quantize(latents).quantized).clamp(-1, 1)

    def to_images(self, quantized: Tensor) -> Tensor:
        """Quantized latents (B, D, h, w) → images, not clamped."""
        return self.autoencoder.decode(quantized).images

    def batch_size(self, height: int, width: int) -> int:
        """Images of this size that `encode` and `decode` process at a time by default."""
        return inference_batch_size(height, width, self.autoencoder.maps_per_pixel, self.device)

    def _encode_and_quantize(self, images: Tensor, precision: Precision) -> Quantized:
        """Images → the quantizer's output, with the encoder in this precision."""
        with trunk_precision(precision, self.device):
            latents = self.latents(images)
        return self.quantize(latents.to(self.dtype))

    def _decode_quantized(self, quantized: Tensor, precision: Precision) -> Tensor:
        """Quantized latents → images in [-1, 1], with the decoder in this precision."""
        with trunk_precision(precision, self.device):
            images = self.to_images(quantized)
        return images.to(self.dtype).clamp(-1, 1)

    def _run_in_batches(
        self, function: Callable[[Tensor], Tensor], inputs: Tensor, batch_size: int | None, size: torch.Size
    ) -> Tensor:
        """Apply a function to batches of `inputs` and concatenate the results; `size` is the images' height and width."""
        batches = inputs.split(self._batch_size(batch_size, size))
        return function(inputs) if len(batches) < 2 else torch.cat([function(batch) for batch in batches])

    def _batch_size(self, batch_size: int | None, size: tuple[int, ...]) -> int:
        """The number given, checked; without one, the default for images of this height and width."""
        if batch_size is not None and batch_size < 1:
            raise ArcvqError(f"batch_size must be at least 1, got {batch_size}")
        return batch_size or self.batch_size(size[0], size[1])

    def _tiles(self, inputs: Tensor, size: torch.Size, tile: int | Tile | None) -> TileGrid | None:
        """The tiles of images of this height and width; None if each goes through whole."""
        if tile is None or not len(inputs):
            return None
        height, width = (side // self.downsampling for side in size)
        tiles = TileGrid.of(height, width, as_tile(tile), self.downsampling)
        return None if tiles.tile_size == tuple(size) else tiles

    def modules_to_compile(self) -> list[nn.Module]:
        """The modules that `speed_up` compiles: encoder and decoder, without quantizers."""
        return self.autoencoder.modules_to_compile()

    @contextmanager
    def _inference_mode(self, precision: str) -> Iterator[None]:
        """Run without gradient, with the quantizer in evaluation mode and in float32."""
        check_precision(precision, self.device)
        was_training = self.quantizer.training
        self.quantizer.eval()
        try:
            with torch.no_grad(), float32_quantizer(next(self.parameters())):
                yield
        finally:
            self.quantizer.train(was_training)

    def tokens_per_image(self, height: int, width: int) -> int:
        """Number of tokens of an image of this size; 0 for a continuous bottleneck."""
        positions = (height // self.downsampling) * (width // self.downsampling)
        return positions * self.quantizer.tokens_per_position

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _check_images(self, images: Tensor, tile: int | Tile | None = None) -> None:
        """Raise unless images are floats (B, C, H, W) with this tokenizer's channels and a size that it can encode."""
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ArcvqError(f"expected images (B, {self.channels}, H, W), got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ArcvqError(
                f"expected floating-point images in [-1, 1], got {images.dtype}: scale bytes with x / 127.5 - 1"
            )
        self.check_size(images.shape[2], images.shape[3], tile)

    def check_size(self, height: int, width: int, tile: int | Tile | None = None) -> None:
        """Raise unless the autoencoder takes images of this size, or tiles of them: the sides are multiples of the downsampling."""
        if height % self.downsampling or width % self.downsampling or not height or not width:
            raise ArcvqError(f"image sides must be multiples of {self.downsampling}, got {height}×{width}")
        size = (height, width)
        if tile is not None:
            rows, columns = (side // self.downsampling for side in size)
            size = TileGrid.of(rows, columns, as_tile(tile), self.downsampling).tile_size
        trained = self.image_size if self.autoencoder.fixed_size else None
        if trained not in (None, size):
            raise ArcvqError(
                f"{type(self.autoencoder).__name__} takes images of the size that it was trained on, "
                f"{'×'.join(map(str, trained))}, got {'tiles of ' if tile else ''}{size[0]}×{size[1]}"
            )

    # ---- files ----------------------------------------------------------------------------------------------------------

    def save_pretrained(
        self, directory: str | Path, *, notes: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
    ) -> Path:
        """Save config.json, model.safetensors and a model card (README.md) to a folder; replaces an older save.

        `notes` are rows of the card; `data_terms` says under which terms the training images may be used. With `dtype` torch.float16 or
        torch.bfloat16 the weights are stored in half precision. Loading makes float32 of them.
        """
        from arcvq.tokenizers.saving import save

        return save(self, Path(directory), notes or {}, dtype)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> Tokenizer:
        """Load a tokenizer from a folder, a run, an embedded name (`tiny`), or a repository on the Hugging Face Hub."""
        from arcvq.tokenizers.saving import load

        return load(source).to(device).eval()

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        notes: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
    ) -> str:
        """Upload to the Hugging Face Hub (log in first: `hf auth login`); returns the repository's address.

        `notes` and `dtype` as in `save_pretrained`.
        """
        from arcvq.tokenizers.saving import push

        return push(self, repository, private, notes or {}, dtype)
