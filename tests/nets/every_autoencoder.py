"""A small configuration of every kind of autoencoder, for tests of their common contract."""

from arcvq.nets import (
    AutoencoderConfig,
    DfvqganConfig,
    MovqConfig,
    SmallConfig,
    StackedConfig,
    VitConfig,
    VqganConfig,
)

SMALL: dict[str, AutoencoderConfig] = {
    "small": SmallConfig(width=16, residual_width=8, latent_dim=8),
    "stacked": StackedConfig(width=16, residual_width=8, latent_dim=8),
    "vqgan": VqganConfig(width=16, multipliers=(1, 1, 2), attention=(4,), groups=8, latent_dim=8),
    "movq": MovqConfig(width=16, multipliers=(1, 2), attention=(2,), groups=8, latent_dim=8),
    "dfvqgan": DfvqganConfig(width=16, multipliers=(1, 1, 2), attention=(4,), groups=8, latent_dim=8),
    "vit": VitConfig(width=16, depth=2, heads=1, feedforward=32, latent_dim=8),
}
