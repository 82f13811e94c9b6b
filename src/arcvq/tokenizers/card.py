"""The page that travels with a saved tokenizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arcvq.tokenizers.tokenizer import Tokenizer


def model_card(tokenizer: Tokenizer, notes: dict[str, Any]) -> str:
    """Markdown with the Hub's header. `notes` are extra rows: data set, steps, measured metrics with their protocol."""
    config = tokenizer.quantizer.config
    rows: dict[str, Any] = {
        "system": tokenizer.system or "not recorded",
        "quantizer": f"{type(tokenizer.quantizer).__name__}, {config.codebook_size} codes of width {tokenizer.quantizer.code_dim}",
        "parameters": f"{sum(p.numel() for p in tokenizer.parameters()):,}",
        "downsampling": f"{tokenizer.downsampling}×",
        "channels": tokenizer.channels,
    }
    if tokenizer.image_size:
        height, width = tokenizer.image_size
        tokens = (height // tokenizer.downsampling) * (width // tokenizer.downsampling) * config.heads
        rows["image size"] = f"{height}×{width}"
        rows["tokens per image"] = tokens
        rows["bits per image"] = f"{tokens * math.log2(config.codebook_size):.0f}"
    rows.update(notes)
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
library_name: arcvq
tags: [image-tokenizer, vector-quantization, arcvq]
---
# {tokenizer.system or "arcvq"} tokenizer

Images to discrete tokens and back. Images are float tensors (B, {tokenizer.channels}, H, W) in [-1, 1].

```python
from arcvq import Tokenizer

tokenizer = Tokenizer.from_pretrained("PATH_OR_HUB_ID")
tokens = tokenizer.encode(images)
images = tokenizer.decode(tokens)
```

| | |
|---|---|
{table}
"""
