"""Plain vector quantization: nearest code, straight-through gradient, a codebook that the optimizer trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import (
    Backend,
    Metric,
    assign,
    entropy_statistics,
    lookup,
    rotate,
    straight_through,
    unit,
    vq_loss,
)
from arcvq.functional.chunks import check_backend
from arcvq.functional.similarity import check_metric
from arcvq.quantizers.base import Quantizer, host_may_read
from arcvq.quantizers.entropy import Entropy, entropy_term
from arcvq.quantizers.init import Init, initial_codes
from arcvq.quantizers.kmeans import kmeans
from arcvq.quantizers.options import QuantizerConfig, check_weights
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.restart import Restart, restart_
from arcvq.quantizers.samp import Arc, Ball, Samp


@dataclass(kw_only=True)
class VQConfig(QuantizerConfig):
    """Options of VQ beyond those every quantizer has.

    estimator          how the decoder's gradient reaches the latents: straight-through, or rotation (Fifty et al., ICLR 2025)
    metric             how a code is selected: euclidean (Eq. 1) or cosine (Eq. 9). The decoder gets the raw code in both cases
    init               uniform: Unif(−1/K, 1/K); unit-sphere: Unif(−1, 1) scaled to norm 1 (Eq. 4); normal: N(0, 1);
                       scaled-normal: N(0, 1/D); kmeans: centres of the first latents, see `kmeans_init_`
    codebook_weight    on mean (e − sg z)²
    commitment_weight  on mean (sg e − z)², the paper's β
    legacy             the two weights swapped, as old VQGAN checkpoints were trained
    loss_space         raw, or unit: both losses between unit vectors
    output             what the decoder gets: the raw code, or the unit code (with cosine selection only). With `unit` in both, and
                       init normal, the quantizer of ViT-VQGAN
    entropy, restart   off unless given
    ball, arc          the two parts of SAMP; off unless given
    backend            which implementation of the search and losses: auto, reference, chunked, triton
    """

    metric: Metric = "euclidean"
    init: Init = "uniform"
    estimator: Literal["straight-through", "rotation"] = "straight-through"
    codebook_weight: float = 1.0
    commitment_weight: float = 0.25
    legacy: bool = False
    loss_space: Literal["raw", "unit"] = "raw"
    output: Literal["raw", "unit"] = "raw"
    entropy: Entropy | None = None
    restart: Restart | None = None
    ball: Ball | None = None
    arc: Arc | None = None
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric(self.metric)
        check_backend(self.backend)
        check_weights(codebook_weight=self.codebook_weight, commitment_weight=self.commitment_weight)
        if self.output == "unit" and self.metric != "cosine":
            raise ArcvqError("output unit gives the decoder directions, so codes are chosen by them: say metric cosine")


class VQ(Quantizer):
    """`VQ(dim=64, codebook_size=512)`: the quantizer of VQ-VAE. Options: see VQConfig.

    Subclasses define how the codes are stored (`make_codebook`), moved without a gradient (`move_`) and trained (`code_losses`);
    search, estimator, SAMP, entropy term, restarts and their order are the same for all.
    """

    Config = VQConfig
    config: VQConfig
    codebook: Tensor
    moves_codes: ClassVar[bool] = False  # whether the class defines `move_`
    initialized: Tensor
    usage_ema: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        config = self.config
        self.make_codebook()
        self.samp = Samp(config.ball, config.arc, total_steps=config.total_steps, backend=config.backend)
        self.inits_from_latents = config.init == "kmeans"
        if self.inits_from_latents:
            self.register_buffer("initialized", torch.tensor(False))
        if config.restart:
            self.register_buffer("usage_ema", torch.full((config.codebook_size,), 1 / config.codebook_size))

    # ---- what a subclass defines ----------------------------------------------------------------------------------------

    def make_codebook(self) -> None:
        """Create `codebook`, here as a parameter."""
        self.codebook = nn.Parameter(self.initial_codes())

    def move_(self, inputs: UpdateInputs, counts: Tensor) -> None:
        """Move codes after a step, by its latents and tokens and the counts (K,) of all processes. Called under no_grad."""

    def restart_(self, latents: Tensor, valid: Tensor | None, counts: Tensor, restart: Restart) -> Tensor:
        """Move unused codes onto random latents; return which they were, (K,) bool."""
        return restart_(self.codebook, self.usage_ema, counts, latents, valid, restart)

    def bound_(self) -> None:
        """Scale the codes outside this step's ball onto its surface."""
        self.samp.bound_(self.codebook, self.step)

    def code_losses(self, latents: Tensor, codes: Tensor, codebook: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """The codebook and commitment terms (Eq. 3); in training this process's part of the mean over all."""
        config = self.config
        pair = (latents, codes) if config.loss_space == "raw" else (unit(latents.float()), unit(codes.float()))
        terms = vq_loss(*pair, config.codebook_weight, config.commitment_weight, config.legacy, valid)
        if self.synchronizes:
            weight = self.shard_weight(latents, valid)
            terms = {name: term * weight for name, term in terms.items()}
        return terms

    # ---- shared by all subclasses ---------------------------------------------------------------------------------------

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Latents (N, code_dim) → their nearest codes with the estimator's gradient, tokens, losses, stats."""
        config = self.config
        self._check_initialized()
        codebook = self.codebook  # (K, code_dim); read once, because SimVQ computes it
        arc = None
        if self.training and config.arc is not None and config.metric == "cosine" and not self.synchronizes:
            tokens, arc = self.samp.assign_and_loss(latents, codebook, valid)  # (N,)
        else:
            tokens = assign(latents, codebook, config.metric, config.backend)
        codes = lookup(codebook, tokens, config.backend)  # (N, code_dim)
        output = codes if config.output == "raw" else lookup(unit(codebook.detach()), tokens, config.backend)
        samp_losses, samp_stats = self.samp.losses_and_stats(
            self.step, latents, codebook, valid, self.synchronizes, training=self.training, loss=arc
        )
        losses = self.code_losses(latents, codes, codebook, valid) | samp_losses
        stats = self.token_stats(tokens, valid) | samp_stats
        if config.entropy is not None and self.training:
            temperature = config.entropy.temperature
            sums = entropy_statistics(latents, codebook, temperature, config.metric, config.backend, valid)
            losses["entropy"] = entropy_term(self, config.entropy, sums, latents, valid)
        estimate = straight_through if config.estimator == "straight-through" else rotate
        return estimate(output, latents), tokens, losses, stats

    def lookup(self, tokens: Tensor) -> Tensor:
        """tokens (...) in 0 … K−1 → what the decoder gets for them (..., code_dim): raw or unit codes."""
        codebook = self.codebook
        return nn.functional.embedding(tokens, codebook if self.config.output == "raw" else unit(codebook))

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        """After each step: move codes, restart unused ones, update an adaptive weight's perplexity, and last bound the codes."""
        super()._update(inputs)
        restart = self.config.restart
        with torch.no_grad():
            if self.moves_codes or restart or self.samp.follows_perplexity:
                joined = UpdateInputs.join(inputs)
                counts = self.step_counts(joined)
                self.move_(joined, counts)
                if restart:
                    self.restart_(joined.latents, joined.valid, counts, restart)
                self.samp.update_perplexity_(counts)
            # Last, so that moved codes lie in the ball, too. Step t is bounded by M(t).
            self.bound_()

    @property
    def needs_updates(self) -> bool:
        config = self.config
        return self.moves_codes or any(option is not None for option in (config.restart, config.ball, config.arc))

    def init_from_latents_(self, latents: Tensor, seed: int = 0) -> None:
        self.kmeans_init_(latents, seed=seed)

    @torch.no_grad()
    def kmeans_init_(self, latents: Tensor, iterations: int = 10, seed: int = 0) -> None:
        """Set the codes to the k-means centres of these latents (in the layer's layout). Call it once before training.

        With several processes the first one's latents count.
        """
        rows = self._to_rows(latents)
        self._count_nonfinite(rows)
        points = self.to_code_space(rows)
        size = self.config.codebook_size
        centres = kmeans(points, size, metric=self.config.metric, iterations=iterations, seed=seed)
        self.set_codes_(distributed.from_first_process(centres.to(self.codebook.dtype)))
        self.bound_()

    @torch.no_grad()
    def set_codes_(self, codes: Tensor) -> None:
        """Replace the codes by others (K, code_dim), before or after training; the step count stays."""
        self.codebook.copy_(codes)
        if self.config.init == "kmeans":
            self.initialized.fill_(True)

    def _check_initialized(self) -> None:
        """Raise in training if the init is kmeans and `kmeans_init_` was not called."""
        can_check = self.config.init == "kmeans" and self.training and host_may_read(self.initialized)
        if can_check and not bool(self.initialized):
            raise ArcvqError(
                "init is kmeans but the codebook is not initialized: call kmeans_init_(latents) before training"
            )

    def initial_codes(self) -> Tensor:
        """Random codes (K, code_dim) according to the option `init`."""
        return initial_codes(self.config.init, self.config.codebook_size, self.code_dim)
