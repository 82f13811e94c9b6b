"""The transformer autoencoder of ViT-VQGAN. After Yu et al., Vector-quantized Image Modeling with Improved VQGAN, ICLR 2022."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.precision import compute_dtype
from arcvq.nets.autoencoder import Autoencoder, AutoencoderConfig, Decoded
from arcvq.nets.blocks import Stack

HEAD_WIDTH = 64
# Pixels in [0, 1] are squeezed into [EPSILON, 1 - EPSILON], where their logits are finite.
LOGIT_LAPLACE_EPSILON = 0.1


@dataclass(kw_only=True)
class VitConfig(AutoencoderConfig):
    """patch                pixels of a patch's side; a patch becomes one latent
    width                of the encoder's tokens (published sizes: small 512, base 768, large 1280)
    depth                blocks of the encoder (8, 12, 32)
    heads                attention heads of width 64 (8, 12, 16)
    feedforward          hidden units of a block (2048, 3072, 5120)
    decoder_width        of the decoder; None: as the encoder's. Likewise:
    decoder_depth        blocks
    decoder_heads        attention heads
    decoder_feedforward  hidden units
    likelihood           also predict a scale for each pixel and channel, for the logit-Laplace likelihood
    checkpointing        compute activations again in the backward pass instead of keeping them: slower, with less memory
    """

    latent_dim: int = 32
    patch: int = 8
    width: int = 512
    depth: int = 8
    heads: int = 8
    feedforward: int = 2048
    decoder_width: int | None = None
    decoder_depth: int | None = None
    decoder_heads: int | None = None
    decoder_feedforward: int | None = None
    likelihood: bool = False
    checkpointing: bool = False

    def __post_init__(self) -> None:
        self.check_range(1, 2**14, "latent_dim", "feedforward", "decoder_feedforward")
        self.check_range(1, 64, "patch", "depth", "decoder_depth", "heads", "decoder_heads")
        self.check_range(4, 2**12, "width", "decoder_width")
        for name in ("width", "decoder_width"):
            if (getattr(self, name) or 4) % 4:
                raise ArcvqError(
                    f"autoencoder.{name} must be a multiple of 4, which positions need, got {getattr(self, name)}"
                )

    @property
    def downsampling(self) -> int:
        return self.patch

    @property
    def encoder_sizes(self) -> tuple[int, int, int, int]:
        """Width, depth, heads and hidden units of the encoder."""
        return self.width, self.depth, self.heads, self.feedforward

    @property
    def decoder_sizes(self) -> tuple[int, int, int, int]:
        """The same of the decoder."""
        return (
            self.decoder_width or self.width,
            self.decoder_depth or self.depth,
            self.decoder_heads or self.heads,
            self.decoder_feedforward or self.feedforward,
        )


def to_patches(images: Tensor, side: int) -> Tensor:
    """(B, C, H, W) → (B, h, w, C·side·side): each patch's pixels as one row."""
    batch, channels, height, width = images.shape
    patches = images.reshape(batch, channels, height // side, side, width // side, side)
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3)


def from_patches(patches: Tensor, side: int) -> Tensor:
    """(B, h, w, C·side·side) → (B, C, H, W), the inverse of `to_patches`."""
    batch, height, width, size = patches.shape
    pixels = patches.view(batch, height, width, size // side**2, side, side).permute(0, 3, 1, 4, 2, 5)
    return pixels.reshape(batch, size // side**2, height * side, width * side)


def sincos_positions(height: int, width: int, channels: int, like: Tensor) -> Tensor:
    """Fixed positions (height, width, channels): sines and cosines of the column, then those of the row. Any grid has them."""
    dtype = compute_dtype(like)
    steps = torch.arange(channels // 4, device=like.device, dtype=dtype) / (channels // 4)
    frequencies = torch.exp(-math.log(10_000) * steps)
    rows, columns = (torch.arange(n, device=like.device, dtype=dtype).outer(frequencies) for n in (height, width))
    by_row, by_column = (torch.cat([angles.sin(), angles.cos()], dim=1) for angles in (rows, columns))
    grid = [by_column.expand(height, -1, -1), by_row.unsqueeze(1).expand(-1, width, -1)]
    return torch.cat(grid, dim=2).to(like.dtype)


class Attention(nn.Module):
    """Multi-head self-attention: (B, N, width) → the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * HEAD_WIDTH, bias=False)
        self.out = nn.Linear(heads * HEAD_WIDTH, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)  # (B, heads, N, 64) each
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Self-attention, then a feed-forward layer with tanh, each behind a norm and added to its input."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.Tanh(), nn.Linear(feedforward, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feedforward(self.norm2(x))


class Transformer(nn.Module):
    """A grid of vectors (B, h, w, inputs) → a grid of vectors (B, h, w, outputs)."""

    def __init__(
        self, inputs: int, outputs: int, sizes: tuple[int, int, int, int], checkpointing: bool = False
    ) -> None:
        super().__init__()
        width, depth, heads, feedforward = sizes
        self.linear_in = nn.Linear(inputs, width)
        self.blocks = Stack([TransformerBlock(width, heads, feedforward) for _ in range(depth)], checkpointing)
        self.norm = nn.LayerNorm(width)
        self.linear_out = nn.Linear(width, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, grid: Tensor) -> Tensor:
        height, width = grid.shape[1:3]
        positions = sincos_positions(height, width, self.linear_in.out_features, self.linear_in.weight)
        x = (self.linear_in(grid) + positions).flatten(1, 2)
        return self.linear_out(self.norm(self.blocks(x))).unflatten(1, (height, width))


class VitAutoencoder(Autoencoder):
    """A transformer from patches to latents, and one back."""

    Config: ClassVar[type[AutoencoderConfig]] = VitConfig
    config: VitConfig
    fixed_size = True  # positions outside the training images' grid were never learned from

    def __init__(self, channels: int, config: VitConfig) -> None:
        super().__init__(channels, config)
        pixels = channels * config.patch**2
        outputs, again = pixels * (1 + config.likelihood), config.checkpointing
        self.encoder = Transformer(pixels, config.latent_dim, config.encoder_sizes, again)
        self.decoder = Transformer(config.latent_dim, outputs, config.decoder_sizes, again)

    def encode(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.encoder(to_patches(images, self.config.patch)).permute(0, 3, 1, 2), None

    def decode(self, latents: Tensor, context: Any = None) -> Decoded:
        output = from_patches(self.decoder(latents.permute(0, 2, 3, 1)), self.config.patch)
        if not self.config.likelihood:
            return Decoded(output)
        location, log_scale = output.chunk(2, dim=1)
        # sigmoid(location) lies in [EPSILON, 1 - EPSILON] where the pixel is from -1 to 1.
        images = (2 * location.sigmoid() - 1) / (1 - 2 * LOGIT_LAPLACE_EPSILON)
        return Decoded(images, {"location": location, "log_scale": log_scale})

    @property
    def last_layer(self) -> Tensor:
        return self.decoder.linear_out.weight

    @property
    def maps_per_pixel(self) -> int:
        sizes = (self.config.encoder_sizes, self.config.decoder_sizes)
        widest = max(max(width, 3 * HEAD_WIDTH * heads, feedforward) for width, _, heads, feedforward in sizes)
        return max(math.ceil(widest / self.config.patch**2), self.channels * (1 + self.config.likelihood))

    def modules_to_compile(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]
