"""The functions that are timed: those of arcvq, the same in plain PyTorch, and those of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq import functional
from arcvq.quantizers import VQ, ArcVQ

Call = Callable[[], object]
SCALE, MARGIN, TOP_K = 10.0, 0.1, 3


class NotInstalled(Exception):
    """A library is not installed; the message names it."""


@dataclass(frozen=True)
class Contender:
    """`make(latents (N, D), codes (K, D))` returns a function that does the work once.

    task: `assign` (the search), `samp` (search and ArcLoss, forward and backward) or `layer` (a quantizer's training step).
    """

    name: str
    task: str
    make: Callable[[Tensor, Tensor], Call]
    max_codes: int | None = None  # skip larger codebooks


def all_contenders(device: torch.device) -> list[Contender]:
    """All contenders that can run on this kind of device."""
    backend: functional.Backend = "triton" if device.type == "cuda" else "chunked"
    found = [
        Contender(f"arcvq {backend}", "assign", partial(_arcvq_assign, backend=backend)),
        Contender(f"arcvq {backend}", "samp", partial(_arcvq_samp, backend=backend)),
        Contender(f"arcvq VQ cosine {backend}", "layer", partial(_arcvq_layer, VQ, metric="cosine", backend=backend)),
        Contender(
            f"arcvq VQ euclidean {backend}", "layer", partial(_arcvq_layer, VQ, metric="euclidean", backend=backend)
        ),
        Contender(f"arcvq ArcVQ {backend}", "layer", partial(_arcvq_layer, ArcVQ, backend=backend)),
        Contender("plain", "assign", lambda latents, codes: lambda: plain_assign(latents, codes)),
        Contender("plain", "samp", _plain_samp),
        Contender(
            "vector-quantize-pytorch cosine",
            "layer",
            partial(_vector_quantize_pytorch, "VectorQuantize", use_cosine_sim=True),
        ),
        Contender("vector-quantize-pytorch euclidean", "layer", partial(_vector_quantize_pytorch, "VectorQuantize")),
        Contender("vector-quantize-pytorch SimVQ", "layer", partial(_vector_quantize_pytorch, "SimVQ")),
        Contender("diffusers VQModel's quantizer", "layer", _diffusers_layer),
    ]
    if device.type == "cpu":
        return [*found, Contender("faiss IndexFlatIP", "assign", _faiss_search)]
    return [*found, *(_as_cuda_graph(each) for each in found if each.task != "assign" and each.name in GRAPHED)]


# Also timed as CUDA graphs. With more codes, kernel launches no longer matter.
GRAPHED = ("arcvq triton", "plain", "arcvq VQ cosine triton", "arcvq ArcVQ triton", "diffusers VQModel's quantizer")
MAX_GRAPHED_CODES = 16_384


def plain_assign(latents: Tensor, codes: Tensor) -> Tensor:
    """The nearest code by cosine, from the whole N × K matrix."""
    return (F.normalize(latents, dim=1) @ F.normalize(codes, dim=1).t()).argmax(dim=1)


def plain_arc_loss(latents: Tensor, codes: Tensor) -> Tensor:
    """The ArcLoss from the whole K × N matrix, of which it makes several copies."""
    cosines = F.normalize(codes, dim=1).detach() @ F.normalize(latents, dim=1).t()  # (K, N)
    top = cosines.topk(TOP_K, dim=1)
    angles = torch.acos(top.values.clamp(-1 + 1e-7, 1 - 1e-7))
    positives = SCALE * torch.cos(angles + MARGIN)
    logits = (SCALE * cosines).scatter(1, top.indices, positives)
    return (torch.logsumexp(logits, dim=1) - torch.logsumexp(positives, dim=1)).mean()


def training_step(latents: Tensor, loss_of: Callable[[Tensor], Tensor], module: nn.Module | None = None) -> Call:
    """A function that does forward and backward of `loss_of(latents)` once."""
    leaf = latents.detach().clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        if module is not None:
            module.zero_grad()
        loss_of(leaf).backward()

    return step


def _arcvq_assign(latents: Tensor, codes: Tensor, backend: functional.Backend) -> Call:
    """The search of arcvq."""
    return lambda: functional.assign(latents, codes, "cosine", backend)


def _arcvq_samp(latents: Tensor, codes: Tensor, backend: functional.Backend) -> Call:
    """Search and ArcLoss, forward and backward."""
    return training_step(latents, lambda x: functional.assign_and_arc_loss(x, codes, SCALE, MARGIN, TOP_K, backend)[1])


def _plain_samp(latents: Tensor, codes: Tensor) -> Call:
    """Search and ArcLoss in plain PyTorch, forward and backward."""

    def loss_of(x: Tensor) -> Tensor:
        plain_assign(x.detach(), codes)
        return plain_arc_loss(x, codes)

    return training_step(latents, loss_of)


def _arcvq_layer(cls: type[VQ], latents: Tensor, codes: Tensor, **options: Any) -> Call:
    """A training step of our layer `cls`, including `after_step`."""
    quantizer = cls(latents.shape[1], codes.shape[0], channel_last=True, **options).to(latents.device)
    leaf = latents.detach().clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        quantizer.zero_grad()
        out = quantizer(leaf)
        (out.quantized.sum() + out.loss).backward()
        quantizer.after_step(out)

    return step


def _vector_quantize_pytorch(name: str, latents: Tensor, codes: Tensor, **options: Any) -> Call:
    """A training step of a layer of vector-quantize-pytorch."""
    cls = getattr(import_library("vector_quantize_pytorch", "vector-quantize-pytorch"), name)
    module = cls(dim=latents.shape[1], codebook_size=codes.shape[0], rotation_trick=False, **options)
    return _module_step(module, latents, lambda x: module(x.unsqueeze(0))[::2])  # (quantized, tokens, loss)


def _diffusers_layer(latents: Tensor, codes: Tensor) -> Call:
    """A training step of diffusers' VQ layer."""
    library = import_library("diffusers.models.autoencoders.vae", "diffusers")
    module = library.VectorQuantizer(codes.shape[0], latents.shape[1], beta=0.25)
    return _module_step(
        module, latents, lambda x: module(x.t()[None, :, :, None])[:2]
    )  # (1, D, N, 1) → (quantized, loss, info)


def _module_step(module: nn.Module, latents: Tensor, call: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Call:
    """A training step of another library's layer; `call` returns its quantized latents and its loss."""
    module.to(latents.device).train()

    def loss_of(x: Tensor) -> Tensor:
        quantized, loss = call(x)
        return quantized.sum() + loss.sum()

    return training_step(latents, loss_of, module)


def _faiss_search(latents: Tensor, codes: Tensor) -> Call:
    """Search with an exact index, built in every call, because the codebook changes in every training step."""
    faiss = import_library("faiss", "faiss-cpu")
    faiss.omp_set_num_threads(torch.get_num_threads())

    def step() -> Any:
        index = faiss.IndexFlatIP(codes.shape[1])
        index.add(functional.unit(codes).numpy())
        return index.search(functional.unit(latents).numpy(), 1)[1]

    return step


def _as_cuda_graph(contender: Contender) -> Contender:
    """The same contender, captured as one CUDA graph."""

    def capture(latents: Tensor, codes: Tensor) -> Call:
        step = contender.make(latents, codes)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    return replace(contender, name=f"{contender.name}, graph", make=capture, max_codes=MAX_GRAPHED_CODES)


def import_library(module: str, package: str) -> Any:
    """Import a module; fails with the name of the package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalled(f"{package} is not installed ({error})") from None
