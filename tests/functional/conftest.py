import pytest
import torch

from arcvq.functional import chunks


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Force the chunked backends to walk over many blocks: 40 scores, of 3 codes, at a time."""
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", 40)
    monkeypatch.setitem(chunks.BLOCK_CODES, "cpu", 3)
