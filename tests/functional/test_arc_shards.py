"""Statistics of shards, their merge and the finish give the ArcLoss of the whole batch, for any split of the tokens."""

import pytest
import torch

from arcvq.functional import arc_finish, arc_loss, arc_merge, arc_statistics

SCALE, MARGIN, TOP_K = 10.0, 0.2, 3
BACKENDS = ("reference", "chunked")
SPLITS = {
    "one": [24],
    "even": [8, 8, 8],
    "uneven": [1, 20, 3],
    "every token alone": [1] * 24,
    "smaller than top_k": [2, 1, 2, 19],
    "an empty one in the middle": [10, 0, 14],
    "an empty one first": [0, 24],
}


def sharded_loss(
    latents: torch.Tensor, codebook: torch.Tensor, sizes: list[int], backend: str, valid: torch.Tensor
) -> torch.Tensor:
    shards = [
        arc_statistics(part, codebook, scale=SCALE, top_k=TOP_K, backend=backend, stop_gradient=False, valid=mask)
        for part, mask in zip(latents.split(sizes), valid.split(sizes))
    ]
    return arc_finish(arc_merge(shards, SCALE), scale=SCALE, margin=MARGIN)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS.keys())
def test_merged_shards_equal_whole_batch(sizes: list[int], masked: bool, backend: str) -> None:
    valid = torch.rand(24) > 0.5 if masked else torch.ones(24, dtype=torch.bool)
    start, book = torch.randn(24, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    latents, codebook = start.clone().requires_grad_(), book.clone().requires_grad_()
    merged = sharded_loss(latents, codebook, sizes, backend, valid)
    merged.backward()
    whole_latents, whole_codebook = start.clone().requires_grad_(), book.clone().requires_grad_()
    whole = arc_loss(
        whole_latents, whole_codebook, SCALE, MARGIN, TOP_K, backend="reference", stop_gradient=False, valid=valid
    )
    whole.backward()
    torch.testing.assert_close(merged, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(latents.grad, whole_latents.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(codebook.grad, whole_codebook.grad, rtol=0, atol=1e-12)


def test_merge_does_not_depend_on_shard_order() -> None:
    latents, codebook = torch.randn(24, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    shards = [arc_statistics(part, codebook, scale=SCALE, top_k=TOP_K) for part in latents.split([5, 12, 7])]
    forward = arc_finish(arc_merge(shards, SCALE), scale=SCALE, margin=MARGIN)
    backward = arc_finish(arc_merge(shards[::-1], SCALE), scale=SCALE, margin=MARGIN)
    torch.testing.assert_close(forward, backward, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_shard_marks_absent_top_tokens(backend: str) -> None:
    latents = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    codebook = torch.tensor([[1.0, 0.1], [0.1, 1.0], [-1.0, -0.9]])
    statistics = arc_statistics(latents, codebook, scale=SCALE, top_k=3, backend=backend)
    assert statistics.top_tokens.tolist() == [[0, 1, -1], [1, 0, -1], [1, 0, -1]]
    assert statistics.top_cosines[:, 2].tolist() == [float("-inf")] * 3
    assert statistics.negatives.tolist() == [float("-inf")] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_top_tokens_do_not_depend_on_blocks(backend: str, small_blocks: None) -> None:
    latents, codebook = torch.randn(57, 3, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    statistics = arc_statistics(latents, codebook, scale=SCALE, top_k=4, backend=backend)
    cosines = torch.nn.functional.cosine_similarity(codebook[:, None], latents[None], dim=2)
    expected = cosines.argsort(dim=1, descending=True)[:, :4]
    assert torch.equal(statistics.top_tokens, expected)
    torch.testing.assert_close(statistics.top_cosines, cosines.gather(1, expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_negatives_matches_finite_differences(backend: str, small_blocks: None) -> None:
    latents = torch.randn(21, 3, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def negatives(z: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return arc_statistics(z, e, scale=SCALE, top_k=3, backend=backend, stop_gradient=False).negatives

    assert torch.autograd.gradcheck(negatives, (latents, codebook))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_top_cosines_matches_finite_differences(backend: str, small_blocks: None) -> None:
    latents = torch.randn(21, 3, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def cosines(z: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return arc_statistics(z, e, scale=SCALE, top_k=3, backend=backend, stop_gradient=False).top_cosines

    assert torch.autograd.gradcheck(cosines, (latents, codebook))
