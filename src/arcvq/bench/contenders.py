"""Who runs: ours, the losses written the plain way, and the layers of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq import functional
from arcvq.quantizers import VQ, ArcVQ

Step = Callable[[], object]
SCALE, MARGIN, TOP_K = 10.0, 0.1, 3


class Missing(Exception):
    """A contender whose library is not installed here; the message says which."""


@dataclass(frozen=True)
class Contender:
    """`make(latents (N, D), codes (K, D))` gives a function that does the work once.

    task        assign, arc, samp (assign + arc, forward and backward) or layer (a whole quantizer, forward and backward)
    most_codes  larger codebooks are left out
    """

    name: str
    task: str
    make: Callable[[Tensor, Tensor], Step]
    most_codes: int | None = None


def all_contenders(device: torch.device) -> list[Contender]:
    """Those that make sense on this device, ours first within each task."""
    backend: functional.Backend = "triton" if device.type == "cuda" else "chunked"
    found = [
        Contender(f"arcvq {backend}", "assign", partial(_assign_step, backend=backend)),
        Contender(f"arcvq {backend}", "arc", partial(_arc_step, backend=backend)),
        Contender(f"arcvq {backend}", "samp", partial(_samp_step, backend=backend)),
        Contender(f"arcvq VQ cosine {backend}", "layer", partial(_ours, VQ, metric="cosine", backend=backend)),
        Contender(f"arcvq VQ euclidean {backend}", "layer", partial(_ours, VQ, metric="euclidean", backend=backend)),
        Contender(f"arcvq ArcVQ {backend}", "layer", partial(_ours, ArcVQ, backend=backend)),
        Contender("plain", "assign", _plain_assign_step),
        Contender("plain", "arc", _plain_arc_step),
        Contender("plain", "samp", _plain_samp_step),
        Contender("vector-quantize-pytorch cosine", "layer", partial(_lucidrains, cosine=True)),
        Contender("vector-quantize-pytorch euclidean", "layer", partial(_lucidrains, cosine=False)),
        Contender("vector-quantize-pytorch SimVQ", "layer", _simvq),
        Contender("diffusers VQModel's quantizer", "layer", _diffusers),
    ]
    if device.type == "cpu":
        return [*found, Contender("faiss IndexFlatIP", "assign", _faiss_step)]
    return [*found, *(_as_graph(each) for each in found if each.name in GRAPHED and each.task in ("samp", "layer"))]


# Shown as CUDA graphs, too, up to so many codes: beyond, the host's calls no longer matter.
GRAPHED = ("arcvq triton", "plain", "arcvq VQ cosine triton", "arcvq ArcVQ triton", "diffusers VQModel's quantizer")
MOST_GRAPHED_CODES = 16_384


# ---- the losses as one first writes them: the whole K × N matrix, several copies of it ---------------------------------------


def plain_assign(latents: Tensor, codes: Tensor) -> Tensor:
    return (F.normalize(latents, dim=1) @ F.normalize(codes, dim=1).t()).argmax(dim=1)


def plain_arc_loss(latents: Tensor, codes: Tensor) -> Tensor:
    cosines = F.normalize(codes, dim=1).detach() @ F.normalize(latents, dim=1).t()  # (K, N)
    top = cosines.topk(TOP_K, dim=1)
    angles = torch.acos(top.values.clamp(-1 + 1e-7, 1 - 1e-7))
    positives = SCALE * torch.cos(angles + MARGIN)
    logits = (SCALE * cosines).scatter(1, top.indices, positives)
    return (torch.logsumexp(logits, dim=1) - torch.logsumexp(positives, dim=1)).mean()


# ---- how each is run ---------------------------------------------------------------------------------------------------------


def _loss_step(latents: Tensor, loss: Callable[[Tensor], Tensor]) -> Step:
    leaf = latents.detach().clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        loss(leaf).backward()

    return step


def _assign_step(latents: Tensor, codes: Tensor, backend: functional.Backend) -> Step:
    return lambda: functional.assign(latents, codes, "cosine", backend)


def _arc_step(latents: Tensor, codes: Tensor, backend: functional.Backend) -> Step:
    return _loss_step(latents, lambda x: functional.arc_loss(x, codes, SCALE, MARGIN, TOP_K, backend))


def _samp_step(latents: Tensor, codes: Tensor, backend: functional.Backend) -> Step:
    leaf = latents.detach().clone().requires_grad_()

    def step() -> Tensor:
        tokens, loss = functional.assign_and_arc_loss(leaf, codes, SCALE, MARGIN, TOP_K, backend)
        loss.backward()
        leaf.grad = None
        return tokens

    return step


def _as_graph(contender: Contender) -> Contender:
    """The same as one CUDA graph, as a captured training plays it: the host's share of the time is gone."""

    def capture(latents: Tensor, codes: Tensor) -> Step:
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

    return Contender(f"{contender.name}, graph", contender.task, capture, MOST_GRAPHED_CODES)


def _plain_assign_step(latents: Tensor, codes: Tensor) -> Step:
    return lambda: plain_assign(latents, codes)


def _faiss_step(latents: Tensor, codes: Tensor) -> Step:
    """An exact index, built anew each time as a codebook that is being trained would ask for: that is a copy of the codes."""
    faiss = _library("faiss", package="faiss-cpu")
    faiss.omp_set_num_threads(torch.get_num_threads())

    def step() -> Any:
        index = faiss.IndexFlatIP(codes.shape[1])
        index.add(functional.unit(codes).numpy())
        return index.search(functional.unit(latents).numpy(), 1)[1]

    return step


def _plain_arc_step(latents: Tensor, codes: Tensor) -> Step:
    return _loss_step(latents, lambda x: plain_arc_loss(x, codes))


def _plain_samp_step(latents: Tensor, codes: Tensor) -> Step:
    return _both(_plain_assign_step(latents, codes), _plain_arc_step(latents, codes))


def _both(first: Step, second: Step) -> Step:
    return lambda: (first(), second())


def _ours(cls: type[VQ], latents: Tensor, codes: Tensor, **options: Any) -> Step:
    """A whole training step of the layer, upkeep included."""
    quantizer = cls(latents.shape[1], codes.shape[0], channel_last=True, **options).to(latents.device)
    leaf = latents.detach().clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        quantizer.zero_grad()
        out = quantizer(leaf)
        (out.quantized.sum() + out.loss).backward()
        quantizer.after_step(out)

    return step


def _peer(module: torch.nn.Module, latents: Tensor, call: Callable[[Any, Tensor], tuple[Tensor, Tensor]]) -> Step:
    """A peer's layer in training mode: (quantized, loss), backward through both."""
    module = module.to(latents.device).train()
    leaf = latents.detach().clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        module.zero_grad()
        quantized, loss = call(module, leaf)
        (quantized.sum() + loss.sum()).backward()

    return step


def _lucidrains(latents: Tensor, codes: Tensor, cosine: bool) -> Step:
    cls = _library("vector_quantize_pytorch").VectorQuantize
    module = cls(dim=latents.shape[1], codebook_size=codes.shape[0], use_cosine_sim=cosine, rotation_trick=False)
    return _peer(module, latents, _call_lucidrains)


def _simvq(latents: Tensor, codes: Tensor) -> Step:
    cls = _library("vector_quantize_pytorch").SimVQ
    return _peer(
        cls(dim=latents.shape[1], codebook_size=codes.shape[0], rotation_trick=False), latents, _call_lucidrains
    )


def _call_lucidrains(quantizer: Any, latents: Tensor) -> tuple[Tensor, Tensor]:
    quantized, _, loss = quantizer(latents.unsqueeze(0))
    return quantized, loss


def _diffusers(latents: Tensor, codes: Tensor) -> Step:
    library = _library("diffusers.models.autoencoders.vae", package="diffusers")
    module = library.VectorQuantizer(codes.shape[0], latents.shape[1], beta=0.25)

    def call(quantizer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        quantized, loss, _ = quantizer(x.t().reshape(1, x.shape[1], x.shape[0], 1))
        return quantized, loss

    return _peer(module, latents, call)


def _library(name: str, package: str | None = None) -> Any:
    from importlib import import_module

    package = package or name.replace("_", "-")
    try:
        return import_module(name)
    except ImportError as error:
        absent = (error.name or "").split(".")[0]
        if absent in ("", name.split(".")[0]):
            raise Missing(f"{package} is not installed: pip install {package}") from None
        raise Missing(f"{package} wants {absent}, which is not installed: pip install {absent}") from None
