"""Networks that know neither quantizers nor training."""

from arcvq.nets.autoencoder import Autoencoder, AutoencoderConfig, Decoded
from arcvq.nets.small import SmallAutoencoder, SmallConfig
from arcvq.nets.stacked import StackedAutoencoder, StackedConfig
from arcvq.registry import Registry

AUTOENCODERS: Registry[Autoencoder] = Registry(
    "autoencoder", {"small": SmallAutoencoder, "stacked": StackedAutoencoder}
)

__all__ = [
    "AUTOENCODERS",
    "Autoencoder",
    "AutoencoderConfig",
    "Decoded",
    "SmallAutoencoder",
    "SmallConfig",
    "StackedAutoencoder",
    "StackedConfig",
]
