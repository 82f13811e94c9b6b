"""Networks that know neither quantizers nor training."""

from torch import nn

from arcvq.nets.attention import SelfAttention
from arcvq.nets.autoencoder import Autoencoder, AutoencoderConfig, Decoded
from arcvq.nets.dfvqgan import DfvqganAutoencoder, DfvqganConfig
from arcvq.nets.discriminators import PatchConfig, PatchDiscriminator, StyleGANConfig, StyleGANDiscriminator
from arcvq.nets.movq import MovqAutoencoder, MovqConfig
from arcvq.nets.norm import GroupNorm
from arcvq.nets.small import SmallAutoencoder, SmallConfig
from arcvq.nets.stacked import StackedAutoencoder, StackedConfig
from arcvq.nets.vit import VitAutoencoder, VitConfig
from arcvq.nets.vqgan import VqganAutoencoder, VqganConfig
from arcvq.registry import Registry

AUTOENCODERS: Registry[Autoencoder] = Registry(
    "autoencoder",
    {
        "small": SmallAutoencoder,
        "stacked": StackedAutoencoder,
        "vqgan": VqganAutoencoder,
        "movq": MovqAutoencoder,
        "dfvqgan": DfvqganAutoencoder,
        "vit": VitAutoencoder,
    },
)
DISCRIMINATORS: Registry[nn.Module] = Registry(
    "discriminator", {"patch": PatchDiscriminator, "stylegan": StyleGANDiscriminator}
)

__all__ = [
    "AUTOENCODERS",
    "DISCRIMINATORS",
    "Autoencoder",
    "AutoencoderConfig",
    "Decoded",
    "DfvqganAutoencoder",
    "DfvqganConfig",
    "GroupNorm",
    "MovqAutoencoder",
    "MovqConfig",
    "PatchConfig",
    "PatchDiscriminator",
    "SelfAttention",
    "SmallAutoencoder",
    "SmallConfig",
    "StackedAutoencoder",
    "StackedConfig",
    "StyleGANConfig",
    "StyleGANDiscriminator",
    "VitAutoencoder",
    "VitConfig",
    "VqganAutoencoder",
    "VqganConfig",
]
