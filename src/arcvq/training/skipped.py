"""The list of images that a training could not read and that others stand in for."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from accelerate.utils import gather_object

from arcvq import distributed
from arcvq.data.source import Source
from arcvq.storage import read_text, write_bytes


class SkippedImages:
    """Keeps skipped.jsonl: a line for each image that a source of this training could not read, on any process."""

    def __init__(self, file: Path, sources: Sequence[Source]) -> None:
        self.file = file
        self.sources = [source for source in sources if source.skipped is not None]
        self.known: dict[str, str] | None = None  # what the file lists, once it is read

    def write(self) -> None:
        """Add what is new to the file, on the first process, with a warning. All processes must call it."""
        if not self.sources:
            return
        parts = gather_object([dict(source.skipped or {}) for source in self.sources])
        if distributed.rank() != 0:
            return
        self.known = self._read() if self.known is None else self.known
        found = dict(self.known)
        for part in parts:
            found |= part
        if found != self.known:
            lines = [json.dumps({"image": image, "reason": reason}) + "\n" for image, reason in sorted(found.items())]
            write_bytes(self.file, "".join(lines).encode())
            warnings.warn(
                f"{len(found)} images cannot be read, others stand in for them: see {self.file}", stacklevel=2
            )
            self.known = found

    def summary(self) -> dict[str, int]:
        """The count for training.json, if images may be skipped at all."""
        return {"skipped_images": len(self.known or {})} if self.sources else {}

    def _read(self) -> dict[str, str]:
        """What the file lists: a resumed training goes on with it."""
        if not self.file.is_file():
            return {}
        lines = [json.loads(line) for line in read_text(self.file).splitlines()]
        return {line["image"]: line["reason"] for line in lines}
