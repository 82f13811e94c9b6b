"""ArcVQ: vector quantization with the spherical angular-margin prior and the paper's settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcvq.functional import Metric
from arcvq.quantizers.init import Init
from arcvq.quantizers.samp import Arc, Ball
from arcvq.quantizers.vq import VQ, VQConfig


@dataclass(kw_only=True)
class ArcVQConfig(VQConfig):
    """VQ's options with the four parts of SAMP switched on: cosine selection, unit-sphere init, ball bound, ArcLoss."""

    metric: Metric = "cosine"
    init: Init = "unit-sphere"
    ball: Ball | None = field(default_factory=Ball)
    arc: Arc | None = field(default_factory=Arc)


class ArcVQ(VQ):
    """`ArcVQ(dim=64, codebook_size=512)`: the paper's quantizer (s = 10, m = 0.1, top-3, γ0 = 1, M(t) = exp(3e-4 · t)).

        out = vq(latents)
        quantized, tokens, loss = out
        ...
        optimizer.step()
        vq.after_step(out)          # or, once, before training: vq.attach(optimizer)

    Options: see VQConfig. `arc=None` switches the ArcLoss off ("+BBNR" of the paper's ablation), `ball=None` the ball bound.
    """

    Config = ArcVQConfig
    config: ArcVQConfig
