"""Multichannel quantization (MoVQ, Zheng et al., NeurIPS 2022): chunks of the latent's channels, and one codebook for all."""

from __future__ import annotations

from dataclasses import dataclass

from arcvq.errors import ArcvqError
from arcvq.quantizers.vq import VQ, VQConfig


@dataclass(kw_only=True)
class MultichannelVQConfig(VQConfig):
    """VQ's options, and:

    channels  how many chunks a position's vector is cut into; the name that MoVQ has for heads
    """

    channels: int = 4

    def __post_init__(self) -> None:
        if self.heads not in (1, self.channels):
            raise ArcvqError(
                f"channels is another name of heads: say channels alone, got {self.channels} and heads {self.heads}"
            )
        self.heads = self.channels
        super().__post_init__()


class MultichannelVQ(VQ):
    """`MultichannelVQ(dim=256, codebook_size=1024)`: four tokens (B, *spatial, 4) per position. Options: see MultichannelVQConfig."""

    Config = MultichannelVQConfig
    config: MultichannelVQConfig
