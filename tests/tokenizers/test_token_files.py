"""Image files → token files → image files."""

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import write_png
from arcvq.tokenizers import SmallTrunkConfig
from arcvq.tokenizers.files import (
    Tokens,
    _read_ahead,
    decode_tokens,
    encode_files,
    image_paths,
    reconstruct_files,
    safe_path,
    unique_names,
    write_images,
)

TRUNK = SmallTrunkConfig(width=16, residual_width=8, latent_dim=8)


def make_tokenizer(channels: int = 1, image_size: tuple[int, int] | None = (28, 28)) -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(channels, TRUNK, VQ(8, 32, start="normal"), image_size=image_size).eval()


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


def test_tokens_on_disk_are_the_tokens_and_their_names(tmp_path: Path) -> None:
    tokens = Tokens(torch.randint(0, 512, (3, 7, 7)), ["a", "größer", "b c"], "0123456789abcdef")
    tokens.save(tmp_path / "tokens.npz")
    loaded = Tokens.load(tmp_path / "tokens.npz")
    assert torch.equal(loaded.tokens, tokens.tokens)
    assert loaded.tokens.dtype == torch.int64
    assert loaded.names == tokens.names
    assert loaded.codebook == tokens.codebook


@pytest.mark.parametrize(("largest", "dtype"), [(511, np.uint16), (2**16 - 1, np.uint16), (2**16, np.uint32)])
def test_tokens_take_the_smallest_whole_numbers_that_hold_them(
    tmp_path: Path, largest: int, dtype: type[np.integer[Any]]
) -> None:
    tokens = torch.tensor([[[0, largest]]])
    Tokens(tokens, ["a"]).save(tmp_path / "tokens.npz")
    with np.load(tmp_path / "tokens.npz", allow_pickle=False) as archive:
        assert archive["tokens"].dtype == dtype
    assert torch.equal(Tokens.load(tmp_path / "tokens.npz").tokens, tokens)


def test_a_file_without_names_is_numbered(tmp_path: Path) -> None:
    np.savez(tmp_path / "tokens.npz", tokens=np.zeros((2, 7, 7), dtype=np.int16))
    assert Tokens.load(tmp_path / "tokens.npz").names == ["000000", "000001"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"codes": np.zeros((1, 7, 7), int)}, "holds no array called tokens"),
        ({"tokens": np.zeros((1, 7, 7))}, "tokens must be whole numbers, got float64"),
        ({"tokens": np.zeros((7, 7), int)}, "expected tokens (n, h, w), got shape (7, 7)"),
        ({"tokens": np.zeros((0, 7, 7), int)}, "expected tokens (n, h, w), got shape (0, 7, 7)"),
        ({"tokens": np.zeros((1, 0, 7), int)}, "expected tokens (n, h, w), got shape (1, 0, 7)"),
        ({"tokens": np.zeros((2, 7, 7), int), "names": np.array(["a"])}, "has 2 token grids but 1 names"),
        ({"tokens": np.zeros((2, 7, 7), int), "names": np.array("a")}, "not a readable .npz token file"),
    ],
)
def test_an_archive_of_something_else_is_refused_in_one_line(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tokens.npz"
    np.savez(path, **arrays)
    assert error_of(Tokens.load, path).startswith(f"{path}: {message}")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 torn"])
def test_a_damaged_archive_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.npz"
    path.write_bytes(content)
    assert error_of(Tokens.load, path).startswith(f"{path}: not a readable .npz token file")


def test_a_torn_archive_a_folder_and_nothing_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npz"
    Tokens(torch.zeros(1, 7, 7, dtype=torch.int64), ["a"]).save(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "not a readable .npz token file" in error_of(Tokens.load, path)
    assert "not a readable .npz token file" in error_of(Tokens.load, tmp_path)
    assert error_of(Tokens.load, tmp_path / "none.npz") == f"{tmp_path / 'none.npz'}: no such token file"


class Executes:
    """An object whose unpickling makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


def test_a_pickle_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    path, proof = tmp_path / "tokens.npz", tmp_path / "executed"
    np.savez(path, tokens=np.array([Executes(proof)], dtype=object))
    assert "not a readable .npz token file" in error_of(Tokens.load, path)
    path.write_bytes(pickle.dumps(Executes(proof)))
    assert "not a readable .npz token file" in error_of(Tokens.load, path)
    assert not proof.exists()


def test_decoded_token_files_are_the_reconstructions(folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    encode_files(tokenizer, [folder]).save(tmp_path / "tokens.npz")
    pixels, names = reconstruct_files(tokenizer, [folder])
    tokens = Tokens.load(tmp_path / "tokens.npz")
    assert torch.equal(decode_tokens(tokenizer, tokens), pixels)
    assert tokens.names == names == [f"image-{i:02d}.png" for i in range(12)]
    assert pixels.dtype == torch.uint8
    assert len(torch.unique(tokens.tokens)) > 1


def test_tokens_of_another_codebook_are_refused(folder: Path, tmp_path: Path) -> None:
    made_by, other = make_tokenizer(), make_tokenizer()
    with torch.no_grad():
        other.quantizer.codebook[3, 1] += 1e-6
    tokens = encode_files(made_by, [folder])
    tokens.save(tmp_path / "tokens.npz")
    loaded = Tokens.load(tmp_path / "tokens.npz")
    assert "made with another codebook" in error_of(decode_tokens, other, loaded)
    assert decode_tokens(made_by, loaded).shape == (12, 1, 28, 28)
    decode_tokens(other, Tokens(loaded.tokens, loaded.names))  # a file that does not say is taken at its word


def test_many_images_go_in_several_batches(folder: Path) -> None:
    tokenizer = make_tokenizer()
    once, often = encode_files(tokenizer, [folder]), encode_files(tokenizer, [folder] * 6)
    assert torch.equal(often.tokens, once.tokens.repeat(6, 1, 1))
    assert len(set(often.names)) == 72


def test_the_size_of_a_batch_and_the_precision_reach_the_tokenizer(folder: Path) -> None:
    tokenizer = make_tokenizer()
    seen: list[tuple[int, bool]] = []
    for part in (tokenizer.encoder, tokenizer.decoder):
        part.register_forward_pre_hook(
            lambda _, inputs: seen.append((len(inputs[0]), torch.is_autocast_enabled("cpu")))
        )
    tokens = encode_files(tokenizer, [folder], batch_size=5, precision="bf16")
    decode_tokens(tokenizer, tokens, batch_size=7, precision="fp32")
    assert seen == [(5, True), (5, True), (2, True), (7, False), (5, False)]
    assert "unknown precision" in error_of(lambda: encode_files(tokenizer, ["none.png"], precision="fp8"))


def test_the_next_batch_is_read_while_one_is_in_work() -> None:
    read: list[int] = []
    parts = [[0, 1], [2, 3], [4, 5], [6]]
    for i, images in enumerate(_read_ahead(parts, lambda path: read.append(path) or torch.tensor(path))):
        assert torch.stack(images).tolist() == parts[i]
        ahead = sum(len(part) for part in parts[: i + 2])
        for _ in range(200):  # the threads read on by themselves, up to the next batch and no further
            if len(read) == ahead:
                break
            time.sleep(0.01)
        assert sorted(read) == list(range(ahead))


def test_a_damaged_image_in_a_later_batch_ends_the_reading(folder: Path) -> None:
    (folder / "image-07.png").write_bytes(b"no image")
    message = error_of(lambda: encode_files(make_tokenizer(), [folder], batch_size=3))
    assert "image-07.png" in message
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("arcvq-read")]


def test_images_come_at_the_tokenizers_size_and_channels(tmp_path: Path) -> None:
    Image.new("RGB", (90, 60), (200, 30, 30)).save(tmp_path / "photo.jpg")
    assert encode_files(make_tokenizer(), [tmp_path / "photo.jpg"]).tokens.shape == (1, 7, 7)
    assert reconstruct_files(make_tokenizer(3), [tmp_path / "photo.jpg"])[0].shape == (1, 3, 28, 28)


@pytest.mark.parametrize("image_size", [None, (32, 64)])
def test_a_tokenizer_without_one_square_size_takes_images_as_they_are(
    tmp_path: Path, image_size: tuple[int, int] | None
) -> None:
    Image.new("L", (64, 32)).save(tmp_path / "wide.png")
    tokenizer = make_tokenizer(image_size=image_size)
    assert encode_files(tokenizer, [tmp_path / "wide.png"]).tokens.shape == (1, 8, 16)
    Image.new("L", (32, 32)).save(tmp_path / "square.png")
    paths = [tmp_path / "wide.png"] * 64 + [tmp_path / "square.png"]
    assert "the images differ in size" in error_of(encode_files, tokenizer, paths)


def test_folders_give_their_images_in_order_and_files_come_as_given(folder: Path, tmp_path: Path) -> None:
    (folder / "deeper").mkdir()
    (folder / "image-00.png").rename(folder / "deeper" / "Z.PNG")
    (folder / "notes.txt").write_text("no image")
    found = image_paths([folder / "image-05.png", folder])
    assert list(found)[:3] == ["image-05.png", "deeper/Z.PNG", "image-01.png"]
    assert list(found.values())[:2] == [folder / "image-05.png", folder / "deeper" / "Z.PNG"]
    assert len(found) == 13


def test_missing_images_and_folders_without_any_are_named(tmp_path: Path) -> None:
    assert error_of(image_paths, [tmp_path / "none.png"]) == f"{tmp_path / 'none.png'}: no such image"
    assert error_of(image_paths, [tmp_path]).startswith(f"no images in {tmp_path}; expected files ending in .bmp")


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
def test_names_stay_apart(names: list[str], unique: list[str]) -> None:
    assert unique_names(names) == unique


def test_numbering_equal_names_asks_for_each_number_once() -> None:
    class Counted(str):
        tried = 0

        def __format__(self, _: str) -> str:
            Counted.tried += 1
            return str(self)

        def removesuffix(self, _: str) -> "Counted":
            return self

    assert unique_names([Counted("a")] * 500)[-1] == "a-500"
    assert Counted.tried < 500


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
def test_a_name_from_a_token_file_cannot_lead_out_of_the_folder(name: str, safe: str) -> None:
    assert safe_path(name) == safe


def test_images_whose_names_fall_together_are_all_written(tmp_path: Path, sample_pixels: Tensor) -> None:
    paths = write_images(tmp_path / "out", sample_pixels[:3], ["a/b", "a_b", "../a_b"])
    assert paths == [tmp_path / "out" / name for name in ("a/b.png", "a_b.png", "a_b-2.png")]
    assert sorted((tmp_path / "out").rglob("*.png")) == sorted(paths)
    for path, pixels in zip(paths, sample_pixels):
        assert np.array_equal(np.asarray(Image.open(path)), pixels[0].numpy())


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path, sample_pixels: Tensor) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "out"
    assert error_of(write_images, target, sample_pixels[:1], ["a"]) == (f"{target}: cannot be written: Not a directory")
