"""The runs behind the paper's tables: a preset, or a preset with settings on top, under the name that its results carry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """`preset` is without its data set; `settings` are laid over it, as on the command line; `says` what it is, in words. A `quick`
    one is compared by PSNR alone: it is measured under `exact`, without LPIPS and FID."""

    name: str
    preset: str
    settings: tuple[str, ...] = ()
    says: str = ""
    quick: bool = False


def _plain(*presets: str) -> list[Experiment]:
    return [Experiment(preset, preset) for preset in presets]


def _arc(name: str, **settings: object) -> Experiment:
    """ArcVQ-VAE with another ArcLoss."""
    return Experiment(f"arcvq-vae-{name}", "arcvq-vae", tuple(f"--quantizer.arc.{k}={v}" for k, v in settings.items()))


RIVALS = _plain("vq-vae", "hvq-vae", "sq-vae", "cvq-vae", "arcvq-vae")
PARTS = _plain("vq-vae-bbnr", "vq-vae-bbnr-euclidean", "vq-vae-cosine", "arcvq-vae-fixed-ball")
CONTINUOUS = _plain("vae", "hyperspherical-vae")
ARC = [
    *(_arc(f"top{k}", top_k=k) for k in (1, 8)),
    *(_arc(f"margin{m}", margin=m) for m in ("0.5", "1")),
    *(_arc(f"scale{s}", scale=s) for s in (5, 20)),
]
BEYOND = _plain(
    "vq-vae-ema", "vq-vae-rotation", "simvq", "fsq", "lfq",
    "cvq-vae-samp", "vq-vae-ema-samp", "vq-vae-rotation-samp", "simvq-samp",
)  # fmt: skip
RELEASED = _plain("released-code")
SCAFFOLD = _plain("arcvq-scaffold")

# Studies: what the paper leaves open.
GRADIENT = [_arc("code-gradient", stop_gradient="false")]
