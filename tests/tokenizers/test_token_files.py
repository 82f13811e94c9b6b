"""Encoding image files to token files, and decoding them."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import read_image, write_png
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.tokenizers.files import (
    decode_tokens,
    encode_files,
    find_images,
    output_paths,
    reconstruct_files,
    safe_path,
    unique_names,
)
from arcvq.tokenizers.token_file import Tokens

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)


def make_tokenizer(channels: int = 1, image_size: tuple[int, int] | None = (28, 28)) -> Tokenizer:
    torch.manual_seed(0)
    quantizer = VQ(8, 32, init="normal")
    return Tokenizer(SmallAutoencoder(channels, SMALL), quantizer, image_size=image_size).eval()


@pytest.fixture
def folder(tmp_path: Path, sample_pixels: Tensor) -> Path:
    for i, pixels in enumerate(sample_pixels):
        write_png(tmp_path / "images" / f"image-{i:02d}.png", pixels)
    return tmp_path / "images"


def error_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(ArcvqError) as raised:
        call(*arguments)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_saved_tokens_load_unchanged(tmp_path: Path) -> None:
    tokens = Tokens(torch.randint(0, 512, (3, 7, 7)), ["a", "größer", "b c"], "0123456789abcdef")
    tokens.save(tmp_path / "tokens.npz")
    loaded = Tokens.load(tmp_path / "tokens.npz")
    assert torch.equal(loaded.tokens, tokens.tokens)
    assert loaded.tokens.dtype == torch.int64
    assert loaded.names == tokens.names
    assert loaded.codebook == tokens.codebook


@pytest.mark.parametrize(("largest", "dtype"), [(511, np.uint16), (2**16 - 1, np.uint16), (2**16, np.uint32)])
def test_tokens_are_saved_in_smallest_integer_type(tmp_path: Path, largest: int, dtype: type[np.integer[Any]]) -> None:
    tokens = torch.tensor([[[0, largest]]])
    Tokens(tokens, ["a"]).save(tmp_path / "tokens.npz")
    with np.load(tmp_path / "tokens.npz", allow_pickle=False) as archive:
        assert archive["tokens"].dtype == dtype
    assert torch.equal(Tokens.load(tmp_path / "tokens.npz").tokens, tokens)


def test_token_file_without_names_is_numbered(tmp_path: Path) -> None:
    np.savez(tmp_path / "tokens.npz", tokens=np.zeros((2, 7, 7), dtype=np.int16))
    assert Tokens.load(tmp_path / "tokens.npz").names == ["000000", "000001"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"codes": np.zeros((1, 7, 7), int)}, "holds no array called tokens"),
        ({"tokens": np.zeros((1, 7, 7))}, "tokens must be integers, got float64"),
        ({"tokens": np.zeros((7, 7), int)}, "expected tokens (n, h, w), got shape (7, 7)"),
        ({"tokens": np.zeros((0, 7, 7), int)}, "expected tokens (n, h, w), got shape (0, 7, 7)"),
        ({"tokens": np.zeros((1, 0, 7), int)}, "expected tokens (n, h, w), got shape (1, 0, 7)"),
        ({"tokens": np.zeros((2, 7, 7), int), "names": np.array(["a"])}, "has 2 token grids but 1 names"),
        ({"tokens": np.zeros((2, 7, 7), int), "names": np.array("a")}, "has 2 token grids but 1 names"),
    ],
)
def test_wrong_arrays_are_refused_in_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "tokens.npz"
    np.savez(path, **arrays)
    assert error_of(Tokens.load, path).startswith(f"{path}: {message}")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 truncated"])
def test_damaged_token_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.npz"
    path.write_bytes(content)
    assert error_of(Tokens.load, path).startswith(f"{path}: not a readable .npz token file")


def test_truncated_missing_and_folder_token_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npz"
    Tokens(torch.zeros(1, 7, 7, dtype=torch.int64), ["a"]).save(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "not a readable .npz token file" in error_of(Tokens.load, path)
    assert "not a readable .npz token file" in error_of(Tokens.load, tmp_path)
    assert error_of(Tokens.load, tmp_path / "none.npz") == f"{tmp_path / 'none.npz'}: no such token file"


def forge_size(path: Path, size: int) -> None:
    """Change the unpacked size of each file in the archive's directory to `size`."""
    content = bytearray(path.read_bytes())
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        content[at + 24 : at + 28] = size.to_bytes(4, "little")
        at = content.find(b"PK\x01\x02", at + 1)
    path.write_bytes(content)


def test_token_file_of_gigabytes_unpacked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npz"
    np.savez_compressed(path, tokens=np.zeros((1, 7, 7), np.uint16))
    forge_size(path, 3 << 30)
    assert "holds 3.0 GiB when unpacked" in error_of(Tokens.load, path)


@pytest.mark.parametrize("shape", [(1, 2**15, 2**15), (1, 2**40, 2**20)])
def test_token_file_with_false_size_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path, header = tmp_path / "tokens.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tokens.npy", header.getvalue() + bytes(1 << 20))
    forge_size(path, 1000)
    assert "not a readable .npz token file" in error_of(Tokens.load, path)


class Executes:
    """Its unpickling creates a file."""

    def __init__(self, executed: Path) -> None:
        self.executed = executed

    def __reduce__(self) -> Any:
        return Path.touch, (self.executed,)


def test_pickled_token_file_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    path, executed = tmp_path / "tokens.npz", tmp_path / "executed"
    np.savez(path, tokens=np.array([Executes(executed)], dtype=object))
    assert "not a readable .npz token file" in error_of(Tokens.load, path)
    path.write_bytes(pickle.dumps(Executes(executed)))
    assert "not a readable .npz token file" in error_of(Tokens.load, path)
    assert not executed.exists()


def test_decoded_token_files_equal_reconstructions(folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    encode_files(tokenizer, [folder]).save(tmp_path / "tokens.npz")
    tokens = Tokens.load(tmp_path / "tokens.npz")
    rebuilt = reconstruct_files(tokenizer, [folder], tmp_path / "rebuilt", batch_size=5)
    decoded = decode_tokens(tokenizer, tokens, tmp_path / "decoded", batch_size=7)
    assert tokens.names == [path.name for path in rebuilt] == [f"image-{i:02d}.png" for i in range(12)]
    assert [path.read_bytes() for path in decoded] == [path.read_bytes() for path in rebuilt]
    assert len(torch.unique(tokens.tokens)) > 1


def test_tokens_of_another_codebook_are_refused(folder: Path, tmp_path: Path) -> None:
    made_by, other = make_tokenizer(), make_tokenizer()
    with torch.no_grad():
        other.quantizer.codebook[3, 1] += 1e-6
    tokens = encode_files(made_by, [folder])
    tokens.save(tmp_path / "tokens.npz")
    loaded = Tokens.load(tmp_path / "tokens.npz")
    assert "made with another codebook" in error_of(decode_tokens, other, loaded, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(decode_tokens(made_by, loaded, tmp_path / "out")) == 12
    # Without a fingerprint, any tokenizer decodes the tokens.
    assert len(decode_tokens(other, Tokens(loaded.tokens, loaded.names), tmp_path / "out")) == 12


def test_token_out_of_range_writes_no_image(tmp_path: Path) -> None:
    tokens = torch.zeros(5, 7, 7, dtype=torch.int64)
    tokens[4, 3, 3] = 32
    message = error_of(lambda: decode_tokens(make_tokenizer(), Tokens(tokens, list("abcde")), tmp_path, batch_size=2))
    assert "token 32 is out of range" in message
    assert list(tmp_path.iterdir()) == []


def test_many_images_are_encoded_in_batches(folder: Path) -> None:
    tokenizer = make_tokenizer()
    once, often = encode_files(tokenizer, [folder]), encode_files(tokenizer, [folder] * 6)
    assert torch.equal(often.tokens, once.tokens.repeat(6, 1, 1))
    assert len(set(often.names)) == 72


def test_batch_size_and_precision_reach_tokenizer(folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    seen: list[tuple[int, bool]] = []
    for part in (tokenizer.autoencoder.encoder, tokenizer.autoencoder.decoder):
        part.register_forward_pre_hook(
            lambda _, inputs: seen.append((len(inputs[0]), torch.is_autocast_enabled("cpu")))
        )
    tokens = encode_files(tokenizer, [folder], batch_size=5, precision="bf16")
    decode_tokens(tokenizer, tokens, tmp_path / "out", batch_size=7, precision="fp32")
    assert seen == [(5, True), (5, True), (2, True), (7, False), (5, False)]
    assert "unknown precision" in error_of(lambda: encode_files(tokenizer, ["none.png"], precision="fp8"))


def test_files_are_read_one_batch_ahead_and_written_per_batch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path, channels: int, size: Any) -> Tensor:
        read.append(path)
        return read_image(path, channels, size)

    monkeypatch.setattr("arcvq.tokenizers.image_batches.read_image", counted)
    seen: list[tuple[int, int, bool, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total, len(read) <= done + 3, len(list(tmp_path.glob("out/*")))))

    reconstruct_files(make_tokenizer(), [folder], tmp_path / "out", batch_size=3, progress=progress)
    assert seen == [(done, 12, True, done) for done in (3, 6, 9, 12)]


def test_progress_counts_images(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options: dict[str, Any] = {"batch_size": 5, "progress": lambda *counts: seen.append(counts)}
    tokens = encode_files(make_tokenizer(), [folder], **options)
    decode_tokens(make_tokenizer(), tokens, tmp_path / "out", **options)
    assert seen == 2 * [(5, 12), (10, 12), (12, 12)]


def test_unreadable_image_error_names_it_and_keeps_written_images(folder: Path, tmp_path: Path) -> None:
    (folder / "image-07.png").write_bytes(b"no image")
    (folder / "image-11.png").write_bytes(b"no image")
    options: dict[str, Any] = {"batch_size": 3}
    for call in (
        lambda: encode_files(make_tokenizer(), [folder], **options),
        lambda: reconstruct_files(make_tokenizer(), [folder], tmp_path / "out", **options),
    ):
        message = error_of(call)
        assert "image-07.png (not an image)" in message
        assert "--on-error skip" in message
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"image-{i:02d}.png" for i in range(6)]


def test_skipped_images_are_listed_with_reason(folder: Path, tmp_path: Path) -> None:
    whole = encode_files(make_tokenizer(), [folder])
    bad = [3, 4, 5, 11]
    for i in bad:
        (folder / f"image-{i:02d}.png").write_bytes(b"no image")
    skipped: dict[str, str] = {}
    tokens = encode_files(make_tokenizer(), [folder], batch_size=3, skipped=skipped)
    assert skipped == {f"image-{i:02d}.png": "not an image" for i in bad}
    good = [i for i in range(12) if i not in bad]
    assert torch.equal(tokens.tokens, whole.tokens[good])
    assert tokens.names == [f"image-{i:02d}.png" for i in good]
    written = reconstruct_files(make_tokenizer(), [folder], tmp_path / "out", skipped={})
    assert [path.name for path in written] == tokens.names


def test_folder_without_readable_image_is_an_error(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"no image")
    message = error_of(lambda: encode_files(make_tokenizer(), [tmp_path], batch_size=1, skipped={}))
    assert "none of the 2 images can be read" in message
    assert "a.png (not an image)" in message


def test_images_are_converted_to_tokenizer_size_and_channels(tmp_path: Path) -> None:
    Image.new("RGB", (90, 60), (200, 30, 30)).save(tmp_path / "photo.jpg")
    assert encode_files(make_tokenizer(), [tmp_path / "photo.jpg"]).tokens.shape == (1, 7, 7)
    (made,) = reconstruct_files(make_tokenizer(3), [tmp_path / "photo.jpg"], tmp_path / "out")
    assert (Image.open(made).mode, Image.open(made).size) == ("RGB", (28, 28))


def test_images_are_fitted_to_non_square_size(tmp_path: Path) -> None:
    Image.new("L", (90, 60)).save(tmp_path / "photo.png")
    Image.new("L", (64, 32)).save(tmp_path / "wide.png")
    tokens = encode_files(make_tokenizer(image_size=(32, 64)), [tmp_path / "photo.png", tmp_path / "wide.png"])
    assert tokens.tokens.shape == (2, 8, 16)


def test_find_images_lists_files_and_sorted_folders(folder: Path, tmp_path: Path) -> None:
    (folder / "deeper").mkdir()
    (folder / "image-00.png").rename(folder / "deeper" / "Z.PNG")
    (folder / "notes.txt").write_text("no image")
    found = find_images([folder / "image-05.png", folder])
    assert list(found)[:3] == ["image-05.png", "deeper/Z.PNG", "image-01.png"]
    assert list(found.values())[:2] == [folder / "image-05.png", folder / "deeper" / "Z.PNG"]
    assert len(found) == 13


def test_missing_images_and_empty_folders_are_named(tmp_path: Path) -> None:
    assert error_of(find_images, [tmp_path / "none.png"]) == f"{tmp_path / 'none.png'}: no such image"
    assert error_of(find_images, [tmp_path]).startswith(f"no images in {tmp_path}; expected files ending in .bmp")


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a-2", "a-3"]),
        (["a", "a", "a-2"], ["a", "a-3", "a-2"]),
        (["a-2", "a", "a"], ["a-2", "a", "a-3"]),
        (["x/a.png", "x/a.png"], ["x/a.png", "x/a-2.png"]),
    ],
)
def test_unique_names_numbers_duplicates(names: list[str], unique: list[str]) -> None:
    assert unique_names(names) == unique


def test_numbering_many_equal_names_takes_linear_time() -> None:
    """A quadratic search takes minutes here."""
    names = unique_names(["a.png"] * 40_000)
    assert names[-1] == "a-40000.png"
    assert len(set(names)) == 40_000


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("image-01", "image-01.png"),
        ("cat/a.JPG", "cat/a.png"),
        ("cat/v1.5", "cat/v1.5.png"),
        ("../../etc/passwd", "etc/passwd.png"),
        ("/absolute", "absolute.png"),
        ("a/.../b", "a/image/b.png"),
        ("C:\\\\x", "C___x.png"),
        ("..", "image.png"),
        ("", "image.png"),
        ("nul\0and\nline", "nul_and_line.png"),
    ],
)
def test_safe_path_stays_inside_folder(name: str, safe: str) -> None:
    assert safe_path(name) == safe


def test_equal_safe_names_get_own_files(tmp_path: Path) -> None:
    tokens = torch.arange(3).view(3, 1, 1).expand(3, 7, 7)
    paths = decode_tokens(make_tokenizer(), Tokens(tokens, ["a/b", "a_b", "../a_b"]), tmp_path / "out", batch_size=1)
    assert paths == [tmp_path / "out" / name for name in ("a/b.png", "a_b.png", "a_b-2.png")]
    assert sorted((tmp_path / "out").rglob("*.png")) == sorted(paths)
    assert len({path.read_bytes() for path in paths}) == 3


def test_output_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'}: is a file" in error_of(output_paths, tmp_path / "file" / "out", ["a"])
