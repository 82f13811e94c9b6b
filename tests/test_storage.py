"""Atomic writes of files and folders, and one-line errors for unreadable files."""

from pathlib import Path

import pytest
import torch

from arcvq.errors import ArcvqError
from arcvq.storage import (
    atomic_folder,
    check_writable_file,
    check_writable_folder,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)


def test_write_below_a_file_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    with pytest.raises(ArcvqError, match=r"page\.html: cannot be written") as raised:
        write_bytes(tmp_path / "file" / "page.html", b"page")
    assert "\n" not in str(raised.value)


def test_check_writable_refuses_missing_permission_and_files_as_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable_file(tmp_path / "new" / "result.json")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    for check in (check_writable_file, check_writable_folder):
        with pytest.raises(ArcvqError, match=r"new.*: no permission to write there"):
            check(tmp_path / "new" / "result.json")
    (tmp_path / "file").touch()
    with pytest.raises(ArcvqError, match=r"file: is a file; expected a folder"):
        check_writable_file(tmp_path / "file" / "result.json")


def test_failed_write_keeps_old_file(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    write_bytes(tmp_path / "page", b"old")
    request.getfixturevalue("full_disk")
    with pytest.raises(ArcvqError, match="page: the disk is full"):
        write_bytes(tmp_path / "page", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["page"]
    assert (tmp_path / "page").read_bytes() == b"old"


def test_atomic_folder_replaces_old_folder(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with atomic_folder(tmp_path / "model") as folder:
            (folder / name).write_text(name, encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["second"]


def test_failed_atomic_folder_keeps_old_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "old").touch()
    with pytest.raises(ArcvqError), atomic_folder(tmp_path / "model") as folder:
        (folder / "missing").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["old"]


@pytest.mark.usefixtures("full_disk")
def test_full_disk_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="model: the disk is full"), atomic_folder(tmp_path / "model") as folder:
        (folder / "part").write_text("x", encoding="utf-8")
    assert list(tmp_path.iterdir()) == []


def test_tensors_and_json_round_trip(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", {"a": torch.arange(6).view(2, 3).t()})
    write_json(tmp_path / "t.json", {"a": 1.5})
    assert torch.equal(read_tensors(tmp_path / "t.safetensors", "a test")["a"], torch.arange(6).view(2, 3).t())
    assert read_json(tmp_path / "t.json", "a test") == {"a": 1.5}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_unreadable_json_error_names_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(ArcvqError, match=r"state\.json: "):
        read_json(tmp_path / "state.json", "a test")


def test_truncated_tensors_error_names_file(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArcvqError, match=r"t\.safetensors: truncated"):
        read_tensors(path, "a test")


def test_write_json_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "t.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []
