"""The logit-Laplace likelihood of pixels (Ramesh et al., 2021): the logit of a pixel is Laplace-distributed."""

from __future__ import annotations

import math

from torch import Tensor

from arcvq.functional.precision import compute_dtype


def logit_laplace_nll(images: Tensor, location: Tensor, log_scale: Tensor, margin: float = 0.1) -> Tensor:
    """−log p of each element of images in [-1, 1], in the images' shape.

    With y = (1 − 2ε)·(x + 1)/2 + ε, ε = `margin`, location μ and scale b:  p(y) = exp(−|logit y − μ| / b) / (2b·y·(1 − y)).
    The density is over y in (0, 1). The margin keeps y off the ends, where the logit is infinite.
    """
    dtype = compute_dtype(images)
    y = (1 - 2 * margin) * (images.to(dtype) + 1) / 2 + margin
    location, log_scale = location.to(dtype), log_scale.to(dtype)
    logit = y.log() - (-y).log1p()
    log_jacobian = y.log() + (-y).log1p()  # of the logit: dy = y(1 − y) d logit
    return math.log(2) + log_scale + log_jacobian + (logit - location).abs() * (-log_scale).exp()
