"""Every kind of quantizer, for the tests of what all of them promise."""

from typing import Any

from arcvq.quantizers import CVQ, EMAVQ, HVQ, VQ, Arc, ArcVQ, Ball, Contrastive, Quantizer, Restart, SimVQ

SAMP: dict[str, Any] = {"metric": "cosine", "start": "unit-sphere", "ball": Ball(alpha=0.01), "arc": Arc()}

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
    "hvq": (HVQ, {}),
}
# One of each class, and what changes the path through forward: for tests of many cases.
ONE_OF_EACH = ["vq", "arcvq", "rotation", "emavq", "cvq closest", "simvq under samp", "hvq"]
# Those that draw their codes while they train.
STOCHASTIC = ("hvq",)
# Those whose upkeep draws random numbers.
DRAWING = ("emavq under samp", "cvq random", "cvq probrandom", "hvq")


def build(kind: str, dim: int, codebook_size: int, **options: Any) -> Any:
    cls, own = KINDS[kind]
    return cls(dim, codebook_size, **{**own, **options})
