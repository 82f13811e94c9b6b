"""The base class of all quantizers: layouts, checks, and updates after each optimizer step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from arcvq import distributed
from arcvq.errors import ArcvqError, Diverged
from arcvq.functional import perplexity, token_counts
from arcvq.quantizers.attachment import Attachment, UpdateReminder
from arcvq.quantizers.options import QuantizerConfig, parse_options
from arcvq.quantizers.quantized import Quantized, UpdateInputs


class Quantizer(nn.Module):
    """latents → tokens, quantized latents, named losses.

    `forward` is pure: it changes no parameter, no buffer, no file, in training or in eval. All updates (the step count, bounds,
    restarts) happen in `after_step(*outputs)`, called once per optimizer step with the outputs of that step's micro-batches, or
    automatically after `quantizer.attach(optimizer)`.
    """

    Config: ClassVar[type[QuantizerConfig]] = QuantizerConfig
    capturable: ClassVar[bool] = True  # False: forward or update reads the host, so a step cannot be a CUDA graph

    # (K, code_dim), or those of several codebooks one after the other; None where there are no codes, and then no tokens
    codebook: Tensor | None
    step: Tensor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the subclass a signature with every option of its Config and its default, for `help` and notebooks."""
        super().__init_subclass__(**kwargs)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        size, *rest = sorted(inspect.signature(cls.Config).parameters.values(), key=lambda p: p.name != "codebook_size")
        dim = inspect.Parameter("dim", kind, annotation="int")
        cls.__signature__ = inspect.Signature([dim, size.replace(kind=kind), *rest])  # type: ignore[attr-defined]

    def __init__(
        self, dim: int, codebook_size: int = 512, *, config: QuantizerConfig | None = None, **options: Any
    ) -> None:
        """Options by name, or all of them as one `config`."""
        super().__init__()
        if not hasattr(dim, "__index__") or dim < 1:
            raise ArcvqError(f"dim must be a whole number of at least 1, got {dim!r}")
        self.dim = dim
        if config is not None and (options or not isinstance(config, self.Config)):
            raise ArcvqError(f"{type(self).__name__} takes options by name or one {self.Config.__name__}, not both")
        self.config = config or parse_options(self.Config, {"codebook_size": codebook_size, **options})
        heads = self.config.heads
        if self.config.code_dim is None and dim % heads:
            raise ArcvqError(
                f"dim {dim} cannot be cut into {heads} equal heads: choose another number or give code_dim"
            )
        self.code_dim = self.config.code_dim or dim // heads
        inner = self.code_dim * heads
        self.project_in = nn.Identity() if inner == dim else nn.Linear(dim, inner)
        self.project_out = nn.Identity() if inner == dim else nn.Linear(inner, dim)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.frozen = False  # set while a training stage does not train the codes: after_step only increments `step`
        self._attachment: Attachment | None = None
        self._reminder = UpdateReminder()

    # ---- what a subclass defines ----------------------------------------------------------------------------------------

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor], dict[str, Tensor]]:
        """latents (N, code_dim) → codes (N, code_dim) with their gradient path, tokens (N,) or (N, depth), losses, stats."""
        raise NotImplementedError

    def lookup(self, tokens: Tensor) -> Tensor:
        """tokens (..., tokens per position) in 0 … K−1 → codes (..., heads, code_dim)."""
        return nn.functional.embedding(tokens, self.require_codebook())

    depth = 1  # how many tokens a row of `quantize` has
    codebooks = 1  # how many codebooks of K codes there are: consecutive tokens take turns

    def inputs_for_update(self, latents: Tensor, tokens: Tensor | None, valid: Tensor | None) -> UpdateInputs:
        """What `_update` gets of a forward pass: detached latents (N, code_dim), tokens as from `quantize`, valid (N,)."""
        return UpdateInputs(latents=latents, tokens=tokens, valid=valid)

    inits_from_latents = False  # whether `init_from_latents_` must be called once before training

    def init_from_latents_(self, latents: Tensor, seed: int = 0) -> None:
        """Initialize from the untrained encoder's latents (in the layer's layout)."""

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        """The update after one optimizer step. Here it increments `step`; subclasses call this first."""
        with torch.no_grad():
            self.step.add_(1)

    @property
    def needs_updates(self) -> bool:
        """Whether `after_step` does more than increment `step`."""
        return type(self)._update is not Quantizer._update

    # ---- the contract ---------------------------------------------------------------------------------------------------

    def forward(self, latents: Tensor, mask: Tensor | None = None) -> Quantized:
        """Quantize latents (B, D, *spatial), or (B, *spatial, D) when channel_last. mask (B, *spatial): False at padding.

        At padding `tokens` is −1 and `quantized` is 0, and no loss or statistic includes it.
        """
        rows = self._to_rows(latents)  # (B, *spatial, D)
        rows_in_memory = rows.is_contiguous()
        if mask is not None:
            self._check_mask(mask, rows)
            rows = torch.where(mask.unsqueeze(-1), rows, 0.0)
        nonfinite = self._count_nonfinite(rows)
        positions = rows.shape[:-1]
        flat = self.to_code_space(rows)  # (N, code_dim), N = B · spatial · heads
        valid = None
        if mask is not None:
            valid = mask.unsqueeze(-1).expand(*positions, self.config.heads).reshape(-1)

        codes, tokens, losses, stats = self.quantize(flat, valid)

        grid = None
        if tokens is not None:
            tokens = (
                tokens if valid is None else torch.where(valid if tokens.dim() == 1 else valid[:, None], tokens, -1)
            )
            per_position = self.tokens_per_position
            grid = tokens.reshape(positions if per_position == 1 else (*positions, per_position))
        codes = codes.reshape(*positions, self.config.heads * self.code_dim)
        quantized = self._to_layout(codes, mask, rows_in_memory).to(latents.dtype)
        stats["nonfinite"] = nonfinite
        output = Quantized(
            quantized=quantized,
            tokens=grid,
            loss=_sum_losses(losses, flat),
            losses=losses,
            stats=stats,
            update_inputs=self.inputs_for_update(flat.detach(), tokens, valid),
        )
        if self.training and torch.is_grad_enabled():
            if self._attachment is not None:
                self._attachment.track(output)
            elif host_may_read(flat):
                self._reminder.count_forward(self)
        return output

    @torch.no_grad()
    def encode(self, latents: Tensor, mask: Tensor | None = None) -> Tensor:
        """latents → tokens as `forward` gives them in evaluation, without a gradient. The inverse is `decode`."""
        self.require_codebook()
        was_training = self.training
        self.eval()
        try:
            tokens = self(latents, mask).tokens
        finally:
            self.train(was_training)
        assert tokens is not None
        return tokens

    def decode(self, tokens: Tensor) -> Tensor:
        """tokens as `forward` gives them → quantized latents in the layer's layout. −1 decodes to zeros."""
        tokens = self.check_tokens(tokens)
        grid = tokens if self.tokens_per_position > 1 else tokens.unsqueeze(-1)
        codes = self.lookup(grid.clamp(min=0))  # (B, *spatial, heads, code_dim)
        return self._to_layout(codes.flatten(-2), (grid >= 0).all(dim=-1))

    def check_tokens(self, tokens: Tensor) -> Tensor:
        """The tokens as int64; an error unless they are of this codebook and (B, *spatial), or (B, *spatial, tokens per position)."""
        self.require_codebook()
        last = self.tokens_per_position
        if tokens.dim() < 1:
            raise ArcvqError("expected tokens (B, *spatial), got a single number: give it a batch dimension")
        if tokens.dtype.is_floating_point or tokens.dtype.is_complex or tokens.dtype == torch.bool:
            raise ArcvqError(f"tokens must be whole numbers, got {tokens.dtype}")
        if last > 1 and (tokens.dim() < 2 or tokens.shape[-1] != last):
            raise ArcvqError(
                f"expected tokens (B, *spatial, {last}), {last} per position, got shape {tuple(tokens.shape)}"
            )
        return self.check_range(tokens.to(torch.int64))

    def check_range(self, tokens: Tensor) -> Tensor:
        """The tokens; an error unless all lie in −1 … K−1."""
        if host_may_read(tokens) and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            if low < -1 or high >= self.config.codebook_size:
                raise ArcvqError(
                    f"token {low if low < -1 else high} is out of range: this codebook has tokens 0 to {self.config.codebook_size - 1}"
                )
        return tokens

    def after_step(self, *outputs: Quantized) -> None:
        """Update the quantizer. Call it once after each optimizer step, with the outputs of all its forward passes."""
        if self._attachment is not None:
            raise ArcvqError(
                "this quantizer is attached to an optimizer, which updates it: do not call after_step as well"
            )
        if not outputs:
            raise ArcvqError("after_step needs the outputs of this step's forward passes, e.g. after_step(output)")
        for output in outputs:
            if not isinstance(output, Quantized):
                raise ArcvqError(
                    f"after_step takes what the quantizer returned, a Quantized, not a {type(output).__name__}"
                )
        self.update([output.update_inputs for output in outputs])

    def update(self, inputs: Sequence[UpdateInputs]) -> None:
        """The update after one optimizer step. When frozen, only `step` is incremented."""
        self._reminder.reset()
        if self.frozen:
            Quantizer._update(self, inputs)
        else:
            self._update(inputs)

    def attach(self, optimizer: Optimizer | None) -> Attachment:
        """Update this quantizer after each step of the optimizer, until `remove_attachment()`. Not with torch.compile.

        None: after the step of any optimizer that holds this quantizer's parameters.
        """
        if self._attachment is not None:
            raise ArcvqError("this quantizer is already attached to an optimizer")
        self._attachment = Attachment(self, optimizer)
        return self._attachment

    def remove_attachment(self) -> None:
        """Undo `attach`."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    # ---- shared pieces --------------------------------------------------------------------------------------------------

    def require_codebook(self) -> Tensor:
        """The codebook; an error for a continuous quantizer, which has none."""
        if self.codebook is None:
            raise ArcvqError(
                f"{type(self).__name__} is continuous: it has no codes and no tokens; reconstruct images with it instead"
            )
        return self.codebook

    @property
    def tokens_per_position(self) -> int:
        """The number of heads, times the depth of a residual quantizer; 0 for a continuous quantizer."""
        return 0 if not self.config.codebook_size else self.config.heads * self.depth

    def code_indices(self, tokens: Tensor) -> Tensor:
        """The row of `codebook` of each token, in the tokens' shape: with several codebooks tokens plus offsets. −1 stays."""
        if self.codebooks == 1:
            return tokens
        offsets = self.config.codebook_size * torch.arange(self.codebooks, device=tokens.device)
        grid = tokens.reshape(-1, self.codebooks)
        return torch.where(grid >= 0, grid + offsets, grid).reshape(tokens.shape)

    @property
    def synchronizes(self) -> bool:
        """Whether losses and statistics cover all processes: in training, never in evaluation."""
        return self.training and distributed.world_size() > 1

    def global_counts(self, tokens: Tensor) -> Tensor:
        """How many tokens each code of `codebook` has: in training over all processes, else in this one."""
        counts = token_counts(self.code_indices(tokens), self.config.codebook_size * self.codebooks)
        return distributed.sum_over_processes(counts) if self.synchronizes else counts

    def shard_weight(self, latents: Tensor, valid: Tensor | None) -> Tensor:
        """The factor that turns a mean over this process's tokens into its part of the mean over all. Waits for all processes."""
        return distributed.shard_weight(self.token_count(latents, valid))

    def step_counts(self, inputs: UpdateInputs) -> Tensor:
        """How many tokens each code has in a step, (K,), over all processes. For updates: in eval mode, too."""
        assert inputs.tokens is not None
        return distributed.sum_over_processes(token_counts(inputs.tokens, self.config.codebook_size))

    def token_count(self, latents: Tensor, valid: Tensor | None) -> Tensor:
        """How many tokens this process has, as float32 with a mask and without, so that processes can be summed."""
        if valid is None:
            return torch.full((), latents.shape[0], dtype=torch.float32, device=latents.device)
        return valid.sum().to(torch.float32)

    def token_mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """The mean of values (N,) over the valid tokens, for a loss; in training this process's part of the mean over all."""
        total = (values if valid is None else torch.where(valid, values, 0.0)).sum()
        mean = total / self.token_count(values, valid).clamp(min=1)
        return mean * self.shard_weight(values, valid) if self.synchronizes else mean

    def global_mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """The mean of values (N,) over the valid tokens, without a gradient, for a statistic; in training over all processes."""
        total = (values if valid is None else torch.where(valid, values, 0.0)).detach().sum()
        count = self.token_count(values, valid)
        if self.synchronizes:
            total, count = distributed.sum_over_processes(total), distributed.sum_over_processes(count)
        return total / count.clamp(min=1)

    def token_stats(self, tokens: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """`perplexity` of the valid tokens, and `usage`, the fraction of codes that have any."""
        counts = self.global_counts(tokens if valid is None else torch.where(valid, tokens, -1))
        return {"perplexity": perplexity(counts), "usage": (counts > 0).to(torch.float32).mean()}

    def _to_rows(self, latents: Tensor) -> Tensor:
        """Checked latents with the channels last: (B, *spatial, D)."""
        channel = -1 if self.config.channel_last else 1
        layout = f"(B, *spatial, {self.dim})" if self.config.channel_last else f"(B, {self.dim}, *spatial)"
        if latents.dim() < 2 or latents.shape[channel] != self.dim:
            raise ArcvqError(f"expected latents {layout}, got shape {tuple(latents.shape)}")
        if not latents.is_floating_point():
            raise ArcvqError(f"latents must be floating point, got {latents.dtype}")
        return latents if self.config.channel_last else latents.movedim(1, -1)

    def to_code_space(self, rows: Tensor) -> Tensor:
        """Project rows to the width of a code, one row per token: (B, *spatial, dim) → (N, code_dim)."""
        return apply_projection(self.project_in, rows).reshape(-1, self.code_dim)

    def _to_layout(self, codes: Tensor, mask: Tensor | None, rows_in_memory: bool = False) -> Tensor:
        """Codes (B, *spatial, heads · code_dim) → quantized latents in the layer's layout, projected, 0 at padding.

        `rows_in_memory`: keep each position's vector contiguous, as in channels-last memory.
        """
        rows = apply_projection(self.project_out, codes)
        if mask is not None:
            rows = torch.where(mask.unsqueeze(-1), rows, 0.0)
        if self.config.channel_last:
            return rows
        # The memory format of the encoder's output, which the decoder would get without a quantizer.
        return rows.movedim(-1, 1) if rows_in_memory else rows.movedim(-1, 1).contiguous()

    def _check_mask(self, mask: Tensor, rows: Tensor) -> None:
        """Raise unless the mask is bool and has one element for each position."""
        if mask.dtype != torch.bool or mask.shape != rows.shape[:-1]:
            raise ArcvqError(
                f"expected a bool mask of shape {tuple(rows.shape[:-1])}, got {mask.dtype} {tuple(mask.shape)}"
            )

    def _count_nonfinite(self, rows: Tensor) -> Tensor:
        """How many values are not finite; in eager mode an error if there are any. Finite latents cost one pass, for a maximum."""
        rows = rows.detach()
        if host_may_read(rows):
            if rows.numel() and not math.isfinite(torch.linalg.vector_norm(rows, ord=math.inf).item()):
                bad = ~torch.isfinite(rows)
                first = bad.nonzero()[0].tolist()
                value = rows[tuple(first)].item()
                raise Diverged(
                    f"latents hold {int(bad.sum())} non-finite values of {rows.numel()}, the first ({value}) in channel {first[-1]} "
                    f"at position {tuple(first[:-1])}: the encoder has diverged (lower the learning rate, or train in float32)"
                )
            return torch.zeros((), dtype=torch.int64, device=rows.device)
        return (~torch.isfinite(rows)).sum()

    def extra_repr(self) -> str:
        return f"dim={self.dim}, {self.config}"


def apply_projection(projection: nn.Module, rows: Tensor) -> Tensor:
    """The projection of rows cast to its dtype; the rows themselves for nn.Identity."""
    return projection(rows.to(projection.weight.dtype)) if isinstance(projection, nn.Linear) else rows


def _sum_losses(losses: dict[str, Tensor], latents: Tensor) -> Tensor:
    """The sum of the losses in float32; float64 stays float64."""
    zero = torch.zeros((), device=latents.device, dtype=torch.promote_types(torch.float32, latents.dtype))
    return sum((term.to(torch.promote_types(torch.float32, term.dtype)) for term in losses.values()), start=zero)


def host_may_read(tensor: Tensor) -> bool:
    """Whether Python may read the tensor's values: not while a graph is traced, exported or captured."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
