from pathlib import Path

import pytest

from arcvq.sweep import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "runs", tmp_path / "results", tmp_path / "models")
