"""The Generator: a prior and its tokenizer. Makes images."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.config import did_you_mean
from arcvq.errors import ArcvqError
from arcvq.functional.precision import matmul_precision
from arcvq.priors.noise import Noise
from arcvq.priors.prior import Grid, Prior, Progress
from arcvq.priors.sampling import SamplingOptions
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.inference import Precision, check_precision, trunk_precision

# Images that are made together. An image depends on it in its last bits, so it is the same however many are asked for.
CHUNK = 64
Class = int | str | np.integer[Any]
Classes = Class | Sequence[Class] | None


class Generator(nn.Module):
    """Makes images (n, C, H, W) in [-1, 1].

        generator = Generator.from_pretrained("runs/prior")
        images = generator(16, classes="sneaker", seed=0)

    Image i of a seed is the same whatever `n` is. Without `classes`, image i has class i modulo their number.
    """

    def __init__(
        self,
        prior: Prior,
        tokenizer: Tokenizer,
        *,
        class_names: Sequence[str] | None = None,
        system: str | None = None,
    ) -> None:
        super().__init__()
        check_fit(prior, tokenizer)
        self.prior, self.tokenizer, self.system = prior, tokenizer, system
        self.class_names = None if class_names is None else list(class_names)
        self.compiled = False

    def forward(
        self,
        n: int,
        *,
        classes: Classes = None,
        seed: int = 0,
        first: int = 0,
        chunk: int = CHUNK,
        precision: Precision = "fp32",
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Tensor:
        """Make images `first` … `first + n − 1` of a seed. `options` are those of `SamplingOptions`.

        `precision` is that of prior and decoder: fp32, tf32, fp16 or bf16. Another one than fp32 is faster and changes some images.
        """
        about: dict[str, Any] = {
            "classes": classes,
            "seed": seed,
            "first": first,
            "chunk": chunk,
            "precision": precision,
        }
        return torch.cat(list(self.batches(n, progress=progress, **about, **options)))

    def batches(
        self,
        n: int,
        *,
        classes: Classes = None,
        seed: int = 0,
        first: int = 0,
        chunk: int = CHUNK,
        precision: Precision = "fp32",
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Iterator[Tensor]:
        """The images in batches of at most `chunk`, for when not all of them fit into memory."""
        check_precision(precision, self.device)
        if n < 1 or chunk < 1 or first < 0:
            raise ArcvqError(f"expected a number of images and a chunk of at least 1, got {n} and {chunk}")
        sampling, chosen = self.sampling_options(options), self.class_numbers(classes)
        rounds = range(0, n, chunk)
        with self._evaluating(), sampling_precision(precision, self.device):
            sampler = self.prior.make_sampler(sampling, chunk)
        for count, start in enumerate(rounds):
            # Always a whole chunk: images beyond the last are made and dropped.
            indices = list(range(first + start, first + start + chunk))
            labels = self._labels([chosen[index % len(chosen)] for index in indices] if chosen else None)
            noise = Noise(seed, indices, self.device)
            with self._evaluating(), sampling_precision(precision, self.device):
                values = sampler(labels, noise, None, part_of(progress, count, len(rounds)))
            yield self.decode(values, precision)[: n - start]

    def complete(
        self,
        images: Tensor,
        mask: Tensor,
        *,
        classes: Classes = None,
        seed: int = 0,
        first: int = 0,
        keep_pixels: bool = True,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Tensor:
        """Fill in images (B, C, H, W) where the mask (B, 1, H, W) is True: tokens that it touches are drawn anew.

        What is under the mask changes nothing. `keep_pixels` puts the visible pixels back as they were; otherwise all are decoded.
        Image b draws the noise of image `first + b` of the seed.
        """
        if mask.shape != (len(images), 1, *images.shape[-2:]):
            raise ArcvqError(f"expected a mask {(len(images), 1, *images.shape[-2:])}, got {tuple(mask.shape)}")
        mask = mask.bool()
        tokens = self.tokens_of(fill_hole(images, mask.to(images.device)))
        touched = F.max_pool2d(mask.float(), self.tokenizer.downsampling).bool()[:, 0].to(tokens.device)  # (B, h, w)
        hidden = touched if self.prior.grid.depth == 1 else touched[..., None]
        draw = self._token_completer(len(images), classes, seed, first, options)
        made = self.decode(draw(tokens.masked_fill(hidden, -1), progress))
        return torch.where(mask.to(made.device), made, images.to(made)) if keep_pixels else made

    def extend(
        self,
        images: Tensor,
        rows: int,
        *,
        classes: Classes = None,
        seed: int = 0,
        first: int = 0,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Tensor:
        """Continue images (B, C, H, W) downwards by `rows` rows of tokens, each window from the upper half of it.

        Image b draws the noise of image `first + b` of the seed, window after window: more rows do not change the first ones.
        """
        if rows < 1:
            raise ArcvqError(f"expected at least 1 row of tokens to add, got {rows}")
        tokens, height = self.tokens_of(images), self.prior.grid.height
        stride = max(1, height // 2)
        if height < 2:
            raise ArcvqError("extending needs at least 2 rows of tokens")
        wanted, windows = tokens.shape[1] + rows, -(-rows // stride)
        draw = self._token_completer(len(images), classes, seed, first, options)
        blank = torch.full_like(tokens[:, :stride], -1)
        for number in range(windows):
            window = torch.cat([tokens[:, -(height - stride) :], blank], dim=1)
            drawn = draw(window, part_of(progress, number, windows))
            tokens = torch.cat([tokens, drawn[:, height - stride :]], dim=1)
        return self.decode(tokens[:, :wanted])

    def tokens_of(self, images: Tensor) -> Tensor:
        """The tokens of images of the prior's size."""
        if self.prior.models != "tokens":
            raise ArcvqError(f"{type(self.prior).__name__} is over latents: only priors over tokens complete images")
        tokens = self.tokenizer.encode(images)
        if tokens.shape[1:] != self.prior.grid.token_shape:
            side = self.tokenizer.downsampling
            grid = self.prior.grid
            raise ArcvqError(
                f"this prior completes images of {grid.height * side}×{grid.width * side}, got {images.shape[-2]}×{images.shape[-1]}"
            )
        return tokens

    def speed_up(self) -> Generator:
        """Compile the prior's step and the tokenizer, in place. Returns this generator. The first images then take longer."""
        self.prior.compile_step()
        self.tokenizer.speed_up(compile=True)
        self.compiled = True
        return self

    @torch.no_grad()
    def decode(self, values: Tensor, precision: Precision = "fp32") -> Tensor:
        """Tokens, or latents, which are quantized first → images in [-1, 1]."""
        if self.prior.models == "tokens":
            return self.tokenizer.decode(values, precision=precision)
        size = self.tokenizer.batch_size(*(side * self.tokenizer.downsampling for side in values.shape[-2:]))
        with self._evaluating():
            quantized = [self.tokenizer.quantize(part.float()).quantized for part in values.split(size)]
            with sampling_precision(precision, self.device):
                images = [self.tokenizer.to_images(part) for part in quantized]
        return torch.cat(images).float().clamp(-1, 1)

    def class_numbers(self, classes: Classes) -> list[int]:
        """Classes as numbers: by number, by name, or all of them in turn. Empty for a prior without classes."""
        count = self.prior.grid.classes
        if not count:
            if classes is not None:
                raise ArcvqError("this prior was trained without classes: leave them out")
            return []
        if classes is None:
            return list(range(count))
        given = [classes] if isinstance(classes, (int, str, np.integer)) else list(classes)
        if not given:
            raise ArcvqError("expected at least one class, got none")
        return [self._class_number(each) for each in given]

    def sampling_options(self, options: Mapping[str, Any]) -> SamplingOptions:
        """The options of keyword arguments; raises if they ask for guidance that this prior has not learned."""
        found = make_options(options)
        if found.guidance != 1 and not self.prior.grid.classes:
            raise ArcvqError("guidance needs classes, and this prior was trained without: leave guidance out")
        if found.guidance != 1 and not self.prior.config.label_dropout:
            raise ArcvqError(
                "guidance needs a prior that was also trained without the class, and this one has prior.label_dropout 0: "
                "leave guidance out"
            )
        return found

    def sampler_settings(
        self, options: Mapping[str, Any], *, chunk: int = CHUNK, precision: Precision = "fp32"
    ) -> dict[str, Any]:
        """All that changes how images of a seed and class are drawn, with the values of what `options` leave out."""
        about = {"chunk": chunk, "precision": precision, "compiled": self.compiled}
        return about | self.prior.resolved_options(self.sampling_options(options))

    def _class_number(self, given: Class) -> int:
        names, count = self.class_names or [], self.prior.grid.classes
        if isinstance(given, str):
            if given in names:
                return names.index(given)
            alike = [number for number, name in enumerate(names) if name.casefold() == given.casefold()]
            if len(alike) == 1:
                return alike[0]
            if not given.isdecimal():
                raise ArcvqError(f"unknown class {given!r}{did_you_mean(given, names)}")
            given = int(given)
        try:
            number = operator.index(given)
        except TypeError:
            raise ArcvqError(f"a class is a name or a whole number, got {given!r}") from None
        if not 0 <= number < count:
            raise ArcvqError(f"class {number} is out of range: there are classes 0 to {count - 1}")
        return number

    def _labels(self, numbers: list[int] | None) -> Tensor | None:
        return None if numbers is None else torch.tensor(numbers, device=self.prior.device)

    def _token_completer(
        self, batch: int, classes: Classes, seed: int, first: int, options: Mapping[str, Any]
    ) -> Callable[[Tensor, Progress | None], Tensor]:
        """What draws the tokens that are −1 in one batch of grids after another. Without `classes` the class is hidden."""
        chosen = self.class_numbers(classes) if classes is not None else []
        if self.prior.grid.classes and not chosen and not self.prior.config.label_dropout:
            raise ArcvqError(
                "this prior was only trained with the class (prior.label_dropout 0): say the images' class"
            )
        indices = range(first, first + batch)
        labels = self._labels([chosen[index % len(chosen)] for index in indices] if chosen else None)
        noise, sampling = Noise(seed, indices, self.device), self.sampling_options(options)
        with self._evaluating(), sampling_precision("fp32", self.device):
            sampler = self.prior.make_sampler(sampling, batch)

        def draw(known: Tensor, progress: Progress | None) -> Tensor:
            with self._evaluating(), sampling_precision("fp32", self.device):
                return sampler(labels, noise, known, progress)

        return draw

    def _evaluating(self) -> Any:
        """A context in which prior and tokenizer are in evaluation mode and keep no gradients."""
        return _Evaluating(self)

    @property
    def device(self) -> torch.device:
        return self.prior.device

    # ---- files ----------------------------------------------------------------------------------------------------------

    def save_pretrained(self, directory: str | Path, *, notes: Mapping[str, Any] | None = None) -> Path:
        """Save the prior, the tokenizer (in the folder `tokenizer`) and a model card to a folder; replaces an older save."""
        from arcvq.priors.saving import save

        return save(self, Path(directory), notes or {})

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> Generator:
        """Load a generator from a folder, a run, an embedded name (`tiny`), or a repository on the Hugging Face Hub."""
        from arcvq.priors.saving import load

        return load(source).to(device).eval()

    def push_to_hub(self, repository: str, *, private: bool = False, notes: Mapping[str, Any] | None = None) -> str:
        """Upload to the Hugging Face Hub (log in first: `hf auth login`); returns the repository's address."""
        from arcvq.priors.saving import push

        return push(self, repository, private, notes or {})


class _Evaluating:
    """Inside, a module is in evaluation mode and makes no gradients; afterwards it is as before."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.no_grad = module, torch.no_grad()

    def __enter__(self) -> None:
        self.was_training = self.module.training
        self.module.eval()
        self.no_grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.no_grad.__exit__(*error)
        self.module.train(self.was_training)


@contextmanager
def sampling_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """A context in which networks compute in this precision, in matrix products and in convolutions."""
    with trunk_precision(precision, device), matmul_precision("tf32" if precision == "tf32" else "ieee"):
        yield


def part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """Progress of one of several equal parts as a part of the whole."""
    return None if progress is None else lambda done, total: progress(number * total + done, count * total)


def fill_hole(images: Tensor, mask: Tensor) -> Tensor:
    """Images (B, C, H, W) with the mean of the visible pixels of each channel where the mask (B, 1, H, W) is True."""
    visible = images.masked_fill(mask, 0).sum((-2, -1), keepdim=True)
    count = (~mask).sum((-2, -1), keepdim=True).clamp(min=1)
    return torch.where(mask, visible / count, images)


def make_options(options: Mapping[str, Any]) -> SamplingOptions:
    """SamplingOptions from keyword arguments; None means: not given."""
    known = SamplingOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ArcvqError(f"unknown sampling option {name!r}{did_you_mean(name, known)}")
    return SamplingOptions(**{name: value for name, value in options.items() if value is not None})


def make_grid(tokenizer: Tokenizer, image_size: tuple[int, int], classes: int) -> Grid:
    """What a prior over this tokenizer's tokens, or latents, of such images is over."""
    tokenizer.quantizer.require_codebook()
    tokenizer.check_size(*image_size)
    height, width = (side // tokenizer.downsampling for side in image_size)
    quantizer = tokenizer.quantizer
    return Grid(
        height=height,
        width=width,
        codebook_size=quantizer.config.codebook_size,
        depth=quantizer.tokens_per_position,
        latent_dim=quantizer.dim,
        classes=classes,
    )


def check_fit(prior: Prior, tokenizer: Tokenizer) -> None:
    """Raise unless the prior is over what this tokenizer makes."""
    grid = prior.grid
    side = tokenizer.downsampling
    expected = make_grid(tokenizer, (grid.height * side, grid.width * side), grid.classes)
    if expected != grid:
        raise ArcvqError(
            f"the prior is over {grid}, but this tokenizer makes {expected}: use the tokenizer it was trained on"
        )
