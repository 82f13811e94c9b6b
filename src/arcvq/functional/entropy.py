"""The entropy term: low for tokens with one likely code each, spread evenly over the codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.chunks import Backend, check_search_shapes, choose_backend, token_blocks
from arcvq.functional.precision import compute_dtype, ieee_matmul, matmul, without_autocast
from arcvq.functional.similarity import Metric, check_metric, unit


def entropy_statistics(
    latents: Tensor,
    codebook: Tensor,
    temperature: float = 0.01,
    metric: Metric = "euclidean",
    backend: Backend = "auto",
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sums over the tokens: their entropies Σ_i H(p_i), and probabilities Σ_i p_i (K,), with p_i = softmax_j(score_ij / temperature).

    Shards of tokens and processes add up. Scores are −‖z − e‖² or ẑ·ê. `triton` has no implementation here and uses the chunked one.
    """
    check_search_shapes(latents, codebook)
    check_metric(metric)
    check_temperature(temperature)
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        latents, codebook = latents.to(dtype), codebook.to(dtype)
        # A constant per token does not change the softmax over codes: −‖z − e‖² may drop ‖z‖².
        if metric == "cosine":
            queries, keys, bias = unit(latents), unit(codebook), codebook.new_zeros(codebook.shape[0])
        else:
            queries, keys, bias = 2 * latents, codebook, codebook.square().sum(-1)
        weight = latents.new_ones(latents.shape[0]) if valid is None else valid.to(dtype)
        if choose_backend(backend, latents) == "reference":
            log_p = torch.log_softmax((matmul(queries, keys.t()) - bias) / temperature, dim=1)  # (N, K)
            p = log_p.exp() * weight.unsqueeze(1)
            return -(p * log_p).sum(), p.sum(dim=0)
        return _entropy_chunked(queries, keys, bias, weight, temperature)


def check_temperature(temperature: float) -> None:
    """Raise unless the temperature is positive."""
    if not temperature > 0:
        raise ArcvqError(f"the entropy term's temperature must be positive, got {temperature}")


def sign_entropy_statistics(
    latents: Tensor, temperature: float = 0.01, valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`entropy_statistics` of latents (N, d) and the 2^d codes of ±1 in each channel, without N × 2^d elements.

    −‖z − c‖² is a sum over channels, so a token's signs are independent: their entropies add up, and the probability of a code is
    that of its first half of the signs times that of the second. The first channel is the lowest bit of a token.
    """
    if latents.dim() != 2:
        raise ArcvqError(f"expected latents (N, d), got shape {tuple(latents.shape)}")
    check_temperature(temperature)
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        logits = latents.to(dtype) * (4 / temperature)  # of +1 over −1 in each channel
        weight = logits.new_ones(logits.shape[0]) if valid is None else valid.to(dtype)
        size = logits.abs()
        entropies = F.softplus(-size) + size * torch.sigmoid(-size)
        half = (logits.shape[1] + 1) // 2
        first, second = (_sign_probabilities(part) for part in (logits[:, :half], logits[:, half:]))
        probabilities = matmul((second * weight.unsqueeze(1)).t(), first)  # (2^(d−half), 2^half)
        return (entropies.sum(dim=1) * weight).sum(), probabilities.flatten()


def _sign_probabilities(logits: Tensor) -> Tensor:
    """The probability of each combination of signs: logits (N, b) → (N, 2^b)."""
    p = logits.new_ones(logits.shape[0], 1)
    for plus, minus in zip(torch.sigmoid(logits).unbind(1), torch.sigmoid(-logits).unbind(1)):
        p = torch.cat([p * minus.unsqueeze(1), p * plus.unsqueeze(1)], dim=1)
    return p


def entropy_loss(entropy_sum: Tensor, probability_sum: Tensor, tokens: Tensor | float) -> Tensor:
    """mean_i H(p_i) − H(mean_i p_i) of these sums over `tokens` tokens: −log K at best, 0 when all p_i are equal."""
    mean = probability_sum / tokens
    # The clamp bounds the gradient of a code without probability; its value, 0·log 0, is 0 either way.
    return entropy_sum / tokens + (mean * mean.clamp(min=torch.finfo(mean.dtype).tiny).log()).sum()


@torch.library.custom_op("arcvq::entropy_chunked", mutates_args=())
def _entropy_chunked(
    queries: Tensor, keys: Tensor, bias: Tensor, weight: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """`entropy_statistics` of weighted tokens, block by block: never all N × K probabilities."""
    entropy, probabilities = queries.new_zeros(()), queries.new_zeros(keys.shape[0])
    with ieee_matmul(queries):
        for block in token_blocks(queries, keys):
            log_p = torch.log_softmax((queries[block] @ keys.t() - bias) / temperature, dim=1)
            p = log_p.exp() * weight[block].unsqueeze(1)
            entropy -= (p * log_p).sum()
            probabilities += p.sum(dim=0)
    return entropy, probabilities


_entropy_chunked.register_fake(lambda queries, keys, *_: (queries.new_empty(()), queries.new_empty(keys.shape[0])))


@torch.library.custom_op("arcvq::entropy_chunked_backward", mutates_args=())
def _entropy_chunked_backward(
    queries: Tensor,
    keys: Tensor,
    bias: Tensor,
    weight: Tensor,
    temperature: float,
    grad_entropy: Tensor,
    grad_probabilities: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the chunked entropy statistics, chunk by chunk."""
    grad_queries, grad_keys, grad_bias = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(bias)
    with ieee_matmul(queries):
        for block in token_blocks(queries, keys):
            log_p = torch.log_softmax((queries[block] @ keys.t() - bias) / temperature, dim=1)
            p = log_p.exp()
            # Both sums together have the logits' gradient p·(a − Σ_j p_j·a_j), a = grad_probabilities − grad_entropy·log p.
            a = grad_probabilities - grad_entropy * log_p
            grad_logits = p * (a - (p * a).sum(dim=1, keepdim=True)) * weight[block].unsqueeze(1) / temperature
            grad_queries[block] = grad_logits @ keys
            grad_keys.addmm_(grad_logits.t(), queries[block])
            grad_bias -= grad_logits.sum(dim=0)
    return grad_queries, grad_keys, grad_bias


_entropy_chunked_backward.register_fake(lambda *inputs: tuple(torch.empty_like(each) for each in inputs[:3]))


def _entropy_setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    """Save for the backward pass what `_entropy_chunked_backward` needs."""
    *tensors, temperature = inputs
    ctx.save_for_backward(*tensors)
    ctx.temperature = temperature


def _entropy_backward(ctx, grad_entropy: Tensor, grad_probabilities: Tensor):  # type: ignore[no-untyped-def]
    """Gradients of `_entropy_chunked` for queries, keys and bias; none for the rest."""
    grads = _entropy_chunked_backward(*ctx.saved_tensors, ctx.temperature, grad_entropy, grad_probabilities)
    return *grads, None, None


_entropy_chunked.register_autograd(_entropy_backward, setup_context=_entropy_setup_context)
