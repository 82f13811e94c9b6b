import pytest
import torch

from arcvq.functional import chunks


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the chunked backend use many small blocks: 40 scores, of 3 codes."""
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", 40)
    monkeypatch.setitem(chunks.BLOCK_CODES, "cpu", 3)
