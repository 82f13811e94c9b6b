"""Threads that read and write image files: Pillow releases the interpreter's lock while it decodes and encodes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from os import cpu_count
from typing import TypeVar

from arcvq.data.files import UnreadableImage
from arcvq.data.images import CHUNK
from arcvq.errors import ArcvqError

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = min(16, cpu_count() or 1)
# How many unreadable files an error names at most.
MAX_NAMED = 10


@cache
def image_threads() -> ThreadPoolExecutor:
    """The process's thread pool for image files."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="arcvq-images")


def read_in_threads(
    items: Iterable[Item], read: Callable[[Item], Result], ahead: int = CHUNK
) -> Iterator[Result | UnreadableImage]:
    """Yield `read(item)` for each item in order, or its UnreadableImage error. Threads read at most `ahead` items ahead."""

    def read_or_error(item: Item) -> Result | UnreadableImage:
        try:
            return read(item)
        except UnreadableImage as error:
            return error

    waiting: deque[Future[Result | UnreadableImage]] = deque()
    try:
        for item in items:
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
            waiting.append(image_threads().submit(read_or_error, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def prefetch(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `work(item)` for each item in order; a thread computes the next result while the caller uses the current one.

    An error is raised when its item is due.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arcvq-prefetch")
    try:
        current: Future[Result] | None = None
        for item in items:
            following = thread.submit(work, item)
            if current is not None:
                yield current.result()
            current = following
        if current is not None:
            yield current.result()
    finally:
        thread.shutdown(cancel_futures=True)


def raise_if_unreadable(results: Iterable[object], hint: str = "") -> None:
    """Raise one error that names all unreadable images among `results`; `hint` ends its message."""
    errors = [result for result in results if isinstance(result, UnreadableImage)]
    if len(errors) == 1:
        raise ArcvqError(f"{errors[0]}{hint}")
    if errors:
        named = ", ".join(f"{error.path} ({error.reason})" for error in errors[:MAX_NAMED])
        more = f" and {len(errors) - MAX_NAMED} more" if len(errors) > MAX_NAMED else ""
        raise ArcvqError(f"cannot read {len(errors)} images: {named}{more}; repair or remove the files{hint}")
