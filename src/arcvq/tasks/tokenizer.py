"""Train a tokenizer: reconstruct images through its quantizer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.data import Images, ImageSource, to_unit
from arcvq.data.source import Batch, Source
from arcvq.errors import ArcvqError
from arcvq.nets import Decoded
from arcvq.nets.dfvqgan import hide_defects
from arcvq.objectives import Objective
from arcvq.quantizers import ProjectedVQ, Quantized, Quantizer
from arcvq.tasks.codebook import codebook_state, save_codebook
from arcvq.tasks.features import init_codebook_from_features
from arcvq.tasks.masks import MasksConfig, draw_masks
from arcvq.tasks.parameters import check_prefixes, matches_prefix
from arcvq.tasks.phase import Phase
from arcvq.tasks.reconstructor import Reconstructor
from arcvq.tasks.task import StepOutput, Task, memory_format, sum_of_terms
from arcvq.tokenizers import Tokenizer

# How many images give the latents that a codebook is initialized from.
INIT_IMAGES = 2048
EVALUATED = ("l1", "mse", "psnr", "usage", "perplexity")


class TokenizerTask(Task):
    """One network, `tokenizer`. Its loss is the objective's plus the quantizer's.

    objective  gives the terms of a reconstruction by name; one that is a module is among the task's `frozen`
    stages     (steps, beginnings of the names of the parameters that learn) for each stage of the training; none: all, always
    masks      of defective regions that are drawn for each image, for an autoencoder that takes masks
    autocast   precision of an objective's networks, e.g. torch.bfloat16; None: float32
    continuous_steps  steps at the start in which the decoder gets the latents themselves, and the quantizer does not learn
    """

    headline = ("usage", "perplexity", "psnr")
    selection = "mse"

    def __init__(
        self,
        tokenizer: Tokenizer,
        objective: Objective,
        *,
        stages: Sequence[tuple[int, Sequence[str]]] = (),
        seed: int = 0,
        continuous_steps: int = 0,
        autocast: torch.dtype | None = None,
        masks: MasksConfig | None = None,
    ) -> None:
        super().__init__(
            {"tokenizer": tokenizer}, {"objective": objective} if isinstance(objective, nn.Module) else None
        )
        self.objective, self.stages, self.seed = objective, list(stages), seed
        self.channels = tokenizer.channels
        self.continuous_steps, self.autocast, self.masks = continuous_steps, autocast, masks
        if masks is not None and not tokenizer.autoencoder.takes_mask:
            raise ArcvqError(f"masks: {type(tokenizer.autoencoder).__name__} takes none: leave them out")
        self.init_images: Images | None = None  # whose latents a codebook starts from after a continuous start
        self._check_stages(tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that learns, or its average during an evaluation."""
        tokenizer = self.networks["tokenizer"]
        assert isinstance(tokenizer, Tokenizer)
        return tokenizer

    def phase(self, step: int) -> Phase:
        """The stage, and whether the quantizer is on."""
        ends = accumulate(steps for steps, _ in self.stages)
        stage = next((i for i, end in enumerate(ends) if step < end), max(0, len(self.stages) - 1))
        return Phase(stage, quantized=step >= self.continuous_steps)

    def trained(self, phase: Hashable) -> dict[str, Sequence[str]]:
        assert isinstance(phase, Phase)
        prefixes = self.stages[phase.stage][1] if self.stages else ()
        if not phase.quantized:
            prefixes = [name for name in prefixes or ["autoencoder"] if not matches_prefix(name, ["quantizer"])]
        return {"tokenizer": prefixes}

    def begin_phase(self, phase: Hashable) -> None:
        """Freeze the codebooks that this phase does not train: no gradient, restart, bound or running mean changes them.

        When the quantizer joins after a continuous start, a codebook that starts from latents is initialized.
        """
        assert isinstance(phase, Phase)
        prefixes = self.trained(phase)["tokenizer"]
        for name, quantizer in named_quantizers(self.tokenizer):
            learns = quantizer.codebook is not None and quantizer.codebook.requires_grad
            quantizer.frozen = not (learns or matches_prefix(f"{name}.codebook", prefixes))
        if phase.quantized and self.continuous_steps and self.init_images is not None:
            self._init_codebook(self.init_images)

    def prepare(self, source: Source) -> None:
        """Initialize a codebook of features, or one that starts from the latents of the untrained encoder."""
        quantizer = self.tokenizer.quantizer
        if isinstance(quantizer, ProjectedVQ) and quantizer.config.features is not None:
            init_codebook_from_features(
                quantizer, images_of(source), quantizer.config.features, self.tokenizer.device, self.seed
            )
        if not self.continuous_steps:
            self._init_codebook(images_of(source))

    def _init_codebook(self, images: Images) -> None:
        """Initialize a codebook that starts from latents and has not done so, on the encoder's latents of some images."""
        quantizer = self.tokenizer.quantizer
        if not quantizer.inits_from_latents or quantizer.step > 0 or bool(getattr(quantizer, "initialized", False)):
            return
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.seed))[:INIT_IMAGES]
        with torch.no_grad():
            size = max(1, min(256, 2**20 // (images.height * images.width)))  # images at a time
            latents = [self.tokenizer.latents(to_unit(images.gather(part))) for part in chosen.split(size)]
        quantizer.init_from_latents_(torch.cat(latents), seed=self.seed)

    def init_from(self, source: str) -> None:
        """Load the weights, codes and running statistics of a run or a saved tokenizer. Step counts stay at 0."""
        own, given = self.tokenizer.state_dict(), Tokenizer.from_pretrained(source).state_dict()
        refused = f"training.init_from: {source} does not fit this configuration"
        for name in dict.fromkeys([*own, *given]):
            kind = name.rsplit(".", 1)[-1]
            if kind == "step":
                given[name] = own[name]
            elif kind == "initialized":  # k-means has nothing left to do
                given.pop(name, None)
                if name in own:
                    given[name] = own[name].new_ones(())
            elif name not in own or name not in given:
                raise ArcvqError(f"{refused}: only {'there' if name in given else 'here'} is a {name}")
            elif own[name].shape != given[name].shape:
                shapes = f"{tuple(given[name].shape)} there and {tuple(own[name].shape)} here"
                raise ArcvqError(f"{refused}: {name} has the shape {shapes}")
        self.tokenizer.load_state_dict(given)

    def loss(
        self, name: str, network: nn.Module, batch: Batch, shared: Mapping[str, Any], phase: Hashable
    ) -> StepOutput:
        assert isinstance(phase, Phase)
        images = unit_images(batch)
        shown, options = self.forward_inputs(images, phase)
        decoded, quantized = network(shown, **options)
        terms = self.objective_terms(decoded, images, phase)
        return sum_of_terms(terms | losses_of(quantized), **quantizer_output(quantized))

    def objective_terms(self, decoded: Decoded, images: Tensor, phase: Phase) -> dict[str, Tensor]:
        """The objective's weighted terms by name, with its networks in the training's precision."""
        with torch.autocast(images.device.type, self.autocast, enabled=self.autocast is not None):
            return dict(self.objective(decoded.images, images, decoded.extra, phase.stage))

    def forward_inputs(self, images: Tensor, phase: Phase) -> tuple[Tensor, dict[str, Any]]:
        """What the tokenizer's forward pass gets in this phase: the images as the encoder sees them, and keyword arguments."""
        options: dict[str, Any] = {} if phase.quantized else {"quantize": False}
        if self.masks is None:
            return images, options
        mask, connected, hidden = draw_masks(images, self.masks)
        shown = hide_defects(images, mask & hidden.view(-1, 1, 1, 1))
        return shown, {**options, "mask": mask, "connected": connected}

    def after_step(self, name: str, updates: Sequence[Any], phase: Hashable) -> None:
        assert isinstance(phase, Phase)
        if phase.quantized:
            self.tokenizer.quantizer.after_step(*updates)

    def evaluate(self, source: Source, folder: Path | None, step: int) -> dict[str, Any]:
        """PSNR, error, usage and perplexity on the source; writes the codebook into the folder."""
        from arcvq.metrics import EXACT, evaluate

        tokenizer = self.tokenizer
        quantized = self.phase(max(0, step - 1)).quantized  # as in the last step
        was_training = tokenizer.training
        tokenizer.eval()
        reconstruct = Reconstructor(tokenizer, quantize=quantized)
        try:
            result = evaluate(
                reconstruct,
                images_of(source),
                protocol=EXACT,
                codebook=tokenizer.quantizer.codebook if quantized else None,
                device=tokenizer.device,
                metrics=EVALUATED,
            )
        finally:
            tokenizer.train(was_training)
        if not quantized:
            return {**result.metrics, **reconstruct.metrics}
        if folder is not None:
            save_codebook(folder / "codebooks", step, tokenizer.quantizer, result.counts)
        return {**result.metrics, **reconstruct.metrics, **codebook_state(tokenizer.quantizer)}

    def save(self, folder: Path, notes: dict[str, Any]) -> None:
        """Save the tokenizer for `Tokenizer.from_pretrained`; `notes` are for its model card."""
        self.tokenizer.save_pretrained(folder, notes=notes)

    def facts(self, source: Source) -> dict[str, str]:
        images = images_of(source)
        return {"tokens": f"{self.tokenizer.tokens_per_image(images.height, images.width)} per image"}

    @property
    def compile_options(self) -> dict[str, Any]:
        # With one channel, contiguous and channels-last strides look alike, and torch 2.11's layout pass was seen to guess wrong:
        # grey images do without it.
        return {"layout_optimization": self.channels > 1}

    @property
    def capture_blocker(self) -> str | None:
        blocking = [each for _, each in named_quantizers(self.tokenizer) if not each.capturable]
        return f"{type(blocking[0]).__name__} reads the host in its steps" if blocking else None

    def _check_stages(self, tokenizer: Tokenizer) -> None:
        """Fail if a stage names no parameter, or only parameters without a gradient."""
        parameters = [name for name, _ in tokenizer.named_parameters()]
        # A codebook may learn without a gradient, and then it is no parameter.
        codebooks = [f"{name}.codebook" for name, each in named_quantizers(tokenizer) if each.codebook is not None]
        for i, (_, prefixes) in enumerate(self.stages):
            where = f"training.stages[{i}].train"
            check_prefixes([*parameters, *codebooks], prefixes, where)
            if not any(matches_prefix(name, prefixes) for name in parameters):
                raise ArcvqError(f"{where}: nothing in {', '.join(prefixes)} learns by gradient")


def unit_images(batch: Batch) -> Tensor:
    """The batch's images as floats (b, C, H, W) in [-1, 1]."""
    return to_unit(batch["image"], memory_format(batch["image"].device))


def losses_of(quantized: Quantized | None) -> dict[str, Tensor]:
    """The quantizer's losses by name; none if it was off."""
    return {} if quantized is None else quantized.losses


def quantizer_output(quantized: Quantized | None) -> dict[str, Any]:
    """What a StepOutput says of the quantizer: statistics, the input of its update, the count of non-finite latents."""
    if quantized is None:
        return {}
    quantized = quantized.detach()
    stats = dict(quantized.stats)
    nonfinite = stats.pop("nonfinite")
    return {"stats": stats, "update": quantized, "nonfinite": nonfinite}


def named_quantizers(tokenizer: nn.Module) -> list[tuple[str, Quantizer]]:
    """Every quantizer in a module, with its dotted name."""
    return [(name, module) for name, module in tokenizer.named_modules() if isinstance(module, Quantizer)]


def images_of(source: Source) -> Images:
    """The images of an image source; an error for any other source."""
    if not isinstance(source, ImageSource):
        raise ArcvqError(f"{source.name}: a tokenizer is trained on images, and this source holds something else")
    return source.images
