import pytest
import torch

from arcvq.data import InMemoryImages, batch_count, batch_indices, batches
from arcvq.errors import ArcvqError


def numbered_images(count: int) -> InMemoryImages:
    return InMemoryImages("numbered", torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1))


def flatten_batches(parts: list[torch.Tensor]) -> list[int]:
    return torch.cat([part.flatten() for part in parts]).tolist()


def test_batches_without_seed_are_in_order() -> None:
    parts = list(batches(numbered_images(10), 4))
    assert [part.flatten().tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert parts[0].shape == (4, 1, 1, 1)


def test_order_depends_on_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return flatten_batches(list(batches(numbered_images(200), 16, seed=seed, epoch=epoch)))

    assert order(1, 0) == order(1, 0)
    assert sorted(order(1, 0)) == list(range(200))
    # Four different orders; adding seed and epoch would make (1, 0) and (0, 1) one.
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_order_ignores_the_global_random_state() -> None:
    torch.manual_seed(0)
    first = flatten_batches(list(batches(numbered_images(50), 8, seed=5)))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert flatten_batches(list(batches(numbered_images(50), 8, seed=5))) == first
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("start", [0, 1, 4, 7])
def test_start_continues_the_epoch(start: int) -> None:
    whole = list(batches(numbered_images(50), 8, seed=2, epoch=3))
    rest = list(batches(numbered_images(50), 8, seed=2, epoch=3, start=start))
    assert [part.tolist() for part in rest] == [part.tolist() for part in whole[start:]]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 23, 24])
def test_ranks_split_each_batch(world: int, count: int) -> None:
    whole = [part.flatten().tolist() for part in batches(numbered_images(count), 5, seed=4)]
    ranks = [list(batches(numbered_images(count), 5, seed=4, rank=rank, world=world)) for rank in range(world)]
    assert {len(parts) for parts in ranks} == {len(whole)}
    for index, expected in enumerate(whole):
        parts = [parts[index].flatten().tolist() for parts in ranks]
        assert [number for part in parts for number in part] == expected
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_batch_indices_match_batches() -> None:
    parts = list(batch_indices(20, 6, seed=9))
    assert [part.tolist() for part in parts] == [
        part.flatten().tolist() for part in batches(numbered_images(20), 6, seed=9)
    ]


@pytest.mark.parametrize(("length", "expected"), [(10, 3), (8, 2), (0, 0)])
def test_batch_count_rounds_up(length: int, expected: int) -> None:
    assert batch_count(length, 4) == expected
    assert len(list(batches(numbered_images(length), 4))) == expected


def test_batches_are_on_given_device() -> None:
    assert next(batches(numbered_images(3), 2, device="meta")).device.type == "meta"
    assert numbered_images(3).to("cpu").device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rank": 2, "world": 2}, "rank is 2 of 2"),
        ({"start": 4}, "start is 4, but the epoch has 3 batches"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, int], line: str) -> None:
    with pytest.raises(ArcvqError, match=line):
        list(batches(numbered_images(10), **{"batch_size": 4, **options}))
