"""Token shards: the same bytes whatever happened on the way, and back to the images."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from torch import Tensor

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import read_image, to_uint8, to_unit, write_png
from arcvq.data.shard_index import INDEX, open_index
from arcvq.data.shard_writer import ShardOptions, ShardWriter, write_shards
from arcvq.data.tokens import HEADER, TokenShards
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.tokenizers import token_shards
from arcvq.tokenizers.token_shards import decode_shards, encode_shards, is_shards

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)
COUNT = 11
CHUNK = 4


def make_tokenizer(seed: int = 0, codebook_size: int = 32) -> Tokenizer:
    torch.manual_seed(seed)
    quantizer = VQ(8, codebook_size, init="normal")
    return Tokenizer(SmallAutoencoder(1, SMALL), quantizer, image_size=(28, 28)).eval()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_shards, "CHUNK_IMAGES", CHUNK)


@pytest.fixture
def shards(tmp_path: Path, sample_pixels: Tensor) -> Path:
    """COUNT images in three shards, in two classes."""
    for i, pixels in enumerate(sample_pixels[:COUNT]):
        write_png(tmp_path / "photos" / "ab"[i // 6] / f"{i:02d}.png", pixels)
    write_shards(tmp_path / "photos", tmp_path / "shards", ShardOptions(size=28, format="png", shard_size=16_000))
    assert len(list((tmp_path / "shards").glob("*.tar"))) == 3
    return tmp_path / "shards"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def error_of(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ArcvqError) as raised:
        call(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_tokens_equal_those_of_padded_chunks(shards: Path, tmp_path: Path, sample_pixels: Tensor) -> None:
    tokenizer = make_tokenizer()
    result = encode_shards(tokenizer, f"shards:{shards}", tmp_path / "out")
    assert (result.images, result.shards, result.kept, result.grid) == (COUNT, 3, 0, (7, 7))
    tokens = TokenShards(tmp_path / "out")
    assert (len(tokens), tokens.keys) == (COUNT, [f"{i:06d}" for i in range(COUNT)])
    assert tokens.labels is not None
    assert tokens.labels.tolist() == [0] * 6 + [1] * 5
    assert tokens.class_names == ["a", "b"]
    expected, index = [], open_index(shards)
    for shard in range(3):  # a chunk does not reach into the next shard
        images = sample_pixels[:COUNT][torch.from_numpy(index.fields["shard"]) == shard]
        for chunk in images.split(CHUNK):
            padded = torch.cat([chunk, torch.zeros(CHUNK - len(chunk), 1, 28, 28, dtype=torch.uint8)])
            expected.append(tokenizer.encode(to_unit(padded))[: len(chunk)])
    assert torch.equal(tokens.gather(torch.arange(COUNT)), torch.cat(expected))
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tokens.gather(order), torch.cat(expected)[order])
    assert tokens.gather(torch.arange(0)).shape == (0, 7, 7)


def test_header_says_how_tokens_were_made(shards: Path, tmp_path: Path) -> None:
    encode_shards(make_tokenizer(), shards, tmp_path / "out")
    header = json.loads((tmp_path / "out" / HEADER).read_text())
    assert header["grid"] == [7, 7]
    assert (header["codebook_size"], header["dtype"], header["chunk"]) == (32, "uint16", CHUNK)
    assert header["source"] == [{"name": p.name, "bytes": p.stat().st_size} for p in sorted(shards.glob("*.tar"))]
    assert TokenShards(tmp_path / "out").header.to_json() == header
    encode_shards(make_tokenizer(seed=1), shards, tmp_path / "other")
    other = json.loads((tmp_path / "other" / HEADER).read_text())
    assert {name for name in header if header[name] != other[name]} == {"codebook", "tokenizer"}


def test_large_codebook_gives_int32(shards: Path, tmp_path: Path) -> None:
    encode_shards(make_tokenizer(codebook_size=2**16 + 1), shards, tmp_path / "out")
    tokens = TokenShards(tmp_path / "out")
    assert tokens.header.dtype == "int32"
    assert tokens.gather(torch.arange(2)).max() < 2**16 + 1


def test_webdataset_reads_token_shards(shards: Path, tmp_path: Path) -> None:
    encode_shards(make_tokenizer(), shards, tmp_path / "out")
    files = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    samples = list(webdataset.WebDataset(files, shardshuffle=False))
    tokens = TokenShards(tmp_path / "out")
    assert [sample["__key__"] for sample in samples] == tokens.keys
    assert [int(sample["cls"]) for sample in samples] == tokens.labels.tolist()  # type: ignore[union-attr]
    grids = np.stack([np.load(io.BytesIO(sample["npy"])) for sample in samples])
    assert grids.dtype == np.uint16
    assert torch.equal(torch.from_numpy(grids.astype(np.int64)), tokens.gather(torch.arange(COUNT)))


@pytest.mark.parametrize("shard", [1, 2])
def test_interrupted_encoding_goes_on_to_the_same_bytes(shards: Path, tmp_path: Path, shard: int) -> None:
    tokenizer = make_tokenizer()
    encode_shards(tokenizer, shards, tmp_path / "whole")
    index = open_index(shards)
    finished = int((index.fields["shard"] < shard).sum())

    def stop(done: int, total: int) -> None:
        if done == finished:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_shards(tokenizer, shards, tmp_path / "out", progress=stop)
    assert "the token shards are not finished" in error_of(TokenShards, tmp_path / "out")
    kept = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.tar")}
    assert len(kept) == shard
    (tmp_path / "out" / ".images-000002.tar.1.tmp").write_bytes(b"half")
    assert encode_shards(tokenizer, shards, tmp_path / "out").kept == shard
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert encode_shards(tokenizer, shards, tmp_path / "out").kept == 3
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_killed_encoding_goes_on_to_the_same_bytes(shards: Path, tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from arcvq.tokenizers import Tokenizer, token_shards
token_shards.CHUNK_IMAGES = 4
write = token_shards.write_bytes
def write_then_die(path, data):
    write(path, data)
    if path.name.endswith("1.tar"):
        os.kill(os.getpid(), signal.SIGKILL)
token_shards.write_bytes = write_then_die
token_shards.encode_shards(Tokenizer.from_pretrained("tiny"), sys.argv[1], Path(sys.argv[2]))
"""
    done = subprocess.run([sys.executable, "-c", code, shards, tmp_path / "out"], check=False)
    assert done.returncode == -signal.SIGKILL
    tiny = Tokenizer.from_pretrained("tiny")
    assert encode_shards(tiny, shards, tmp_path / "out").kept == 2
    encode_shards(tiny, shards, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_another_tokenizer_or_source_is_refused(shards: Path, tmp_path: Path) -> None:
    encode_shards(make_tokenizer(), shards, tmp_path / "out")
    before = contents(tmp_path / "out")
    assert "made with another codebook: choose another --out" in error_of(
        encode_shards, make_tokenizer(seed=1), shards, tmp_path / "out"
    )
    with ShardWriter(shards, "more", 1 << 20) as writer:
        writer.add("x", {"png": (tmp_path / "photos" / "a" / "00.png").read_bytes()})
    assert "made with another source" in error_of(encode_shards, make_tokenizer(), shards, tmp_path / "out")
    assert "exists and does not hold token shards" in error_of(encode_shards, make_tokenizer(), shards, shards)
    assert contents(tmp_path / "out") == before


def test_unreadable_images_stop_or_are_left_out(shards: Path, tmp_path: Path, sample_pixels: Tensor) -> None:
    with ShardWriter(tmp_path / "bad", "bad", 1 << 20) as writer:
        for i in range(6):
            content = (tmp_path / "photos" / "a" / f"{i % 6:02d}.png").read_bytes()
            writer.add(f"{i}", {"png": content[: len(content) // 2] if i == 2 else b"" if i == 5 else content})
    tokenizer = make_tokenizer()
    message = error_of(encode_shards, tokenizer, tmp_path / "bad", tmp_path / "out")
    assert "bad-000000.tar/2" in message
    assert "or give --on-error skip" in message
    result = encode_shards(tokenizer, tmp_path / "bad", tmp_path / "out", skip_unreadable=True)
    assert [Path(name).name for name in result.skipped] == ["2", "5"]
    assert TokenShards(tmp_path / "out").keys == ["0", "1", "3", "4"]
    again = encode_shards(tokenizer, tmp_path / "bad", tmp_path / "out", skip_unreadable=True)
    assert (again.skipped, again.images) == (result.skipped, 4)


def test_decoded_shards_are_the_reconstructions(shards: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    encode_shards(tokenizer, shards, tmp_path / "out")
    paths = decode_shards(tokenizer, tmp_path / "out", tmp_path / "decoded", batch_size=3)
    assert [path.name for path in paths] == [f"{i:06d}.png" for i in range(COUNT)]
    expected = to_uint8(tokenizer.decode(TokenShards(tmp_path / "out").gather(torch.arange(COUNT))))
    for path, pixels in zip(paths, expected, strict=True):
        assert (read_image(path, 1).int() - pixels.int()).abs().max() <= 1
    assert "made with another codebook" in error_of(
        decode_shards, make_tokenizer(seed=1), tmp_path / "out", tmp_path / "no"
    )


def test_split_folders_are_encoded_and_decoded_apart(tmp_path: Path, sample_pixels: Tensor) -> None:
    for split, numbers in (("train", range(3)), ("val", range(3, 5))):
        for i in numbers:
            write_png(tmp_path / "photos" / split / f"{i}.png", sample_pixels[i])
    write_shards(tmp_path / "photos", tmp_path / "shards", ShardOptions(size=28, format="png"))
    tokenizer = make_tokenizer()
    assert is_shards(tmp_path / "shards")
    assert encode_shards(tokenizer, tmp_path / "shards", tmp_path / "out").images == 5
    assert len(TokenShards(tmp_path / "out" / "train")) == 3
    paths = decode_shards(tokenizer, tmp_path / "out", tmp_path / "decoded")
    assert [path.relative_to(tmp_path / "decoded").as_posix() for path in paths] == [
        "train/000000.png", "train/000001.png", "train/000002.png", "val/000000.png", "val/000001.png",
    ]  # fmt: skip


def test_damaged_token_shards_are_refused(shards: Path, tmp_path: Path) -> None:
    encode_shards(make_tokenizer(), shards, tmp_path / "out")
    whole = contents(tmp_path / "out")

    def refusal(name: str, content: bytes | None) -> str:
        path = tmp_path / "out" / name
        path.unlink() if content is None else path.write_bytes(content)
        message = error_of(lambda: TokenShards(tmp_path / "out").gather(torch.arange(COUNT)))
        path.write_bytes(whole[name])
        return message

    header = json.loads(whole[HEADER])
    assert "missing or changed" in refusal("images-000001.tar", None)
    assert "missing or changed" in refusal("images-000001.tar", whole["images-000001.tar"][:-512])
    assert "not finished" in refusal(INDEX, None)
    assert "not a folder of token shards" in refusal(HEADER, None)
    assert "not a header" in refusal(HEADER, b'{"format": "arcvq-tokens-0"}')
    assert "not a header" in refusal(HEADER, b'{"format": "arcvq-tokens-1"}')
    assert "not a token grid of shape [70, 70]" in refusal(HEADER, json.dumps({**header, "grid": [70, 70]}).encode())
    assert "no grid of tokens" in refusal(HEADER, json.dumps({**header, "grid": [0, 7]}).encode())
    assert "unknown dtype 'float64'" in refusal(HEADER, json.dumps({**header, "dtype": "float64"}).encode())
    assert "has tokens outside 0 to 1" in refusal(HEADER, json.dumps({**header, "codebook_size": 2}).encode())
