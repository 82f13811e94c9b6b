"""Batches of tokens in several variants, and the cache of what a tokenizer makes of a set."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arcvq import ArcvqError, Tokenizer
from arcvq.data import InMemoryImages, load_images, to_unit, write_png
from arcvq.data.value_source import ValueSource
from arcvq.priors import GptConfig
from arcvq.storage import read_tensors, write_tensors
from arcvq.systems import PriorRunConfig, train
from arcvq.systems.config import DataConfig
from arcvq.tokenizers import value_cache
from arcvq.tokenizers.value_cache import Encoded, Variants, cached_values, encode_all
from arcvq.training import TrainingConfig


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pretrained("tiny")


@pytest.fixture
def images() -> InMemoryImages:
    torch.manual_seed(0)
    return InMemoryImages("noise", torch.randint(256, (10, 1, 32, 40), dtype=torch.uint8), torch.arange(10) % 4)


def source(variants: int = 3) -> ValueSource:
    values = torch.arange(variants * 7).reshape(variants, 7, 1, 1).expand(variants, 7, 2, 2).to(torch.int16)
    return ValueSource(values, torch.arange(7) % 3, batch_size=4, name="tokens")


def test_every_image_comes_once_an_epoch_in_a_variant_drawn_from_seed_epoch_and_index() -> None:
    values = source()
    drawn = values.batches(seed=1)
    epochs = [[next(drawn) for _ in range(2)] for _ in range(6)]
    for epoch in epochs:
        assert torch.cat([batch["index"] for batch in epoch]).sort().values.tolist() == list(range(7))
    variants = torch.cat([torch.cat([batch["variant"] for batch in epoch]) for epoch in epochs])
    assert set(variants.tolist()) == {0, 1, 2}
    again = next(values.batches(seed=1, first=5))
    assert all(torch.equal(again[key], epochs[2][1][key]) for key in again)
    assert not torch.equal(next(values.batches(seed=2))["index"], epochs[0][0]["index"])


def test_fetch_gives_the_values_of_index_and_variant_with_their_labels() -> None:
    batch = source().fetch({"index": torch.tensor([6, 2]), "variant": torch.tensor([0, 2])})
    assert batch["values"].dtype == torch.int64
    assert batch["values"][:, 0, 0].tolist() == [6, 16]
    assert batch["label"].tolist() == [0, 2]


def test_processes_share_a_batch() -> None:
    parts = [next(source().batches(seed=0, rank=rank, world=2)) for rank in range(2)]
    whole = next(source().batches(seed=0))
    assert all(torch.equal(torch.cat([part[key] for part in parts]), whole[key]) for key in whole)


@pytest.mark.parametrize("shape", [(3, 0, 2, 2), (7,)])
def test_source_without_images_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArcvqError, match="expected values"):
        ValueSource(torch.zeros(shape), None, 4, "nothing")


def test_variants_are_the_images_mirrored_and_cropped(tokenizer: Tokenizer, images: InMemoryImages) -> None:
    whole = encode_all(tokenizer, images, "tokens", Variants(flip=True)).values
    unit = to_unit(images.pixels)
    assert whole.dtype == torch.int16
    assert torch.equal(whole[0].long(), tokenizer.encode(unit))
    assert torch.equal(whole[1].long(), tokenizer.encode(unit.flip(-1)))
    crops = encode_all(tokenizer, images, "tokens", Variants(flip=True, crop=28, crops=2)).values
    assert crops.shape == (4, 10, 7, 7)
    assert len(crops.flatten(1).unique(dim=0)) == 4
    positions = {
        (top, left)
        for top in range(5)
        for left in range(13)
        if torch.equal(crops[0, 3].long(), tokenizer.encode(unit[3:4, :, top : top + 28, left : left + 28])[0])
    }
    assert len(positions) == 1


def test_crops_of_files_come_from_the_whole_image(tmp_path: Path) -> None:
    wide = torch.randint(0, 256, (3, 8, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    for split in ("train", "test"):
        write_png(tmp_path / split / "0.png", wide)
    images = load_images(f"folder:{tmp_path}", split="train", image_size=8, memory=0)
    crops = [pixels for pixels, _ in Variants(crop=8, crops=20).read(images, torch.tensor([0]))]
    found = {left for crop in crops for left in range(13) if torch.equal(crop[0], wide[:, :, left : left + 8])}
    assert len(crops) == 20
    assert len(found) > 5  # not the centre alone, which is all that image_size leaves


def test_latents_are_those_before_quantization(tokenizer: Tokenizer, images: InMemoryImages) -> None:
    latents = encode_all(tokenizer, images, "latents", Variants()).values
    assert latents.dtype == torch.float16
    with torch.no_grad():
        expected = tokenizer.latents(to_unit(images.pixels))
    torch.testing.assert_close(latents[0].float(), expected, rtol=1e-3, atol=1e-3)


def test_second_call_reads_the_cache(
    tokenizer: Tokenizer, images: InMemoryImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    values = cached_values(tokenizer, images, "tokens").values
    (file,) = (tmp_path / "tokens").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(value_cache, "encode_all", lambda *_: pytest.fail("encoded again"))
        assert torch.equal(cached_values(tokenizer, images, "tokens").values, values)
    file.write_bytes(file.read_bytes()[:100])  # a damaged cache is written anew
    assert torch.equal(cached_values(tokenizer, images, "tokens").values, values)
    assert torch.equal(cached_values(tokenizer, images, "tokens").values, values)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: replace(c, values=c.values[:, :5], used=c.used[:5]), id="fewer images"),
        pytest.param(lambda c: replace(c, values=c.values.repeat(2, 1, 1, 1)), id="more variants"),
        pytest.param(lambda c: replace(c, values=c.values[..., :-1]), id="another grid"),
        pytest.param(lambda c: replace(c, values=c.values.to(torch.int32)), id="another type"),
        pytest.param(lambda c: replace(c, values=c.values + 256), id="tokens beyond the codes"),
        pytest.param(lambda c: replace(c, values=c.values - 256), id="tokens below 0"),
        pytest.param(lambda c: replace(c, used=c.used + 1), id="images beyond the last"),
        pytest.param(lambda c: replace(c, skipped={"a.png": "torn"}), id="images skipped where none may be"),
    ],
)
def test_cache_that_holds_something_else_is_written_anew(
    change: Callable[[Encoded], Encoded],
    tokenizer: Tokenizer,
    images: InMemoryImages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    made = cached_values(tokenizer, images, "tokens")
    (file,) = (tmp_path / "tokens").iterdir()
    content = file.read_bytes()
    write_tensors(file, change(made).to_tensors())
    assert torch.equal(cached_values(tokenizer, images, "tokens").values, made.values)
    assert file.read_bytes() == content


def test_changed_value_does_not_match_the_checksum(
    tokenizer: Tokenizer, images: InMemoryImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    for kind in ("tokens", "latents"):
        made = cached_values(tokenizer, images, kind)
        (file,) = (tmp_path / kind).iterdir()
        tensors = made.to_tensors()
        tensors["values"] = tensors["values"].clone()
        tensors["values"][0, 3, 0, 0] = 1 + tensors["values"][0, 3, 0, 0]
        tensors["values"].clamp_(max=255)
        write_tensors(file, tensors)
        assert torch.equal(cached_values(tokenizer, images, kind).values, made.values)


def test_cache_is_read_once(
    tokenizer: Tokenizer, images: InMemoryImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    cached_values(tokenizer, images, "tokens")
    read: list[Path] = []
    monkeypatch.setattr(value_cache, "read_tensors", lambda path, what: read.append(path) or read_tensors(path, what))
    cached_values(tokenizer, images, "tokens")
    assert len(read) == 1


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
def test_skipped_images_have_the_labels_of_those_that_stand_in_and_stay_listed(
    memory: float, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "cache"))
    for index, name in enumerate("abc"):
        image = torch.randint(256, (1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        for split in ("train", "test"):
            write_png(tmp_path / split / name / "x.png", image)
    torn = tmp_path / "train" / "b" / "x.png"
    torn.write_bytes(torn.read_bytes()[:300])
    settings = {"name": f"folder:{tmp_path}", "on_error": "skip", "memory": memory, "batch_size": 3}
    config = PriorRunConfig(tokenizer="tiny", data=DataConfig(**settings))
    for _ in range(2):  # encoded, then read from the cache
        source, evaluation = config.load()
        assert source.labels is not None
        assert source.labels.tolist() == [0, 2, 2]
        assert torch.equal(source.values[0, 1], source.values[0, 2])
        assert source.classes == 3
        assert {Path(name): bool(reason) for name, reason in (source.skipped or {}).items()} == {torn: True}
        assert evaluation.skipped == {}
        assert (source.to(torch.device("cpu")).skipped or {}).keys() == {str(torn)}
    with pytest.raises(ArcvqError, match="cannot read"):
        replace(config, data=DataConfig(**{**settings, "on_error": "stop"})).load()


def test_cache_depends_on_tokenizer_images_variants_and_kind(
    tokenizer: Tokenizer, images: InMemoryImages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    other = Tokenizer.from_pretrained("tiny")
    with torch.no_grad():
        other.quantizer.codebook[0, 0] += 1e-3
    fewer = InMemoryImages("noise", images.pixels[:9])
    files = {
        value_cache.cache_file(tokenizer, images, "tokens", Variants()),
        value_cache.cache_file(other, images, "tokens", Variants()),
        value_cache.cache_file(tokenizer, fewer, "tokens", Variants()),
        value_cache.cache_file(tokenizer, images, "tokens", Variants(flip=True)),
        value_cache.cache_file(tokenizer, images, "tokens", Variants(crop=28)),
        value_cache.cache_file(tokenizer, images, "latents", Variants()),
    }
    assert len(files) == 6


def test_second_run_lists_the_images_that_were_skipped_when_the_cache_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "cache"))
    for split in ("train", "test"):
        for name in "ab":
            write_png(tmp_path / split / f"{name}.png", torch.randint(256, (1, 28, 28), dtype=torch.uint8))
    torn = tmp_path / "train" / "b.png"
    torn.write_bytes(torn.read_bytes()[:300])
    data = DataConfig(name=f"folder:{tmp_path}", on_error="skip", memory=0, batch_size=2)
    config = PriorRunConfig(
        tokenizer="tiny",
        data=data,
        prior=GptConfig(width=8, layers=1, heads=1),
        training=TrainingConfig(steps=1, evaluations=0, log_every=1),
    )
    for run in ("first", "second"):
        with pytest.warns(UserWarning, match="1 images cannot be read"):
            train(config, tmp_path / run, quiet=True)
        (line,) = map(json.loads, (tmp_path / run / "skipped.jsonl").read_text().splitlines())
        assert Path(line["image"]) == torn
        monkeypatch.setattr(value_cache, "encode_all", lambda *_: pytest.fail("encoded again"))


def test_crop_larger_than_the_images_is_refused(tokenizer: Tokenizer, images: InMemoryImages) -> None:
    with pytest.raises(ArcvqError, match=r"data\.crop is 33"):
        cached_values(tokenizer, images, "tokens", Variants(crop=33))
