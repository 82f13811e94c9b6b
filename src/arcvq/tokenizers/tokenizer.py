"""Tokenizer: encoder, quantizer, decoder. Images ↔ tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.config import nearest, parse, to_dict
from arcvq.errors import ArcvqError
from arcvq.quantizers import Quantized, Quantizer, build_quantizer, quantizer_name
from arcvq.storage import read_json, read_tensors, write_bytes, write_json, write_tensors, writing
from arcvq.tokenizers.card import model_card
from arcvq.tokenizers.inference import Precision, check_precision, images_at_once, plain_float32, trunk_precision
from arcvq.tokenizers.small import SmallDecoder, SmallEncoder, SmallTrunkConfig

FORMAT = "arcvq-tokenizer-1"
# What a saved tokenizer's folder holds; the keys of its config.json, their types and what these are called.
FILES = ("config.json", "model.safetensors", "README.md")
NOTHING = type(None)
KEYS: dict[str, tuple[tuple[type, ...], str]] = {
    "format": ((str,), "text"),
    "system": ((str, NOTHING), "text"),
    "channels": ((int,), "a whole number"),
    "image_size": ((list, tuple, NOTHING), "a height and a width"),
    "tokenizer": ((dict,), "the trunk's options"),
    "quantizer_name": ((str,), "text"),
    "quantizer": ((dict,), "the quantizer's options"),
}
# The largest side of an image that a tokenizer may be for, and the most numbers in a buffer that its configuration determines (FSQ's
# and LFQ's codes).
LARGEST = 1 << 14
LARGEST_BUFFER = 1 << 27
# A trunk's options, encoder and decoder; and which class serves it, where that is not Tokenizer itself.
TRUNKS: dict[str, tuple[type[SmallTrunkConfig], Any, Any]] = {"small": (SmallTrunkConfig, SmallEncoder, SmallDecoder)}
CLASSES: dict[str, type[Tokenizer]] = {}
# Trained tokenizers that travel inside the package, by name.
EMBEDDED = ("tiny",)


class Tokenizer(nn.Module):
    """Images (B, C, H, W) in [-1, 1] ↔ tokens (B, h, w).

        tokenizer = Tokenizer.from_pretrained("runs/cifar10-arc/model")
        tokens = tokenizer.encode(images)
        images = tokenizer.decode(tokens)

    `forward` is for training: it returns the reconstruction and the quantizer's whole output.
    """

    def __init__(
        self,
        channels: int,
        trunk: SmallTrunkConfig,
        quantizer: Quantizer,
        *,
        image_size: tuple[int, int] | None = None,
        system: str | None = None,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ArcvqError(f"channels must be at least 1, got {channels}")
        if quantizer.dim != trunk.latent_dim:
            raise ArcvqError(
                f"the quantizer takes latents {quantizer.dim} wide but the trunk makes them {trunk.latent_dim} wide"
            )
        self.channels, self.trunk, self.image_size, self.system = channels, trunk, image_size, system
        _, encoder, decoder = TRUNKS[trunk.trunk]
        self.encoder = encoder(channels, trunk)
        self.quantizer = quantizer
        self.decoder = decoder(channels, trunk)
        self.downsampling = trunk.downsampling

    def forward(self, images: Tensor) -> tuple[Tensor, Quantized]:
        quantized = self.quantize(self.latents(images))
        return self.to_images(quantized.quantized), quantized

    def after_step(self, *outputs: Quantized) -> None:
        """The quantizer's upkeep, once after each optimizer step, with the outputs of that step's micro-batches."""
        self.quantizer.after_step(*outputs)

    def encode(self, images: Tensor, *, precision: Precision = "fp32", batch_size: int | None = None) -> Tensor:
        """Images (B, C, H, W) in [-1, 1] → tokens (B, h, w), int64.

        `precision` is that of the trunk (fp32, tf32, fp16, bf16); the search is float32 in all of them. Tokens are for keeps,
        and another precision than fp32 moves some. Images go through `batch_size` at a time: by default, as many as keep the
        device busy and fit.
        """
        self.quantizer.require_codebook()
        self._check(images)

        def work(part: Tensor) -> Tensor:
            tokens = self._through(part, precision).tokens
            assert tokens is not None
            return tokens

        with self._inference(precision):
            return self._in_batches(work, images, batch_size, images.shape[-2:])

    def decode(self, tokens: Tensor, *, precision: Precision = "fp32", batch_size: int | None = None) -> Tensor:
        """Tokens (B, h, w) → images (B, C, H, W), in [-1, 1]. `precision` and `batch_size` as in `encode`."""
        self.quantizer.require_codebook()
        expected = 3 + (self.quantizer.config.heads > 1)
        if tokens.dim() != expected:
            shape = "(B, h, w)" if expected == 3 else "(B, h, w, heads)"
            raise ArcvqError(f"expected tokens {shape}, got shape {tuple(tokens.shape)}")
        size = torch.Size(side * self.downsampling for side in tokens.shape[1:3])

        def work(part: Tensor) -> Tensor:
            return self._images(self.quantizer.decode(part.to(self.device)).to(self.dtype), precision)

        with self._inference(precision):
            return self._in_batches(work, tokens, batch_size, size)

    def reconstruct(self, images: Tensor, *, precision: Precision = "fp32", batch_size: int | None = None) -> Tensor:
        """Images → tokens → images: what is left after the bottleneck, in [-1, 1]. `precision` and `batch_size` as in `encode`."""
        self._check(images)

        def work(part: Tensor) -> Tensor:
            return self._images(self._through(part, precision).quantized, precision)

        with self._inference(precision):
            return self._in_batches(work, images, batch_size, images.shape[-2:])

    def speed_up(self, *, compile: bool = False, channels_last: bool = False) -> Tokenizer:
        """For many images: `torch.compile` the trunk, and lay its weights out with the channels last. Changes this module in place."""
        if channels_last:
            self.to(memory_format=torch.channels_last)
        if compile:
            for part in self._convolutions():
                part.compile()
        return self

    def latents(self, images: Tensor) -> Tensor:
        """Images → latents (B, D, h, w), before quantization."""
        self._check(images)
        return self.encoder(images.to(self.device, self.dtype))

    def quantize(self, latents: Tensor) -> Quantized:
        return self.quantizer(latents)

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Latents (B, D, h, w), as a prior makes them, are quantized first, then decoded: images in [-1, 1]."""
        return self.to_images(self.quantize(latents).quantized).clamp(-1, 1)

    def to_images(self, quantized: Tensor) -> Tensor:
        """Quantized latents (B, D, h, w) → images, not clamped."""
        return self.decoder(quantized)

    def batch_size(self, height: int, width: int) -> int:
        """How many images of this size `encode` and `decode` take at a time unless told."""
        return images_at_once(height, width, self.trunk.width, self.device)

    def _through(self, images: Tensor, precision: Precision) -> Quantized:
        with trunk_precision(precision, self.device):
            latents = self.latents(images)
        return self.quantize(latents.to(self.dtype))

    def _images(self, quantized: Tensor, precision: Precision) -> Tensor:
        with trunk_precision(precision, self.device):
            images = self.to_images(quantized)
        return images.to(self.dtype).clamp(-1, 1)

    def _in_batches(
        self, work: Callable[[Tensor], Tensor], whole: Tensor, batch_size: int | None, size: torch.Size
    ) -> Tensor:
        if batch_size is not None and batch_size < 1:
            raise ArcvqError(f"batch_size must be at least 1, got {batch_size}")
        parts = whole.split(batch_size or self.batch_size(*size))
        return work(whole) if len(parts) < 2 else torch.cat([work(part) for part in parts])

    def _convolutions(self) -> list[nn.Module]:
        """All of the trunk: what lies outside quantizers."""
        return [self.encoder, self.decoder]

    @contextmanager
    def _inference(self, precision: str) -> Iterator[None]:
        """Without gradient, without the losses of training, and in float32 but for the trunk."""
        check_precision(precision, self.device)
        was_training = self.quantizer.training
        self.quantizer.eval()
        try:
            with torch.no_grad(), plain_float32(next(self.parameters())):
                yield
        finally:
            self.quantizer.train(was_training)

    def tokens_per_image(self, height: int, width: int) -> int:
        """How many tokens an image of this size becomes; 0 when the bottleneck is continuous."""
        positions = (height // self.downsampling) * (width // self.downsampling)
        return 0 if self.quantizer.codebook is None else positions * self.quantizer.config.heads

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    # ---- files ----------------------------------------------------------------------------------------------------------

    def to_config(self) -> dict[str, Any]:
        """All that `config.json` holds: enough to build the same module again, and no code."""
        return {
            "format": FORMAT,
            "system": self.system,
            "channels": self.channels,
            "image_size": list(self.image_size) if self.image_size else None,
            "tokenizer": to_dict(self.trunk),
            "quantizer_name": quantizer_name(self.quantizer),
            "quantizer": to_dict(self.quantizer.config),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Tokenizer:
        if config.get("format") != FORMAT:
            raise ArcvqError(f"not an arcvq tokenizer: its format is {config.get('format')!r}, expected {FORMAT!r}")
        for key in config:
            if key not in KEYS:
                raise ArcvqError(f"unknown key {key!r}{nearest(key, KEYS)}")
        for key, (kinds, expected) in KEYS.items():
            if type(config.get(key)) not in kinds:
                raise ArcvqError(f"{key}: expected {expected}, got {config.get(key)!r:.60}")
        size = config.get("image_size")
        if size is not None and not (
            len(size) == 2 and all(type(side) is int and 0 < side <= LARGEST for side in size)
        ):
            raise ArcvqError(f"image_size: expected a height and a width from 1 to {LARGEST}, got {size!r:.60}")
        trunk_name = config["tokenizer"].get("trunk", "small")
        if str(trunk_name) not in TRUNKS:
            raise ArcvqError(f"unknown trunk {trunk_name!r}{nearest(str(trunk_name), TRUNKS)}")
        trunk = parse(TRUNKS[trunk_name][0], config["tokenizer"], "tokenizer")
        quantizer = build_quantizer(config["quantizer_name"], trunk.latent_dim, config["quantizer"])
        return tokenizer_class(trunk_name)(
            config["channels"],
            trunk,
            quantizer,
            image_size=tuple(size) if size else None,
            system=config.get("system"),
        )

    def save_pretrained(self, directory: str | Path, *, notes: dict[str, Any] | None = None) -> Path:
        """config.json, model.safetensors and a card (README.md), all or nothing; an older save there is replaced."""
        directory = Path(directory)
        others = (
            sorted(path.name for path in directory.iterdir() if path.name not in FILES) if directory.is_dir() else []
        )
        if others:
            raise ArcvqError(f"{directory}: holds other things ({others[0]}): save into a folder of its own")
        with writing(directory) as folder:
            write_json(folder / "config.json", self.to_config())
            write_tensors(folder / "model.safetensors", self.state_dict())
            write_bytes(folder / "README.md", model_card(self, notes or {}).encode())
        return directory

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> Tokenizer:
        """From a folder, a run, the name of an embedded tokenizer (`tiny`), or a repository on the Hugging Face Hub."""
        folder = _locate(source)
        config = read_json(folder / "config.json", "a saved tokenizer")
        try:
            with torch.device("meta"):  # takes no memory, however large the configuration says that it is
                planned = cls.from_config(config)
        except ArcvqError as error:
            raise ArcvqError(f"{folder / 'config.json'}: {error}") from None
        except (RuntimeError, OverflowError, TypeError) as error:  # what torch says to sizes that no tensor can have
            raise ArcvqError(
                f"{folder / 'config.json'}: too large to build ({' '.join(str(error).split())[:80]})"
            ) from None
        file = folder / "model.safetensors"
        tensors = read_tensors(file, "a saved tokenizer")
        _check_tensors(planned, tensors, file)
        tokenizer = cls.from_config(config)
        tokenizer.load_state_dict(tensors)
        return tokenizer.to(device).eval()

    def push_to_hub(self, repository: str, *, private: bool = False, notes: dict[str, Any] | None = None) -> str:
        """Upload to the Hugging Face Hub (log in first: `hf auth login`); returns the page's address."""
        import tempfile

        from huggingface_hub import HfApi

        api = HfApi()
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder) / "model", notes=notes)
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=Path(folder) / "model"))

    def _check(self, images: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ArcvqError(f"expected images (B, {self.channels}, H, W), got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ArcvqError(
                f"expected floating-point images in [-1, 1], got {images.dtype}: scale bytes with x / 127.5 - 1"
            )
        self.check_size(*images.shape[-2:])

    def check_size(self, height: int, width: int) -> None:
        if height % self.downsampling or width % self.downsampling or not height or not width:
            raise ArcvqError(f"image sides must be multiples of {self.downsampling}, got {height}×{width}")


def tokenizer_class(trunk: str) -> type[Tokenizer]:
    return CLASSES.get(trunk, Tokenizer)


def _locate(source: str | Path) -> Path:
    path = Path(source)
    for candidate in (path, path / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    if (path / "config.yaml").is_file() and (path / "checkpoints").is_dir():
        raise ArcvqError(
            f"{path}: its training has not ended, and there is no model yet: the same arcvq train command goes on"
        )
    if path.is_dir():
        raise ArcvqError(f"{path}: holds no tokenizer: neither config.json nor model/config.json is there")
    if path.exists():
        raise ArcvqError(f"{path}: is a file; expected the folder of a run or of a saved tokenizer")
    name = str(source)
    if name in EMBEDDED:
        return Path(str(files("arcvq.tokenizers") / "embedded" / name))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    embedded = ", ".join(EMBEDDED)
    raise ArcvqError(
        f"{name}: no such run or model: expected a folder, an embedded tokenizer ({embedded}) or a Hub id owner/name"
    )


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "model.safetensors"]))
    except (OSError, HFValidationError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ArcvqError(f"{name}: no such folder, and it could not be had from the Hub ({reason})") from None


def _check_tensors(planned: Tokenizer, tensors: dict[str, Tensor], file: Path) -> None:
    """Fail before a module is built if the file's tensors are not those that `planned` (on the meta device) has, or are not finite."""
    expected = planned.state_dict()
    missing, foreign = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    wrong = [name for name in expected.keys() & tensors.keys() if expected[name].shape != tensors[name].shape]
    if missing or foreign or wrong:
        parts = [
            f"{len(names)} {what} (e.g. {names[0]})"
            for what, names in (("missing", missing), ("foreign", foreign), ("of the wrong shape", sorted(wrong)))
            if names
        ]
        raise ArcvqError(f"{file}: does not fit its config.json: tensors {', '.join(parts)}")
    for name, buffer in planned.named_buffers():  # those that follow from the configuration are in no file
        if name not in expected and buffer.numel() > LARGEST_BUFFER:
            raise ArcvqError(f"{file.parent / 'config.json'}: {name} would have {buffer.numel():,} numbers: too large")
    for name, tensor in sorted(tensors.items()):
        if not tensor.isfinite().all():
            raise ArcvqError(f"{file}: {name} holds NaN or infinite numbers: the training it comes from has diverged")
