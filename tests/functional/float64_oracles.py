"""The paper's equations as explicit loops over Python floats, without the library."""

import math

from torch import Tensor

Rows = list[list[float]]


def rows_of(tensor: Tensor) -> Rows:
    return tensor.detach().double().tolist()


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b))


def cosine(a: list[float], b: list[float]) -> float:
    lengths = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / lengths if lengths > 0 else 0.0


def arc_loss(
    latents: Rows,
    codes: Rows,
    scale: float,
    margin: float,
    top_k: int,
    valid: list[bool] | None = None,
    monotone: bool = False,
) -> float:
    """Eq. 11: for each code the softmax mass of its nearest tokens, whose angle is widened by the margin."""
    kept = [z for i, z in enumerate(latents) if valid is None or valid[i]]
    terms = []
    for code in codes:
        cosines = sorted((cosine(z, code) for z in kept), reverse=True)
        positive, everything = 0.0, 0.0
        for place, value in enumerate(cosines):
            if place < top_k:
                angle = math.acos(max(-1.0, min(1.0, value)))
                widened = math.cos(angle + margin)
                if monotone and angle + margin > math.pi:
                    widened = value + math.cos(margin) - 1
                mass = math.exp(scale * widened)
                positive += mass
            else:
                mass = math.exp(scale * value)
            everything += mass
        terms.append(-math.log(positive / everything) if kept else 0.0)
    return math.fsum(terms) / len(terms)


def assign(latents: Rows, codes: Rows, metric: str) -> list[int]:
    """Eq. 9 (cosine) or Eq. 1 (euclidean); the first of equals wins."""
    tokens = []
    for z in latents:
        best, chosen = -math.inf, -1
        for j, code in enumerate(codes):
            score = cosine(z, code) if metric == "cosine" else -math.fsum((a - b) ** 2 for a, b in zip(z, code))
            if score > best:
                best, chosen = score, j
        tokens.append(chosen)
    return tokens


def entropy(
    latents: Rows, codes: Rows, temperature: float, metric: str, valid: list[bool] | None = None
) -> tuple[float, list[float]]:
    """Σ_i H(p_i) and Σ_i p_i of the soft assignments."""
    total, share = 0.0, [0.0] * len(codes)
    for i, z in enumerate(latents):
        if valid is not None and not valid[i]:
            continue
        scores = [
            cosine(z, code) if metric == "cosine" else -math.fsum((a - b) ** 2 for a, b in zip(z, code))
            for code in codes
        ]
        highest = max(scores)
        masses = [math.exp((score - highest) / temperature) for score in scores]
        for j, mass in enumerate(masses):
            p = mass / math.fsum(masses)
            share[j] += p
            total -= p * math.log(p) if p > 0 else 0.0
    return total, share


def mean_square(a: Rows, b: Rows, valid: list[bool] | None = None) -> float:
    differences = [
        (x - y) ** 2
        for i, (left, right) in enumerate(zip(a, b))
        if valid is None or valid[i]
        for x, y in zip(left, right)
    ]
    return math.fsum(differences) / len(differences)


def perplexity(counts: list[int]) -> float:
    total = sum(counts)
    return math.exp(-math.fsum(n / total * math.log(n / total) for n in counts if n))
