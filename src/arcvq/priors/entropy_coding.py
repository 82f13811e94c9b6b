"""Tokens ↔ bytes, by the probabilities of a prior or by a table of frequencies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.priors.autoregressive import AutoregressivePrior
from arcvq.priors.prior import Progress

# No token is less likely than this, so that every token can be coded.
LEAST_PROBABILITY = 2.0**-22


def coder() -> Any:
    """The package `constriction`."""
    try:
        import constriction
    except ImportError:
        raise ArcvqError("compression needs the package constriction: pip install 'arcvq[generate]'") from None
    return constriction


def encode_by_table(tokens: Tensor, table: Tensor) -> np.ndarray:
    """Tokens (n, levels) → uint32 words; row d of `table` (levels, K) holds the probabilities of level d."""
    stream = coder().stream
    encoder = stream.queue.RangeEncoder()
    for level, probabilities in enumerate(table.double().numpy()):
        model = stream.model.Categorical(np.ascontiguousarray(probabilities), perfect=False)
        encoder.encode(tokens[:, level].to(torch.int32).numpy(), model)
    return np.asarray(encoder.get_compressed())


def decode_by_table(words: np.ndarray, count: int, table: Tensor) -> Tensor:
    """The inverse of `encode_by_table`: tokens (count, levels)."""
    stream = coder().stream
    decoder = stream.queue.RangeDecoder(words)
    levels = []
    for probabilities in table.double().numpy():
        model = stream.model.Categorical(np.ascontiguousarray(probabilities), perfect=False)
        levels.append(torch.from_numpy(np.asarray(decoder.decode(model, count)).astype(np.int64)))
    return torch.stack(levels, dim=1)


def encode_by_prior(
    prior: AutoregressivePrior, tokens: Tensor, coded: Tensor, label: int | None, progress: Progress | None = None
) -> tuple[np.ndarray, float]:
    """Tokens (length,) of one image → uint32 words, and the cross-entropy in bits. Only those in the mask `coded` are coded."""
    stream = coder().stream
    encoder, family = stream.queue.RangeEncoder(), stream.model.Categorical
    bits = 0.0
    for position, probabilities, state in _walk(prior, coded, label, progress):
        token = int(tokens[position])
        encoder.encode(token, family(probabilities, perfect=False))
        bits -= float(np.log2(probabilities[token]))
        state[position] = token
    return np.asarray(encoder.get_compressed()), bits


def decode_by_prior(
    prior: AutoregressivePrior,
    words: np.ndarray,
    coded: Tensor,
    label: int | None,
    progress: Progress | None = None,
) -> Tensor:
    """The inverse of `encode_by_prior`: tokens (length,), 0 where they are not coded."""
    stream = coder().stream
    decoder, family = stream.queue.RangeDecoder(words), stream.model.Categorical
    tokens = torch.zeros(prior.length, dtype=torch.int64)
    for position, probabilities, state in _walk(prior, coded, label, progress):
        tokens[position] = state[position] = int(decoder.decode(family(probabilities, perfect=False)))
    return tokens


def _walk(
    prior: AutoregressivePrior, coded: Tensor, label: int | None, progress: Progress | None
) -> Iterator[tuple[int, np.ndarray, Tensor]]:
    """Yield (position, probabilities, the tokens so far) for each coded position; the caller puts the token in its place.

    Both directions walk the same way: one image, one position at a time, one thread. So they see the same probabilities on one
    machine, to the last bit.
    """
    last = coded.nonzero()[-1].item() if coded.any() else -1
    with one_thread(), torch.no_grad():
        state = prior.begin(prior.all_labels(None if label is None else torch.tensor([label]), 1))
        for position in range(int(last) + 1):
            logits = prior.next_logits(state, torch.tensor([position]), prior.step_kind(position))
            if coded[position]:
                yield position, floored(logits[0].double().softmax(-1)), state.tokens[0]
            if progress:
                progress(position + 1, prior.length)


def floored(probabilities: Tensor) -> np.ndarray:
    """The probabilities (K,), none below the least one, as float64 that adds up to 1."""
    found = probabilities.clamp(min=LEAST_PROBABILITY)
    return np.asarray((found / found.sum()).numpy())


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums inside are added up in one order, whatever the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
