"""Images per second of a prior: ours, the same without a recorded graph, and a plain loop as one first writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.priors import PRIORS, AutoregressivePrior, Grid, Noise, Prior, SamplingOptions
from arcvq.priors.generator import sampling_precision
from arcvq.priors.ldm import Ldm
from arcvq.priors.replay import Replay
from arcvq.priors.sampling import draw, probabilities
from arcvq.systems import PriorRunConfig, load_config
from arcvq.tokenizers.inference import Precision

# Preset → the grid that its prior is over. A CPU gets priors that it can sample in seconds.
PRIORS_OF: dict[str, dict[str, Grid]] = {
    "cuda": {
        "cifar10/gpt": Grid(height=8, width=8, codebook_size=512, latent_dim=64, classes=10),
        "cifar10/pixelcnn": Grid(height=8, width=8, codebook_size=512, latent_dim=64, classes=10),
        "cifar10/maskgit": Grid(height=8, width=8, codebook_size=512, latent_dim=64, classes=10),
        "cifar10/ldm": Grid(height=8, width=8, codebook_size=512, latent_dim=64, classes=10),
        "photos-128/rq-transformer": Grid(height=8, width=8, codebook_size=1024, depth=4, latent_dim=64, classes=139),
        "photos/ldm": Grid(height=32, width=32, codebook_size=1024, latent_dim=16, classes=139),
    },
    "cpu": {
        "sample/gpt": Grid(height=7, width=7, codebook_size=256, latent_dim=16, classes=10),
        "sample/ldm": Grid(height=8, width=8, codebook_size=256, latent_dim=16, classes=10),
    },
}
CHUNK = {"cuda": 256, "cpu": 4}


def sampling_rows(device: torch.device, presets: list[str] | None, chunk: int | None) -> Iterator[dict[str, Any]]:
    """A row per prior and way of sampling. The weights are random: they do not change the time."""
    known = PRIORS_OF[device.type]
    for name in presets or known:
        if name not in known:
            raise ArcvqError(f"{name}: the suite knows the grids of {', '.join(known)}")
        prior = build(name, known[name], device)
        size = chunk or CHUNK[device.type]
        for way, (run, precision) in ways(prior, size).items():
            yield {"task": "sampling", "name": f"{name}, {way}", "batch_size": size} | speed(
                run, precision, size, device
            )


def build(preset: str, grid: Grid, device: torch.device) -> Prior:
    """The preset's prior, untrained, with predictions that differ from token to token."""
    config = load_config(preset)
    assert isinstance(config, PriorRunConfig)
    torch.manual_seed(0)
    prior = PRIORS.build(config.prior, grid)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return prior.to(device).eval()


Run = Callable[[Noise], Tensor]
# Makes what is timed, in the precision in which it then runs: graphs and caches keep it.
Way = tuple[Callable[[], Run], Precision]


def ways(prior: Prior, chunk: int) -> dict[str, Way]:
    """The ways to sample a chunk."""

    def ours() -> Run:
        sampler = prior.make_sampler(SamplingOptions(), chunk)
        return lambda noise: sampler(None, noise, None, None)

    def eager() -> Run:
        run = ours()

        def without_graph(noise: Noise) -> Tensor:
            with mock.patch.object(Replay, "__call__", lambda replay: replay.function()):
                return run(noise)

        return without_graph

    found: dict[str, Way] = {}
    if isinstance(prior, AutoregressivePrior):
        found["plain loop"] = (lambda: lambda noise: plain_loop(prior, noise, chunk), "fp32")
    if isinstance(prior, Ldm):
        found["diffusers' scheduler"] = (lambda: lambda noise: diffusers_loop(prior, noise, chunk), "fp32")
    found |= {"eager": (eager, "fp32"), "arcvq": (ours, "fp32")}
    if prior.device.type == "cuda":
        found["arcvq bf16"] = (ours, "bf16")
    return found


@torch.no_grad()
def plain_loop(prior: AutoregressivePrior, noise: Noise, chunk: int) -> Tensor:
    """The whole sequence through the network for every token."""
    labels, uniform = prior.all_labels(None, chunk), noise.uniform(prior.length)
    tokens = torch.zeros(chunk, prior.length, dtype=torch.int64, device=prior.device)
    for position in range(prior.length):
        logits = prior.logits(tokens.view(chunk, *prior.grid.token_shape), labels)[:, position]
        tokens[:, position] = draw(probabilities(logits, SamplingOptions()), uniform[:, position])
    return tokens


@torch.no_grad()
def diffusers_loop(prior: Ldm, noise: Noise, chunk: int) -> Tensor:
    """diffusers' DDIM scheduler around the same network, as its pipelines do it."""
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(
        beta_start=0.0015,
        beta_end=0.0195,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    scheduler.set_timesteps(prior.config.steps)
    labels, latents = prior.all_labels(None, chunk), noise.normal(*prior.shape)
    for step in scheduler.timesteps:
        predicted = prior.predict(latents, step.to(prior.device).expand(1), labels)
        latents = scheduler.step(predicted, int(step), latents, eta=prior.config.eta).prev_sample
    return cast(Tensor, latents)


def speed(make: Callable[[], Run], precision: Precision, chunk: int, device: torch.device) -> dict[str, float]:
    """Images per second of the second chunk; the first one records graphs."""
    with sampling_precision(precision, device):
        run = make()
        for number in range(2):
            noise = Noise(number, range(chunk), device)
            if device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            run(noise)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
    found = {"seconds": seconds, "images_per_second": chunk / seconds}
    if device.type == "cuda":
        found["mebibytes"] = torch.cuda.max_memory_allocated() / 2**20
    return found
