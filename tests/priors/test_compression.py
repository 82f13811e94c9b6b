"""Compressed pictures decode to the same tokens, and nothing else decodes."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from every_prior import SMALL, kind_of, small_generator
from torch import Tensor

from arcvq import ArcvqError, Generator
from arcvq.priors import PRIORS, AutoregressivePrior, compression
from arcvq.priors.compression import MAGIC, Header, compress, decompress, decompress_tokens, picture_tokens
from arcvq.priors.entropy_coding import LEAST_PROBABILITY, encode_by_table, floored
from arcvq.priors.prior import FREQUENCY_TOTAL, whole_frequencies

OVER_TOKENS = [name for name in SMALL if PRIORS[kind_of(name)].models == "tokens"]
AUTOREGRESSIVE = [name for name in SMALL if issubclass(PRIORS[kind_of(name)], AutoregressivePrior)]


@pytest.fixture(scope="module")
def generator() -> Generator:
    return small_generator("gpt")


def picture(height: int = 12, width: int = 16, seed: int = 0) -> Tensor:
    return torch.rand(1, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize("size", [(12, 16), (4, 4), (24, 32), (13, 33), (1, 50)])
@pytest.mark.parametrize("mode", compression.MODES)
def test_picture_of_any_size_decodes_to_its_own_tokens(generator: Generator, mode: str, size: tuple[int, int]) -> None:
    pixels = picture(*size)
    content = compress(generator, pixels, mode=mode).content
    assert torch.equal(decompress_tokens(generator, content), picture_tokens(generator, pixels))
    assert decompress(generator, content).shape == pixels.shape


@pytest.mark.parametrize("name", OVER_TOKENS)
def test_every_prior_over_tokens_compresses_in_the_portable_mode(name: str) -> None:
    generator, pixels = small_generator(name), picture(20, 20)
    content = compress(generator, pixels).content
    assert torch.equal(decompress_tokens(generator, content), picture_tokens(generator, pixels))


@pytest.mark.parametrize("name", AUTOREGRESSIVE)
def test_bits_are_the_priors_cross_entropy(name: str) -> None:
    generator, pixels = small_generator(name), picture()
    found = compress(generator, pixels, mode="prior", label=1)
    tokens = picture_tokens(generator, pixels)
    grid = tokens.reshape(1, *generator.prior.grid.token_shape)
    bits = generator.prior.evaluate(grid, torch.tensor([1]), None) * tokens.numel()
    assert found.cross_entropy_bits == pytest.approx(bits.item(), rel=1e-4)
    assert found.payload_bits - 64 <= found.cross_entropy_bits <= found.payload_bits + 1


@pytest.mark.parametrize("name", [name for name in OVER_TOKENS if name not in AUTOREGRESSIVE])
def test_prior_without_probabilities_in_turn_is_refused_in_its_mode(name: str) -> None:
    with pytest.raises(ArcvqError, match="portable"):
        compress(small_generator(name), picture(), mode="prior")


@pytest.mark.parametrize("name", [name for name in SMALL if name not in OVER_TOKENS])
def test_prior_over_latents_is_refused(name: str) -> None:
    with pytest.raises(ArcvqError, match="over tokens"):
        compress(small_generator(name), picture())


def test_frequencies_are_whole_at_least_1_and_add_up() -> None:
    counts = torch.tensor([[0, 0, 0], [10, 0, 5], [10**9, 1, 0]])
    frequencies = whole_frequencies(counts)
    assert frequencies.dtype == torch.int32
    assert frequencies.min() >= 1
    assert frequencies.sum(1).tolist() == [FREQUENCY_TOTAL] * 3
    assert frequencies[1, 0] / frequencies[1, 2] == pytest.approx(2, rel=1e-5)


def test_table_codes_at_its_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 20_000, replacement=True, generator=generator)
    table = whole_frequencies(tokens.bincount()[None]).double() / FREQUENCY_TOTAL
    entropy = -(table * table.log2()).sum().item()
    assert 32 * len(encode_by_table(tokens[:, None], table)) / 20_000 == pytest.approx(entropy, rel=2e-3)


def test_probability_of_zero_is_raised_to_the_least() -> None:
    found = floored(torch.tensor([1.0, 0.0, 0.0]).double())
    assert found.min() == pytest.approx(LEAST_PROBABILITY, rel=1e-5)
    assert found.sum() == pytest.approx(1, abs=1e-12)


def test_number_of_threads_does_not_change_the_file(generator: Generator) -> None:
    content = compress(generator, picture(), mode="prior").content
    torch.set_num_threads(2)
    try:
        assert compress(generator, picture(), mode="prior").content == content
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_hundred_images_of_the_sample_come_back() -> None:
    from arcvq.data import load_images, to_unit

    generator = Generator.from_pretrained("tiny")
    pixels = load_images("sample", split="test", limit=100).gather(torch.arange(100))
    portable = 0
    for number, image in enumerate(to_unit(pixels)):
        found = compress(generator, image)
        portable += found.payload_bits
        assert torch.equal(decompress_tokens(generator, found.content), picture_tokens(generator, image))
        if number < 4:
            exact = compress(generator, image, mode="prior")
            assert torch.equal(decompress_tokens(generator, exact.content), picture_tokens(generator, image))
    assert portable / 100 < 49 * 8  # less than 8 bits for each of 49 tokens


def error_of(generator: Generator, content: bytes) -> str:
    with pytest.raises(ArcvqError) as raised:
        decompress(generator, content)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("mode", compression.MODES)
def test_damaged_file_is_refused_wherever_it_is_damaged(generator: Generator, mode: str) -> None:
    content = compress(generator, picture(12, 20), mode=mode).content
    for length in range(len(content)):
        error_of(generator, content[:length])
    error_of(generator, content + b"\0")
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        assert ("damaged" if bit >= 8 * len(MAGIC) else "not a picture compressed") in error_of(
            generator, bytes(damaged)
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a picture compressed"), (b"\x89PNG\r\n", "not a picture compressed"), (MAGIC, "truncated")],
)
def test_other_file_is_refused(generator: Generator, content: bytes, message: str) -> None:
    assert message in error_of(generator, content)


def test_file_of_another_model_is_refused(generator: Generator) -> None:
    content = compress(generator, picture()).content
    other = small_generator("gpt")
    with torch.no_grad():
        other.prior.head.bias[0] += 1e-4
    assert "another model" in error_of(other, content)


def with_header(content: bytes, **changes: object) -> bytes:
    """A file whose header says something else, with the right checksum."""
    header, end = Header.unpack(content)
    return replace(header, **changes).pack() + content[end:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"height": 2**31, "width": 2**31}, "not a file that arcvq writes"),
        ({"height": 0}, "not a file that arcvq writes"),
        ({"height": 1, "width": 2**28}, "they cannot fit"),
        ({"height": 2**14, "width": 2**14}, "they cannot fit"),
        ({"label": 3}, "class 3 is out of range"),
        ({"label": 2**32 - 2}, "out of range"),
    ],
)
def test_header_that_no_picture_has_is_refused_before_memory_is_taken(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], message: str
) -> None:
    content = with_header(compress(generator, picture()).content, **changes)
    monkeypatch.setattr(torch, "zeros", None)
    assert message in error_of(generator, content)


def test_text_of_a_header_stays_on_one_line(generator: Generator) -> None:
    content = with_header(compress(generator, picture()).content, writer="two\nlines\x1b[31m")
    assert Header.unpack(content)[0].writer == "two?lines?[31m"


@pytest.mark.parametrize("other", [False, True])
def test_machine_that_computes_other_probabilities_does_not_call_the_file_damaged(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    content = compress(generator, picture(seed=3), mode="prior").content
    written = compression.writer("prior")
    if other:
        written = "torch 1.0, ABACUS"
        content = with_header(content, writer=written)
        assert torch.equal(decompress_tokens(generator, content), picture_tokens(generator, picture(seed=3)))
    following = generator.prior.next_logits
    monkeypatch.setattr(generator.prior, "next_logits", lambda *a: following(*a) * 1.5)
    message = error_of(generator, content)
    assert f"other probabilities than the one that wrote the file ({written})" in message
    assert "portable" in message
    assert "damaged" not in message


def test_what_wrote_a_file_is_recorded(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "cpu_model", lambda: "Abacus 3")
    written = Header.unpack(compress(generator, picture(), mode="prior").content)[0].writer
    assert written.startswith(f"arcvq {version('arcvq')}, torch {torch.__version__}, ")
    assert ", Abacus 3, constriction " in written
    assert Header.unpack(compress(generator, picture()).content)[0].writer.startswith("constriction ")


def test_processor_has_a_short_name() -> None:
    assert 0 < len(compression.cpu_model()) <= 48


def test_probabilities_that_change_each_time_are_noticed(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    following, noise = generator.prior.next_logits, np.random.default_rng(0)
    monkeypatch.setattr(generator.prior, "next_logits", lambda *a: following(*a) * float(noise.uniform(0.5, 2)))
    with pytest.raises(ArcvqError, match="other probabilities each time"):
        compress(generator, picture(), mode="prior")


def test_unknown_mode_and_class_are_refused(generator: Generator) -> None:
    with pytest.raises(ArcvqError, match="portable, prior"):
        compress(generator, picture(), mode="zip")  # type: ignore[arg-type]
    with pytest.raises(ArcvqError, match="class 3"):
        compress(generator, picture(), label=3)


def test_missing_constriction_is_named(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "constriction", None)
    with pytest.raises(ArcvqError, match="pip install"):
        compress(generator, picture())


def test_files_stay_small(generator: Generator, tmp_path: Path) -> None:
    found = compress(generator, picture())
    assert len(found.content) < 64 + found.payload_bits // 8
