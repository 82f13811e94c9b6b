"""The chunked backends, and the entropy of signs, never allocate the N × K scores, forward or backward."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from arcvq.functional import arc_loss, assign, chunks, entropy_loss, entropy_statistics, sign_entropy_statistics

TOKENS, CODES, WIDTH = 4096, 256, 4
SCORES = TOKENS * CODES * 4  # bytes of the whole float32 score matrix: 4 MiB
BLOCK = 2**14  # scores held at once: 64 KiB


def largest_allocation(work: Callable[[], object]) -> int:
    """The largest single allocation in bytes, with those inside opaque operators."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        work()
    return max(event.nbytes() for event in recording.profiler.kineto_results.events() if event.name() == "[memory]")


def run_assign(backend: str) -> None:
    assign(torch.randn(TOKENS, WIDTH), torch.randn(CODES, WIDTH), backend=backend)


def run_arc_loss(backend: str) -> None:
    latents = torch.randn(TOKENS, WIDTH, requires_grad=True)
    codebook = torch.randn(CODES, WIDTH, requires_grad=True)
    arc_loss(latents, codebook, backend=backend, stop_gradient=False, valid=torch.rand(TOKENS) > 0.1).backward()


def run_entropy_loss(backend: str) -> None:
    latents = torch.randn(TOKENS, WIDTH, requires_grad=True)
    codebook = torch.randn(CODES, WIDTH, requires_grad=True)
    entropy_loss(*entropy_statistics(latents, codebook, backend=backend), TOKENS).backward()


@pytest.mark.parametrize("work", [run_assign, run_arc_loss, run_entropy_loss])
def test_chunked_allocates_one_block_and_reference_all_scores(
    work: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", BLOCK)
    assert largest_allocation(lambda: work("reference")) >= SCORES
    # the block itself with a spare column; the latents and the codes' own top k are smaller
    assert largest_allocation(lambda: work("chunked")) <= 4 * (BLOCK + CODES) < SCORES / 50


def test_sign_entropy_does_not_allocate_all_scores() -> None:
    """2^18 codes as in MAGVIT-v2: the largest tensors are the tokens' probabilities of half of the signs, and one number per code."""
    tokens, bits = 1024, 18

    def work() -> None:
        latents = torch.randn(tokens, bits, requires_grad=True)
        entropy_loss(*sign_entropy_statistics(latents, 1.0), tokens).backward()

    assert largest_allocation(work) <= 4 * max(tokens * 2 ** (bits // 2), 2**bits)


@pytest.mark.parametrize("codes", [1, 7, 100, 5000])
def test_token_blocks_cover_all_tokens_within_budget(codes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", 1000)
    blocks = list(chunks.token_blocks(torch.empty(321, 2), torch.empty(codes, 2)))
    assert [i for block in blocks for i in range(321)[block]] == list(range(321))
    assert blocks[-1].stop == 321
    assert all((block.stop - block.start) * codes <= max(1000, codes) for block in blocks)


@pytest.mark.parametrize("codes", [1, 7, 100, 149, 151, 5001])
def test_code_blocks_cover_all_codes_and_none_is_small(codes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunks.BLOCK_CODES, "cpu", 100)
    blocks = list(chunks.code_blocks(torch.empty(codes, 2)))
    assert [i for block in blocks for i in range(codes)[block]] == list(range(codes))
    assert all(min(50, codes) <= block.stop - block.start <= 150 for block in blocks)


def test_large_codebook_is_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of few tokens with all codes would be as large as the codebook."""
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", 2**12)
    monkeypatch.setitem(chunks.BLOCK_CODES, "cpu", 2**7)
    latents, codebook = torch.randn(64, 2), torch.randn(2**14, 2)
    assert largest_allocation(lambda: assign(latents, codebook, backend="chunked")) <= 4 * codebook.numel()
