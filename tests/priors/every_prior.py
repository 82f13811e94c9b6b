"""A small configuration of every kind of prior, for tests of their common contract."""

from dataclasses import replace

import torch
from torch import Tensor

from arcvq.nets import SmallConfig
from arcvq.priors import (
    PRIORS,
    Generator,
    GptConfig,
    Grid,
    LdmConfig,
    MaskGitConfig,
    PixelCnnConfig,
    Prior,
    PriorConfig,
    RqTransformerConfig,
)
from arcvq.quantizers import ArcVQConfig, MultichannelVQConfig, QuantizerConfig, ResidualVQConfig
from arcvq.tokenizers import build_tokenizer

SMALL: dict[str, PriorConfig] = {
    "gpt": GptConfig(width=16, layers=2, heads=2, dropout=0.0),
    "gpt annealed": GptConfig(width=16, layers=2, heads=2, dropout=0.0, order="annealed", total_steps=100),
    "pixelcnn": PixelCnnConfig(width=8, layers=3, head_width=16),
    "rq-transformer": RqTransformerConfig(width=16, layers=2, depth_layers=1, heads=2, dropout=0.0),
    "rq-transformer depth 3": RqTransformerConfig(width=16, layers=1, depth_layers=2, heads=2, dropout=0.0),
    "ldm": LdmConfig(
        width=8, multipliers=(1, 2), blocks=1, attention=(1,), head_width=4, context_width=8, groups=4, steps=4
    ),
    "maskgit": MaskGitConfig(width=32, layers=1, heads=2, dropout=0.0, label_smoothing=0.0, steps=5),
    "maskgit halton": MaskGitConfig(
        width=32, layers=1, heads=2, dropout=0.0, label_smoothing=0.0, steps=5, order="halton"
    ),
    "maskgit depth 3": MaskGitConfig(width=32, layers=1, heads=2, dropout=0.0, label_smoothing=0.0, steps=5),
}
# Parts of parameter names that no loss reaches, by kind. The UNet's cross-attention sees one token, so its weights are 1 whatever the
# query and the key are.
UNREACHED: dict[str, tuple[str, ...]] = {"ldm": (".attn2.to_q.", ".attn2.to_k.", ".transformer_blocks.0.norm2.")}
GRID = Grid(height=3, width=4, codebook_size=11, latent_dim=8, classes=3)
# Where a configuration is over something else than GRID: how many tokens a position has, and the quantizer that makes them.
DEPTHS = {"rq-transformer depth 3": 3, "maskgit depth 3": 3}
QUANTIZERS: dict[str, QuantizerConfig] = {
    "rq-transformer depth 3": ResidualVQConfig(codebook_size=11, depth=3),
    "maskgit depth 3": MultichannelVQConfig(codebook_size=11, channels=3, code_dim=4),
}


def kind_of(name: str) -> str:
    return name.split()[0]


def grid_of(name: str) -> Grid:
    return replace(GRID, depth=DEPTHS.get(name, 1))


def quantizer_of(name: str) -> QuantizerConfig:
    """A quantizer whose tokens the prior is over."""
    return QUANTIZERS.get(name, ArcVQConfig(codebook_size=11))


def small_prior(name: str, grid: Grid | None = None, seed: int = 0) -> Prior:
    """A prior whose weights are all random, so that its predictions differ; a fresh one may predict the same everywhere."""
    torch.manual_seed(seed)
    prior = PRIORS.build(SMALL[name], grid or grid_of(name))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return prior.eval()


def some_values(prior: Prior, count: int, seed: int = 0) -> Tensor:
    """Tokens, or latents, of so many images."""
    generator, grid = torch.Generator().manual_seed(seed), prior.grid
    if prior.models == "latents":
        return torch.randn(count, grid.latent_dim, grid.height, grid.width, generator=generator)
    return torch.randint(grid.codebook_size, (count, *grid.token_shape), generator=generator)


def small_generator(name: str) -> Generator:
    """A prior over an untrained tokenizer of 12 × 16 grey images with 3 × 4 positions."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer(
        1, SmallConfig(width=16, residual_width=8, latent_dim=8), quantizer_of(name), image_size=(12, 16)
    )
    return Generator(small_prior(name), tokenizer.eval(), class_names=["cat", "dog", "red fox"])
