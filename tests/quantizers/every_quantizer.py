"""Every kind of quantizer, for tests of their common contract."""

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
    GroupedVQ,
    MultichannelVQ,
    ProjectedVQ,
    Quantizer,
    ResidualVQ,
    Restart,
    Revival,
    SimVQ,
    VonMisesFisher,
)

SAMP: dict[str, Any] = {"metric": "cosine", "init": "unit-sphere", "ball": Ball(alpha=0.01), "arc": Arc()}
# An image's height and width, for kinds that need the number of its positions.
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
    "projected": (ProjectedVQ, {"feature_dim": 6}),
    "projected under samp": (ProjectedVQ, {"feature_dim": 6, **SAMP}),
    "residual": (ResidualVQ, {"depth": 3}),
    "residual under samp": (ResidualVQ, {"depth": 2, "shared": False, "codebook": {"kind": "arcvq", **SAMP}}),
    "residual simvq": (ResidualVQ, {"depth": 2, "codebook": {"kind": "simvq", "estimator": "rotation"}}),
    "grouped": (GroupedVQ, {}),
    "grouped under samp": (GroupedVQ, {"codebook": {"kind": "emavq", **SAMP, "restart": Restart(decay=0.5)}}),
    "multichannel": (MultichannelVQ, {"channels": 2}),
    "unit codes": (VQ, {"metric": "cosine", "init": "normal", "loss_space": "unit", "output": "unit"}),
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
# One kind of each class, and those with other code paths in forward: for tests with many cases.
ONE_OF_EACH = ["vq", "arcvq", "rotation", "emavq", "cvq closest", "simvq under samp", "hvq"]
ONE_OF_EACH += ["projected", "residual", "residual under samp", "grouped", "multichannel", "unit codes"]
ONE_OF_EACH += ["sq", "fsq", "lfq", "gaussian", "vmf"]
# Kinds that accept any number of latents.
ANY_NUMBER = [kind for kind in KINDS if "of images" not in kind]
# Kinds whose forward draws random numbers in training.
STOCHASTIC = [kind for kind in KINDS if kind.startswith(("hvq", "sq", "gaussian", "vmf"))]
# Kinds that draw random numbers in training, in forward or in the update.
DRAWING = ["emavq under samp", "grouped under samp", "cvq random", "cvq probrandom", *STOCHASTIC]
# Kinds without a parameter that takes a gradient in the tests of several processes.
WITHOUT_GRADIENT = ["emavq", "emavq under samp", "residual", "grouped under samp", "lfq"]
# VQ and its subclasses, whose codebook is searched.
SEARCHED = [kind for kind, (cls, _) in KINDS.items() if issubclass(cls, VQ)]
# Without codes and tokens.
CONTINUOUS = [kind for kind in KINDS if kind.startswith(("gaussian", "vmf"))]


def accepts(kind: str, options: dict[str, Any]) -> bool:
    """Whether the kind accepts these options: FSQ and LFQ fix code_dim, and some quantizers have no heads, or by another name."""
    if kind in CONTINUOUS:
        return not {"heads", "code_dim"} & options.keys()
    if kind.startswith(("grouped", "multichannel")):
        return "heads" not in options
    return kind not in ("fsq", "lfq") or "code_dim" not in options


def build(kind: str, dim: int, codebook_size: int, **options: Any) -> Any:
    cls, own = KINDS[kind]
    size = {} if kind in CONTINUOUS else {"codebook_size": codebook_size}
    return cls(dim, **{**size, **own, **options})
