"""Train a prior over the tokens, or latents, of a finished tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.data.source import Batch, Source
from arcvq.data.value_source import ValueSource
from arcvq.errors import ArcvqError
from arcvq.priors import Generator, Noise, Prior
from arcvq.quantizers import ResidualVQ
from arcvq.storage import read_json, write_json
from arcvq.tasks.task import StepOutput, Task, sum_of_terms
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.saving import model_fingerprint

# Images that give a prior what it must know of the values before training, beside the counts of all tokens.
INIT_IMAGES = 2048
COUNTED_TOGETHER = 4096
EVALUATION_CHUNK = 64
# The file of a run folder that says which tokenizer and classes the run began with.
ORIGIN = "tokenizer.json"


class PriorTask(Task):
    """One network, `prior`. The tokenizer is only saved beside it: its tokens come with the source.

    A prior with soft targets learns from latents, for which a copy of the tokenizer's quantizer draws tokens in each step.
    """

    def __init__(
        self,
        prior: Prior,
        tokenizer: Tokenizer,
        *,
        class_names: Sequence[str] | None = None,
        system: str | None = None,
        seed: int = 0,
    ) -> None:
        self.temperature = prior.config.soft_temperature
        if self.temperature is not None:
            check_soft_targets(tokenizer)
        super().__init__(
            {"prior": prior}, {} if self.temperature is None else {"quantizer": copy.deepcopy(tokenizer.quantizer)}
        )
        self.tokenizer, self.system, self.seed = tokenizer, system, seed
        self.class_names = None if class_names is None else list(class_names)
        self.headline, self.selection = (prior.metric,), prior.metric

    @property
    def prior(self) -> Prior:
        """The prior that learns, or its average during an evaluation."""
        prior = self.networks["prior"]
        assert isinstance(prior, Prior)
        return prior

    def prepare(self, source: Source) -> None:
        values = values_of(source)
        chosen = torch.randperm(values.length, generator=torch.Generator().manual_seed(self.seed))[:INIT_IMAGES]
        self.prior.init_from_values(values.gather(chosen.to(values.values.device))["values"].to(self.prior.device))
        if self.prior.models == "tokens":
            parts = (part for each in values.values for part in each.split(COUNTED_TOGETHER))
            if self.temperature is not None:
                parts = (self.quantizer.encode(part.float().to(self.prior.device)) for part in parts)
            self.prior.count_tokens(parts)

    @property
    def quantizer(self) -> ResidualVQ:
        """The copy that draws tokens, with soft targets."""
        quantizer = self.frozen["quantizer"]
        assert isinstance(quantizer, ResidualVQ)
        return quantizer

    def loss(
        self, name: str, network: nn.Module, batch: Batch, shared: Mapping[str, Any], phase: Hashable
    ) -> StepOutput:
        weight = distributed.batch_weight(batch["values"])
        if self.temperature is None:
            terms = network(batch["values"], batch.get("label"))
        else:
            terms = network(*self.draw(batch))
        return sum_of_terms({key: weight * term for key, term in terms.items()})

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor]:
        """Tokens of a batch of latents, its labels, and the probabilities that the tokens were drawn from."""
        assert self.temperature is not None
        tokens, targets = self.quantizer.draw(batch["values"], self.temperature)
        if self.quantizer.depth == 1:
            tokens = tokens.squeeze(-1)
        return tokens, batch.get("label"), targets

    def after_step(self, name: str, updates: Sequence[Any], phase: Hashable) -> None:
        self.prior.after_step()

    def evaluate(self, source: Source, folder: Path | None, step: int) -> dict[str, Any]:
        """The prior's metric, e.g. bits per token, on the values of the evaluation images. At step 0 the run folder gets ORIGIN."""
        prior, values = self.prior, values_of(source)
        if folder is not None and step == 0:
            write_json(folder / ORIGIN, origin(self.tokenizer, self.class_names))
        was_training = prior.training
        prior.eval()
        found = []
        try:
            for index in torch.arange(values.length).split(EVALUATION_CHUNK):
                batch = values.gather(index.to(values.values.device))
                noise = Noise(self.seed, index.tolist(), prior.device)
                found.append(prior.evaluate(batch["values"], batch.get("label"), noise).double())
        finally:
            prior.train(was_training)
        return {prior.metric: torch.cat(found).mean().item()}

    def init_from(self, source: str) -> None:
        """Load the weights of the prior of a run or a saved generator. Step counts stay at 0."""
        generator = Generator.from_pretrained(source)
        if model_fingerprint(generator.tokenizer) != model_fingerprint(self.tokenizer):
            raise ArcvqError(
                f"training.init_from: the prior in {source} was trained on another tokenizer: give --tokenizer {source}, or "
                "leave init_from out"
            )
        own, given = self.prior.state_dict(), generator.prior.state_dict()
        if {name: each.shape for name, each in own.items()} != {name: each.shape for name, each in given.items()}:
            raise ArcvqError(f"training.init_from: the prior in {source} does not fit this configuration")
        self.prior.load_state_dict(given | {name: own[name] for name in own if name == "step"})

    def save(self, folder: Path, notes: dict[str, Any]) -> None:
        """Save prior and tokenizer for `Generator.from_pretrained`; `notes` are for the model card."""
        generator = Generator(self.prior, self.tokenizer, class_names=self.class_names, system=self.system)
        generator.save_pretrained(folder, notes=notes)

    def facts(self, source: Source) -> dict[str, str]:
        return {self.prior.models: self.prior.shape_text, "classes": str(self.prior.grid.classes or "none")}


def check_soft_targets(tokenizer: Tokenizer) -> None:
    """Raise unless soft targets can be drawn from this tokenizer's latents."""
    if not isinstance(tokenizer.quantizer, ResidualVQ):
        raise ArcvqError(
            "prior.soft_targets needs a tokenizer with residual codes (quantizer.kind residual): leave soft_targets out"
        )
    tokenizer.quantizer.check_draw()


def origin(tokenizer: Tokenizer, class_names: Sequence[str] | None) -> dict[str, Any]:
    """What a run must find again when it goes on, beside its settings and the number of images."""
    return {
        "tokenizer": model_fingerprint(tokenizer),
        "class_names": None if class_names is None else list(class_names),
    }


def check_origin(run: Path, tokenizer: Tokenizer, class_names: Sequence[str] | None) -> None:
    """Raise if the run in this folder began with another tokenizer, or with other classes."""
    if not (run / ORIGIN).is_file():
        return
    there, here = read_json(run / ORIGIN, "a prior's run"), origin(tokenizer, class_names)
    if there.get("tokenizer") != here["tokenizer"]:
        raise ArcvqError(f"{run}: began with another tokenizer: bring that one back, or choose another --out")
    if there.get("class_names") != here["class_names"]:
        raise ArcvqError(f"{run}: began with other class names: bring the data back, or choose another --out")


def values_of(source: Source) -> ValueSource:
    """The source, if it is one of tokens or latents; an error for any other."""
    if not isinstance(source, ValueSource):
        raise ArcvqError(
            f"{source.name}: a prior is trained on tokens or latents, and this source holds something else"
        )
    return source
