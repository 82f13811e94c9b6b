"""Latent diffusion: noise is taken away from random latents step by step. After Rombach et al., High-Resolution Image Synthesis with
Latent Diffusion Models, CVPR 2022."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.unet import check_levels, make_unet
from arcvq.priors.diffusion import TIMES, add_noise, check_steps, ddim_step, ddim_times, signal_shares
from arcvq.priors.noise import Noise
from arcvq.priors.prior import Grid, Prior, PriorConfig, Progress, Sampler
from arcvq.priors.replay import Replay
from arcvq.priors.sampling import SamplingOptions, guide

# Times per image of an evaluation, one in each part of the schedule.
EVALUATION_TIMES = 4


@dataclass(kw_only=True)
class LdmConfig(PriorConfig):
    """width, multipliers  channels of the first level, and the factors of each; each level after the first halves the sides
    blocks         residual blocks per level
    attention      downsampling factors, from the latents' size, at which a transformer block follows each residual block
    head_width     channels of an attention head
    context_width  of the class embedding
    groups         of each GroupNorm
    dropout        in the residual blocks
    scale_by_std   divide the latents by their standard deviation; off in the paper's configuration
    steps          of sampling, unless others are asked for
    eta            share of the noise that sampling draws anew on the way, unless another is asked for; 0: none
    """

    width: int = 256
    multipliers: tuple[int, ...] = (1, 2, 4)
    blocks: int = 2
    attention: tuple[int, ...] = (1, 2, 4)
    head_width: int = 32
    context_width: int = 512
    groups: int = 32
    dropout: float = 0.0
    scale_by_std: bool = True
    steps: int = 250
    eta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(1, 2**12, "width", "head_width", "context_width", "groups")
        self.check_range(1, 16, "blocks")
        self.check_range(0, 1, "eta")
        check_steps(self.steps, "prior.steps")
        if not 1 <= len(self.multipliers) <= 8 or not all(1 <= each <= 32 for each in self.multipliers):
            raise ArcvqError(f"prior.multipliers must be 1 to 8 numbers from 1 to 32, got {list(self.multipliers)}")
        if self.width * max(self.multipliers) > 2**13:
            raise ArcvqError(f"prior.width times its largest multiplier must be at most {2**13}")
        if self.width % self.groups:
            raise ArcvqError(f"prior.width must be a multiple of prior.groups, got {self.width} and {self.groups}")
        factors = [2**level for level in range(len(self.multipliers))]
        if any(factor not in factors for factor in self.attention):
            raise ArcvqError(f"prior.attention must be some of {factors}, got {list(self.attention)}")
        for factor, multiplier in zip(factors, self.multipliers):
            attends = factor in self.attention or factor == factors[-1]  # the middle has the last level's width
            if attends and self.width * multiplier % self.head_width:
                raise ArcvqError(
                    f"prior.head_width must divide the {self.width * multiplier} channels at factor {factor}, got {self.head_width}"
                )
        if not 0 <= self.dropout < 1:
            raise ArcvqError(f"prior.dropout must be from 0 to below 1, got {self.dropout}")


class Ldm(Prior):
    """Noisy latents, a time and a class → the noise. The class is the one token that the UNet's cross-attention sees."""

    Config: ClassVar[type[PriorConfig]] = LdmConfig
    models: ClassVar[Literal["tokens", "latents"]] = "latents"
    sampling_options: ClassVar[tuple[str, ...]] = ("guidance", "steps", "eta")
    metric: ClassVar[str] = "noise_mse"
    config: LdmConfig

    def __init__(self, grid: Grid, config: LdmConfig) -> None:
        super().__init__(grid, config)
        check_levels(grid.height, grid.width, len(config.multipliers), "prior.multipliers")
        self.classes = nn.Embedding(grid.classes + 1, config.context_width)
        self.unet = make_unet(
            grid.latent_dim,
            width=config.width,
            multipliers=config.multipliers,
            blocks=config.blocks,
            attention=config.attention,
            head_width=config.head_width,
            context_width=config.context_width,
            groups=config.groups,
            dropout=config.dropout,
        )
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shares", signal_shares().float(), persistent=False)
        self.scale: Tensor
        self.shares: Tensor

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        labels = self.training_labels(labels, len(values))
        time = torch.randint(TIMES, (len(values),), device=values.device)
        return {"squared_error": self.squared_error(values, time, labels, torch.randn_like(values)).mean()}

    @torch.no_grad()
    def evaluate(self, values: Tensor, labels: Tensor | None, noise: Noise) -> Tensor:
        """The mean squared error of the predicted noise of each image, at times from all parts of the schedule."""
        labels, part = self.all_labels(labels, len(values)), TIMES // EVALUATION_TIMES
        times = (noise.uniform(EVALUATION_TIMES).double() * part).long()
        errors = [
            self.squared_error(values, number * part + time, labels, noise.normal(*self.shape))
            for number, time in enumerate(times.unbind(1))
        ]
        return torch.stack(errors).mean(0)

    def squared_error(self, values: Tensor, time: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """The mean squared error (B,) of the noise that is predicted where `noise` was added to latents (B, D, h, w)."""
        noisy = add_noise(values * self.scale, noise, self.shares[time])
        return F.mse_loss(self.predict(noisy, time, labels), noise, reduction="none").flatten(1).mean(1)

    def predict(self, noisy: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        """The noise in scaled latents (B, D, h, w) at times (B,), or (1,) for all, in float32."""
        context = self.classes(labels)[:, None]
        found: Tensor = self.unet(noisy, time, encoder_hidden_states=context, return_dict=False)[0]
        return found.float()

    def compile_step(self) -> None:
        self.predict = torch.compile(self.predict, dynamic=False)  # type: ignore[method-assign]

    def make_sampler(self, options: SamplingOptions, batch: int) -> Sampler:
        return LatentSampler(self, options, batch)

    def init_from_values(self, values: Tensor) -> None:
        if not self.config.scale_by_std:
            return
        deviation = values.float().std()
        if not 0 < deviation < torch.inf:
            raise ArcvqError(f"the latents have the standard deviation {deviation:.3g}: train the tokenizer first")
        self.scale.copy_(1 / deviation)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image's latents."""
        return self.grid.latent_dim, self.grid.height, self.grid.width

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "latents are multiplied by": f"{self.scale.item():.6g}"}


class LatentSampler:
    """Draws batches of latents by DDIM. On a GPU the network's call is recorded once and replayed in all steps of all batches."""

    def __init__(self, prior: Ldm, options: SamplingOptions, batch: int) -> None:
        options.check_known(type(prior).__name__, prior.sampling_options)
        self.prior, self.batch, self.guidance = prior, batch, options.guidance
        self.guided = options.guidance != 1
        self.times = ddim_times(options.steps or prior.config.steps)
        self.eta = prior.config.eta if options.eta is None else options.eta
        self.labels = torch.full(((1 + self.guided) * batch,), prior.null, device=prior.device)
        self.noisy = torch.zeros(batch, *prior.shape, device=prior.device)
        self.time = torch.zeros(1, dtype=torch.int64, device=prior.device)
        self.predicted = torch.empty_like(self.noisy)
        self.step = Replay(self.predict, prior.device)

    @torch.no_grad()
    def __call__(
        self, labels: Tensor | None, noise: Noise, known: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Latents (batch, D, h, w), not scaled."""
        if known is not None:
            raise ArcvqError(f"{type(self.prior).__name__} is over latents: only priors over tokens complete images")
        self.labels[: self.batch] = self.prior.all_labels(labels, self.batch)
        self.noisy.copy_(noise.normal(*self.prior.shape))
        shares = signal_shares().tolist()
        for index, (now, following) in enumerate(zip(self.times, [*self.times[1:], 0])):
            self.time.fill_(now)
            self.step()
            fresh = noise.normal(*self.prior.shape) if self.eta else None
            self.noisy.copy_(ddim_step(self.noisy, self.predicted, shares[now], shares[following], self.eta, fresh))
            if progress:
                progress(index + 1, len(self.times))
        return self.noisy / self.prior.scale

    def predict(self) -> None:
        """Predict the noise in `noisy` at `time`. Reads nothing on the host."""
        both = torch.cat([self.noisy, self.noisy]) if self.guided else self.noisy
        found = self.prior.predict(both, self.time, self.labels)
        if self.guided:
            found = guide(found[: self.batch], found[self.batch :], self.guidance)
        self.predicted.copy_(found)
