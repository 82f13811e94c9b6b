"""What a tokenizer starts from: another one's weights, or latents of its untrained encoder."""

from __future__ import annotations

import torch

from arcvq.data import Images, to_unit
from arcvq.errors import ArcvqError
from arcvq.tokenizers import Tokenizer

START_IMAGES = 2048


def init_from(tokenizer: Tokenizer, source: str) -> None:
    """Load the weights, codes and running statistics of a run or a saved tokenizer. Step counts stay at 0."""
    own, given = tokenizer.state_dict(), Tokenizer.from_pretrained(source).state_dict()
    for name in dict.fromkeys([*own, *given]):
        kind = name.rsplit(".", 1)[-1]
        if kind == "step":
            given[name] = own[name]
        elif kind == "started":  # a k-means start has nothing left to do
            given.pop(name, None)
            if name in own:
                given[name] = own[name].new_ones(())
        elif name not in own or name not in given:
            where = "there" if name in given else "here"
            raise ArcvqError(f"training.init_from: {source} does not fit this configuration: only {where} is a {name}")
        elif own[name].shape != given[name].shape:
            raise ArcvqError(
                f"training.init_from: {source} does not fit this configuration: {name} has the shape {tuple(given[name].shape)} "
                f"there and {tuple(own[name].shape)} here"
            )
    tokenizer.load_state_dict(given)


def start_codebook(tokenizer: Tokenizer, images: Images, seed: int) -> None:
    """Place the codes of a quantizer that starts from latents (k-means)."""
    if not tokenizer.quantizer.starts_from_latents:
        return
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:START_IMAGES]
    with torch.no_grad():
        parts = [tokenizer.latents(to_unit(images.gather(part))) for part in chosen.split(256)]
    tokenizer.quantizer.start_from_(torch.cat(parts), seed=seed)
