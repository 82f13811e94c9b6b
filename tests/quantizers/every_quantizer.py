"""Every kind of quantizer, for the tests of what all of them promise."""

from typing import Any

from arcvq.quantizers import (
    CVQ,
    EMAVQ,
    FSQ,
    HVQ,
    LFQ,
    SQ,
    VQ,
    Arc,
    ArcVQ,
    Ball,
    Contrastive,
    Entropy,
    Gaussian,
    Quantizer,
    Restart,
    Revival,
    SimVQ,
    VonMisesFisher,
)

SAMP: dict[str, Any] = {"metric": "cosine", "init": "unit-sphere", "ball": Ball(alpha=0.01), "arc": Arc()}
# An image's height and width, for the kinds that must know how many positions one has.
IMAGE = (3, 5)

# name → class, options
KINDS: dict[str, tuple[type[Quantizer], dict[str, Any]]] = {
    "vq": (VQ, {}),
    "arcvq": (ArcVQ, {}),
    "rotation": (VQ, {"estimator": "rotation"}),
    "rotation under samp": (ArcVQ, {"estimator": "rotation"}),
    "emavq": (EMAVQ, {}),
    "emavq under samp": (EMAVQ, {**SAMP, "restart": Restart(decay=0.5)}),
    "cvq closest": (CVQ, {"contrastive": Contrastive()}),
    "cvq random": (CVQ, {"anchor": "random"}),
    "cvq probrandom": (CVQ, {"anchor": "probrandom", "metric": "euclidean"}),
    "cvq under samp": (CVQ, SAMP),
    "simvq": (SimVQ, {}),
    "simvq under samp": (SimVQ, SAMP),
    "hvq": (HVQ, {"revival": Revival(every=1)}),
    "sq": (SQ, {}),
    "sq of images": (SQ, {"type": "II", "positions": IMAGE[0] * IMAGE[1]}),
    "sq of tokens": (SQ, {"type": "III"}),
    "sq of elements": (SQ, {"type": "IV"}),
    "sq under samp": (SQ, {"ball": Ball(alpha=0.01), "arc": Arc()}),
    "fsq": (FSQ, {}),
    "lfq": (LFQ, {"entropy": Entropy(weight=0.3, temperature=0.5)}),
    "gaussian": (Gaussian, {"latent_dim": 5}),
    "gaussian of images": (Gaussian, {"latent_dim": 5, "positions": IMAGE[0] * IMAGE[1]}),
    "vmf": (VonMisesFisher, {"latent_dim": 5}),
    "vmf of images, implicit": (
        VonMisesFisher,
        {"latent_dim": 5, "positions": IMAGE[0] * IMAGE[1], "gradient": "implicit"},
    ),
}
# One of each class, and what changes the path through forward: for tests of many cases.
ONE_OF_EACH = ["vq", "arcvq", "rotation", "emavq", "cvq closest", "simvq under samp", "hvq"]
ONE_OF_EACH += ["sq", "fsq", "lfq", "gaussian", "vmf"]
# Those whose latents may come in any number.
ANY_NUMBER = [kind for kind in KINDS if "of images" not in kind]
# Those that draw while they train.
STOCHASTIC = [kind for kind in KINDS if kind.startswith(("hvq", "sq", "gaussian", "vmf"))]
# Those whose training draws random numbers, in forward or in update.
DRAWING = ["emavq under samp", "cvq random", "cvq probrandom", *STOCHASTIC]
# VQ and its kin: a codebook that is searched.
SEARCHED = [kind for kind, (cls, _) in KINDS.items() if issubclass(cls, VQ)]
# Without codes and tokens.
CONTINUOUS = [kind for kind in KINDS if kind.startswith(("gaussian", "vmf"))]


def takes(kind: str, options: dict[str, Any]) -> bool:
    """Whether these options make sense: a lattice's width is that of its levels, and without codes there are no heads."""
    if kind in CONTINUOUS:
        return not {"heads", "code_dim"} & options.keys()
    return kind not in ("fsq", "lfq") or "code_dim" not in options


def build(kind: str, dim: int, codebook_size: int, **options: Any) -> Any:
    cls, own = KINDS[kind]
    size = {} if kind in CONTINUOUS else {"codebook_size": codebook_size}
    return cls(dim, **{**size, **own, **options})
