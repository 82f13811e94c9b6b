"""The contract every quantizer keeps: shapes, purity, time, and when it is updated."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from arcvq import distributed
from arcvq.config import did_you_mean, parse
from arcvq.errors import ArcvqError, Diverged
from arcvq.functional import perplexity, token_counts
from arcvq.quantizers.attachment import Attachment, UpdateReminder
from arcvq.quantizers.quantized import Quantized, UpdateInputs

Config = TypeVar("Config")


@dataclasses.dataclass(kw_only=True)
class QuantizerConfig:
    """What every quantizer has.

    codebook_size  K
    code_dim       width of a code; when it differs from dim / heads, a linear map leads in and another out
    heads          a position's vector is cut into this many parts, each with a token of its own from one shared codebook
    channel_last   latents are (B, *spatial, D) instead of (B, D, *spatial)
    total_steps    planned optimizer steps, for schedules that need them
    """

    codebook_size: int = 512
    code_dim: int | None = None
    heads: int = 1
    channel_last: bool = False
    total_steps: int | None = None

    def __post_init__(self) -> None:
        check_sizes(codebook_size=self.codebook_size, heads=self.heads, code_dim=self.code_dim)


def options_of(config: type[Config], options: dict[str, Any]) -> Config:
    """The configuration that keyword arguments describe; a misspelt one is answered with the nearest."""
    names = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    for name in options:
        if name not in names:
            raise ArcvqError(f"unknown option {name!r}{did_you_mean(name, names)}")
    return parse(config, options)


class Quantizer(nn.Module):
    """latents → tokens, quantized latents, named losses.

    `forward` is pure: it changes no parameter, no buffer, no file, in training or in eval. Whatever changes with training (the
    step count, bounds, restarts) happens in `after_step(*outputs)`, called once per optimizer step with the outputs of that step's
    micro-batches, or by itself once the quantizer is attached: `quantizer.attach(optimizer)`.
    """

    Config: ClassVar[type[QuantizerConfig]] = QuantizerConfig
    capturable: ClassVar[bool] = True  # False: forward or update reads the host, so no CUDA graph can hold a step

    codebook: Tensor | None  # (K, code_dim); None where there are no codes, and then no tokens
    step: Tensor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """`help(ArcVQ)` and notebooks show every option with its default; the dataclass is their one home."""
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
        self.config = config or options_of(self.Config, {"codebook_size": codebook_size, **options})
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
        self.frozen = False  # by a stage of training that leaves the codes alone: then a step only lets time pass
        self._attachment: Attachment | None = None
        self._reminder = UpdateReminder()

    # ---- what a subclass says -------------------------------------------------------------------------------------------

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor], dict[str, Tensor]]:
        """latents (N, code_dim) → codes (N, code_dim) with their gradient path, tokens (N,), losses, stats."""
        raise NotImplementedError

    def lookup(self, tokens: Tensor) -> Tensor:
        """tokens (...) in 0 … K−1 → codes (..., code_dim)."""
        return nn.functional.embedding(tokens, self.require_codebook())

    inits_from_latents = False  # whether `init_from_latents_` is to be called, once, before training

    def init_from_latents_(self, latents: Tensor, seed: int = 0) -> None:
        """Begin where these latents (in the layer's layout) are, those of the untrained encoder."""

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        """What one optimizer step changes. Subclasses do theirs and call this first: it advances the time."""
        with torch.no_grad():
            self.step.add_(1)

    @property
    def needs_updates(self) -> bool:
        """Whether `after_step` does more than count the steps."""
        return type(self)._update is not Quantizer._update

    # ---- the contract ---------------------------------------------------------------------------------------------------

    def forward(self, latents: Tensor, mask: Tensor | None = None) -> Quantized:
        """latents (B, D, *spatial), or (B, *spatial, D) when channel_last. mask (B, *spatial): True where there is something.

        At masked-out positions `tokens` is −1, `quantized` is 0, and no loss or statistic sees them.
        """
        rows = self._rows(latents)  # (B, *spatial, D)
        in_rows = rows.is_contiguous()
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
            tokens = tokens if valid is None else torch.where(valid, tokens, -1)
            grid = tokens.reshape(positions if self.config.heads == 1 else (*positions, self.config.heads))
        codes = codes.reshape(*positions, self.config.heads * self.code_dim)
        quantized = self._assemble(codes, mask, in_rows).to(latents.dtype)
        stats["nonfinite"] = nonfinite
        output = Quantized(
            quantized=quantized,
            tokens=grid,
            loss=_total(losses, flat),
            losses=losses,
            stats=stats,
            update_inputs=UpdateInputs(latents=flat.detach(), tokens=tokens, valid=valid),
        )
        if self.training and torch.is_grad_enabled():
            if self._attachment is not None:
                self._attachment.watch(output)
            elif host_may_read(flat):
                self._reminder.note_pass(self)
        return output

    @torch.no_grad()
    def encode(self, latents: Tensor, mask: Tensor | None = None) -> Tensor:
        """latents → tokens as `forward` gives them in evaluation, without a gradient; `decode` leads back."""
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
        grid = tokens if self.config.heads > 1 else tokens.unsqueeze(-1)
        codes = self.lookup(grid.clamp(min=0))  # (B, *spatial, heads, code_dim)
        return self._assemble(codes.flatten(-2), (grid >= 0).all(dim=-1))

    def check_tokens(self, tokens: Tensor) -> Tensor:
        """As int64; an error unless they are tokens of this codebook, (B, *spatial) or with several heads (B, *spatial, heads)."""
        self.require_codebook()
        heads = self.config.heads
        if tokens.dim() < 1:
            raise ArcvqError("expected tokens (B, *spatial), got a single number: give it a batch dimension")
        if tokens.dtype.is_floating_point or tokens.dtype.is_complex or tokens.dtype == torch.bool:
            raise ArcvqError(f"tokens must be whole numbers, got {tokens.dtype}")
        if heads > 1 and (tokens.dim() < 2 or tokens.shape[-1] != heads):
            raise ArcvqError(f"expected tokens (B, *spatial, {heads}), one per head, got shape {tuple(tokens.shape)}")
        tokens = tokens.to(torch.int64)
        if host_may_read(tokens) and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            if low < -1 or high >= self.config.codebook_size:
                raise ArcvqError(
                    f"token {low if low < -1 else high} is out of range: this codebook has tokens 0 to {self.config.codebook_size - 1}"
                )
        return tokens

    def after_step(self, *outputs: Quantized) -> None:
        """Call once after each optimizer step, with the outputs of all forward passes that the step learnt from."""
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
        """What follows one optimizer step. Frozen: only `step` is incremented."""
        self._reminder.reset()
        if self.frozen:
            Quantizer._update(self, inputs)
        else:
            self._update(inputs)

    def attach(self, optimizer: Optimizer | None) -> Attachment:
        """Let an eager loop's optimizer update this quantizer after each of its steps. `remove_attachment()` ends it.

        None: whichever optimizer steps and holds this quantizer's parameters.
        """
        if self._attachment is not None:
            raise ArcvqError("this quantizer is already attached to an optimizer")
        self._attachment = Attachment(self, optimizer)
        return self._attachment

    def remove_attachment(self) -> None:
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    # ---- shared pieces --------------------------------------------------------------------------------------------------

    def require_codebook(self) -> Tensor:
        """The codebook, or one line that says there is none."""
        if self.codebook is None:
            raise ArcvqError(
                f"{type(self).__name__} is continuous: it has no codes and no tokens; reconstruct images with it instead"
            )
        return self.codebook

    @property
    def tokens_per_position(self) -> int:
        """0 where there are no tokens."""
        return 0 if self.codebook is None else self.config.heads

    @property
    def synchronizes(self) -> bool:
        """Training sees the global batch; evaluation never waits for another process."""
        return self.training and distributed.world_size() > 1

    def global_counts(self, tokens: Tensor) -> Tensor:
        """(K,) how often each code was chosen, over all processes in training."""
        counts = token_counts(tokens, self.config.codebook_size)
        return distributed.sum_over_processes(counts) if self.synchronizes else counts

    def shard_weight(self, latents: Tensor, valid: Tensor | None) -> Tensor:
        """What makes a mean over this process's tokens a part of the mean over everyone's. Waits for them: only when it synchronizes."""
        return distributed.shard_weight(self.token_count(latents, valid))

    def code_counts(self, step: UpdateInputs) -> Tensor:
        """(K,): how many tokens fell on each code, over all processes whatever the mode. For updates, which belong to training even
        when it is called after an eval()."""
        assert step.tokens is not None
        return distributed.sum_over_processes(token_counts(step.tokens, self.config.codebook_size))

    def token_count(self, latents: Tensor, valid: Tensor | None) -> Tensor:
        """How many tokens this process has; of one dtype with a mask and without, so that processes can be summed."""
        if valid is None:
            return torch.full((), latents.shape[0], dtype=torch.float32, device=latents.device)
        return valid.sum().to(torch.float32)

    def token_mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """Of one value per token (N,): this process's part of the mean over everyone's, for a loss."""
        total = (values if valid is None else torch.where(valid, values, 0.0)).sum()
        mean = total / self.token_count(values, valid).clamp(min=1)
        return mean * self.shard_weight(values, valid) if self.synchronizes else mean

    def global_mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """The mean over everyone's tokens, for a statistic."""
        total = (values if valid is None else torch.where(valid, values, 0.0)).detach().sum()
        count = self.token_count(values, valid)
        if self.synchronizes:
            total, count = distributed.sum_over_processes(total), distributed.sum_over_processes(count)
        return total / count.clamp(min=1)

    def token_stats(self, tokens: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        counts = self.global_counts(tokens if valid is None else torch.where(valid, tokens, -1))
        return {"perplexity": perplexity(counts), "usage": (counts > 0).to(torch.float32).mean()}

    def _rows(self, latents: Tensor) -> Tensor:
        channel = -1 if self.config.channel_last else 1
        layout = f"(B, *spatial, {self.dim})" if self.config.channel_last else f"(B, {self.dim}, *spatial)"
        if latents.dim() < 2 or latents.shape[channel] != self.dim:
            raise ArcvqError(f"expected latents {layout}, got shape {tuple(latents.shape)}")
        if not latents.is_floating_point():
            raise ArcvqError(f"latents must be floating point, got {latents.dtype}")
        return latents if self.config.channel_last else latents.movedim(1, -1)

    def to_code_space(self, rows: Tensor) -> Tensor:
        """(B, *spatial, dim) → (N, code_dim)."""
        return through(self.project_in, rows).reshape(-1, self.code_dim)

    def _assemble(self, codes: Tensor, mask: Tensor | None, in_rows: bool = False) -> Tensor:
        """(B, *spatial, heads · code_dim) → out through the projection, padding zeroed, in the layer's layout.

        `in_rows`: each position's vector in one piece, as channels-last latents lie.
        """
        rows = through(self.project_out, codes)
        if mask is not None:
            rows = torch.where(mask.unsqueeze(-1), rows, 0.0)
        if self.config.channel_last:
            return rows
        # In memory as the encoder's output lies: a decoder then meets the layout it would meet without us.
        return rows.movedim(-1, 1) if in_rows else rows.movedim(-1, 1).contiguous()

    def _check_mask(self, mask: Tensor, rows: Tensor) -> None:
        if mask.dtype != torch.bool or mask.shape != rows.shape[:-1]:
            raise ArcvqError(
                f"expected a bool mask of shape {tuple(rows.shape[:-1])}, got {mask.dtype} {tuple(mask.shape)}"
            )

    def _count_nonfinite(self, rows: Tensor) -> Tensor:
        """How many there are. One pass over finite latents: the largest of them tells that there are none."""
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


def through(projection: nn.Module, rows: Tensor) -> Tensor:
    """Half or double latents meet the projection in its own dtype (autocast then does as it likes)."""
    return projection(rows.to(projection.weight.dtype)) if isinstance(projection, nn.Linear) else rows


def _total(losses: dict[str, Tensor], latents: Tensor) -> Tensor:
    """The sum of the terms in float32; float64 stays float64."""
    start = torch.zeros((), device=latents.device, dtype=torch.promote_types(torch.float32, latents.dtype))
    return sum((term.to(torch.promote_types(torch.float32, term.dtype)) for term in losses.values()), start=start)


def check_sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ArcvqError(f"{name} must be at least 1, got {size}")


def check_weights(**weights: float) -> None:
    for name, weight in weights.items():
        if weight < 0:
            raise ArcvqError(f"{name} must not be negative, got {weight}")


def host_may_read(tensor: Tensor) -> bool:
    """False while a graph is being traced, exported or captured: then a value is not there to be looked at."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
