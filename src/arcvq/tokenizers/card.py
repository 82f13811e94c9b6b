"""The model card of a saved tokenizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arcvq.tokenizers.tokenizer import Tokenizer

# What is known of the terms of data sets that are loaded by name.
FASHION_TERMS = "Fashion-MNIST, MIT licence"
UNKNOWN_TERMS = "see the data set's own terms"
DATA_TERMS = {
    "sample": FASHION_TERMS,
    "fashion-mnist": FASHION_TERMS,
    **dict.fromkeys(("mnist", "cifar10", "photos"), UNKNOWN_TERMS),
}


def note_rows(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a card that `notes` give: a data set of files by its folder's name alone, and at the end the terms of the data.

    The terms are the note `data_terms`; without it, what is known of the data set.
    """
    rows = {name: value for name, value in notes.items() if name != "data_terms"}
    data = str(notes.get("data", ""))
    kind, _, path = data.partition(":")
    if kind in ("folder", "shards") and path:
        shown = f"{kind}:{Path(path).name}"
        rows = {name: each.replace(data, shown) if isinstance(each, str) else each for name, each in rows.items()}
    terms = notes.get("data_terms") or DATA_TERMS.get(data)
    return {**rows, "data terms": terms} if terms else rows


def model_card(tokenizer: Tokenizer, notes: Mapping[str, Any]) -> str:
    """The model card in Markdown with the Hub's header. `notes` are extra rows: data set, steps, metrics with protocol."""
    quantizer = tokenizer.quantizer
    codes = "no codes"
    if quantizer.codebook is not None:
        several = f"{quantizer.codebooks} codebooks of " if quantizer.codebooks > 1 else ""
        codes = f"{several}{quantizer.config.codebook_size} codes of width {quantizer.code_dim}"
    rows: dict[str, Any] = {
        "system": tokenizer.system or "not recorded",
        "quantizer": f"{type(quantizer).__name__}, {codes}",
        "parameters": f"{sum(p.numel() for p in tokenizer.parameters()):,}",
        "downsampling": f"{tokenizer.downsampling}×",
        "channels": tokenizer.channels,
    }
    if tokenizer.image_size:
        height, width = tokenizer.image_size
        rows["image size"] = f"{height}×{width}"
        if quantizer.codebook is not None:
            tokens = tokenizer.tokens_per_image(height, width)
            rows["tokens per image"] = tokens
            rows["bits per image"] = f"{tokens * math.log2(quantizer.config.codebook_size):.0f}"
    rows.update(note_rows(notes))
    summary = "Images to discrete tokens and back."
    usage = "tokens = tokenizer.encode(images)\nimages = tokenizer.decode(tokens)"
    if quantizer.codebook is None:
        summary, usage = "Images through a continuous bottleneck and back.", "images = tokenizer.reconstruct(images)"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
library_name: arcvq
tags: [image-tokenizer, vector-quantization, arcvq]
---
# {tokenizer.system or "arcvq"} tokenizer

{summary} Images are float tensors (B, {tokenizer.channels}, H, W) in [-1, 1].

```python
from arcvq import Tokenizer

tokenizer = Tokenizer.from_pretrained("PATH_OR_HUB_ID")
{usage}
```

| | |
|---|---|
{table}
"""
