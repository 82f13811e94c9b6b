"""The networks of other projects, stated again with the names of their tensors: what their checkpoints are made of."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def perturb(model: nn.Module) -> None:
    """Move every weight off its initial value: scales of 1 and biases of 0 would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


# ---- taming-transformers --------------------------------------------------------------------------------------------


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class Named(nn.Module):
    """Modules by name, without a forward pass."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Block(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(channels), norm(out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        if channels != out:
            self.nin_shortcut = nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(swish(self.norm1(x)))
        h = self.conv2(swish(self.norm2(h)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + h


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(torch.einsum("bcn,bcm->bnm", q, k) / x.shape[1] ** 0.5, dim=-1)
        return x + self.proj_out(torch.einsum("bnm,bcm->bcn", weights, v).view_as(x))


def middle(channels: int) -> Named:
    return Named(block_1=Block(channels, channels), attn_1=Attention(channels), block_2=Block(channels, channels))


def run_middle(mid: Any, x: Tensor) -> Tensor:
    return mid.block_2(mid.attn_1(mid.block_1(x)))


def level(widths: Iterable[int], attention: bool, resample: dict[str, nn.Module]) -> Named:
    """A level with blocks from width to width."""
    steps = list(widths)
    blocks = [Block(a, b) for a, b in pairwise(steps)]
    attentions = [Attention(b) for b in steps[1:]] if attention else []
    return Named(block=nn.ModuleList(blocks), attn=nn.ModuleList(attentions), **resample)


def run_level(each: Any, x: Tensor) -> Tensor:
    for index, block in enumerate(each.block):
        x = block(x)
        if len(each.attn):
            x = each.attn[index](x)
    return x


class TamingVQGAN(nn.Module):
    """taming-transformers' VQModel. `options` are those of its ddconfig."""

    def __init__(self, embed_dim: int, n_embed: int, **options: Any) -> None:
        super().__init__()
        width, multipliers = options["ch"], options["ch_mult"]
        widths = [width * multiplier for multiplier in multipliers]
        sides = [options["resolution"] // 2**i for i in range(len(widths))]
        blocks, z, last = options["num_res_blocks"], options["z_channels"], len(widths) - 1
        attended = [side in options["attn_resolutions"] for side in sides]

        def conv(inputs: int, out: int, size: int = 3, **strides: int) -> nn.Conv2d:
            return nn.Conv2d(inputs, out, size, **(strides or {"padding": size // 2}))

        down, up = nn.ModuleList(), nn.ModuleList()
        for i, own in enumerate(widths):
            before, below = widths[max(i - 1, 0)] if i else width, widths[min(i + 1, last)]
            halve = {"downsample": Named(conv=conv(own, own, stride=2))} if i < last else {}
            double = {"upsample": Named(conv=conv(own, own))} if i else {}
            down.append(level([before] + [own] * blocks, attended[i], halve))
            up.append(level([below] + [own] * (blocks + 1), attended[i], double))
        deep, channels = widths[-1], options["in_channels"]
        ends = {"norm_out": norm(deep), "conv_out": conv(deep, z)}
        self.encoder: Any = Named(conv_in=conv(channels, width), down=down, mid=middle(deep), **ends)
        ends = {"norm_out": norm(widths[0]), "conv_out": conv(widths[0], options["out_ch"])}
        self.decoder: Any = Named(conv_in=conv(z, deep), mid=middle(deep), up=up, **ends)
        self.quant_conv, self.post_quant_conv = conv(z, embed_dim, 1), conv(embed_dim, z, 1)
        self.quantize: Any = Named(embedding=nn.Embedding(n_embed, embed_dim))
        self.loss = Named(discriminator=nn.Conv2d(3, 4, 4), perceptual_loss=nn.Linear(2, 2))

    def latents(self, images: Tensor) -> Tensor:
        net = self.encoder
        x = net.conv_in(images)
        for each in net.down:
            x = run_level(each, x)
            if hasattr(each, "downsample"):
                x = each.downsample.conv(F.pad(x, (0, 1, 0, 1)))
        x = run_middle(net.mid, x)
        return self.quant_conv(net.conv_out(swish(net.norm_out(x))))

    def tokens(self, latents: Tensor) -> Tensor:
        """By squared distance, as differences."""
        rows = latents.permute(0, 2, 3, 1).unsqueeze(-2)
        return (rows - self.quantize.embedding.weight).square().sum(-1).argmin(-1)

    def decode(self, tokens: Tensor) -> Tensor:
        net = self.decoder
        x = net.conv_in(self.post_quant_conv(self.quantize.embedding(tokens).permute(0, 3, 1, 2)))
        x = run_middle(net.mid, x)
        for each in reversed(net.up):
            x = run_level(each, x)
            if hasattr(each, "upsample"):
                x = each.upsample.conv(F.interpolate(x, scale_factor=2, mode="nearest"))
        return net.conv_out(swish(net.norm_out(x)))


# ---- the small models of ArcVQ-VAE and CVQ-VAE ----------------------------------------------------------------------


class SmallResidual(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        convs = (nn.Conv2d(width, inner, 3, padding=1), nn.Conv2d(inner, width, 1))
        self._block = nn.Sequential(nn.ReLU(inplace=True), convs[0], nn.ReLU(inplace=True), convs[1])

    def forward(self, x: Tensor) -> Tensor:
        update = self._block(x)  # in place: x is relu(x) afterwards
        return x + update


def run_stack(stack: Any, x: Tensor) -> Tensor:
    for each in stack._layers:
        x = each(x)
    return F.relu(x)


class SmallVQVAE(nn.Module):
    def __init__(self, channels: int, width: int, inner: int, blocks: int, dim: int, codes: int) -> None:
        super().__init__()

        def stack() -> Named:
            return Named(_layers=nn.ModuleList(SmallResidual(width, inner) for _ in range(blocks)))

        half = width // 2
        self._encoder: Any = Named(
            _conv_1=nn.Conv2d(channels, half, 4, 2, 1),
            _conv_2=nn.Conv2d(half, width, 4, 2, 1),
            _conv_3=nn.Conv2d(width, width, 3, 1, 1),
            _residual_stack=stack(),
        )
        self._pre_vq_conv = nn.Conv2d(width, dim, 1)
        self._vq_vae: Any = Named(embedding=nn.Embedding(codes, dim))
        self._decoder: Any = Named(
            _conv_1=nn.Conv2d(dim, width, 3, 1, 1),
            _residual_stack=stack(),
            _conv_trans_1=nn.ConvTranspose2d(width, half, 4, 2, 1),
            _conv_trans_2=nn.ConvTranspose2d(half, channels, 4, 2, 1),
        )

    def latents(self, images: Tensor) -> Tensor:
        net = self._encoder
        x = net._conv_3(F.relu(net._conv_2(F.relu(net._conv_1(images)))))
        return self._pre_vq_conv(run_stack(net._residual_stack, x))

    def tokens(self, latents: Tensor, metric: str) -> Tensor:
        rows, codes = latents.permute(0, 2, 3, 1), self._vq_vae.embedding.weight
        if metric == "cosine":
            return (F.normalize(rows, dim=-1) @ F.normalize(codes, dim=-1).T).argmax(-1)
        return (rows.unsqueeze(-2) - codes).square().sum(-1).argmin(-1)

    def decode(self, tokens: Tensor) -> Tensor:
        net = self._decoder
        x = run_stack(net._residual_stack, net._conv_1(self._vq_vae.embedding(tokens).permute(0, 3, 1, 2)))
        return net._conv_trans_2(F.relu(net._conv_trans_1(x)))
