"""Which images of a set without test images are held out for testing, and which are kept under a limit."""

from collections.abc import Sequence
from zlib import crc32

from arcvq.errors import ArcvqError

# Without `holdout_every`, about one image in TEST_EVERY is used for testing.
TEST_EVERY = 20


def choose_test(names: Sequence[str], holdout_every: int | None = None) -> list[bool]:
    """Whether each name is held out for testing: every `holdout_every`-th of the given order, or about one in 20 by its hash.

    By hash, a name's split does not depend on the others, so that files added later move none from one split to the other.
    """
    if holdout_every is None:
        test = [index for index, name in enumerate(names) if crc32(name.encode()) % TEST_EVERY == 0]
    elif holdout_every < 2:
        raise ArcvqError(f"data.holdout_every is {holdout_every}; it must be at least 2")
    else:
        test = list(range(holdout_every - 1, len(names), holdout_every))
    test = test or [len(names) - 1]
    chosen = set(test[: len(names) - 1] or test)  # if all names hash to test, keep one to train on
    return [index in chosen for index in range(len(names))]


def spread(length: int, limit: int | None) -> list[int]:
    """At most `limit` indices, spread evenly over a set that may be sorted by class."""
    if limit is None or limit >= length:
        return list(range(length))
    return [index * length // limit for index in range(limit)]
