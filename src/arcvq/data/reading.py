"""Image files read and written by threads: Pillow releases the interpreter's lock while it decodes and encodes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from os import cpu_count
from pathlib import Path
from typing import TypeVar

from arcvq.data.files import UnreadableImage
from arcvq.data.images import CHUNK
from arcvq.errors import ArcvqError

Item = TypeVar("Item")
Result = TypeVar("Result")

CORES = min(16, cpu_count() or 1)
# How many unreadable files an error names.
NAMED = 10


@cache
def image_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, thread_name_prefix="arcvq-images")


def read_each(paths: Sequence[Path], read: Callable[[Path], Result]) -> Iterator[Result | UnreadableImage]:
    """`read(path)` for each path, in order; the error takes the place of an image that cannot be read. Reads at most CHUNK ahead."""

    def read_one(path: Path) -> Result | UnreadableImage:
        try:
            return read(path)
        except UnreadableImage as error:
            return error

    for first in range(0, len(paths), CHUNK):
        yield from image_threads().map(read_one, paths[first : first + CHUNK])


def one_ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work(item)` for each item, in order. A thread works on the next while the caller uses the present result; an error surfaces
    at its own item."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arcvq-ahead")
    try:
        ahead: Future[Result] | None = None
        for item in items:
            following = thread.submit(work, item)
            if ahead is not None:
                yield ahead.result()
            ahead = following
        if ahead is not None:
            yield ahead.result()
    finally:
        thread.shutdown(cancel_futures=True)


def check_readable(results: Iterable[object], hint: str = "") -> None:
    """One error that names every image of `results` that could not be read."""
    errors = [result for result in results if isinstance(result, UnreadableImage)]
    if len(errors) == 1:
        raise ArcvqError(f"{errors[0]}{hint}")
    if errors:
        named = ", ".join(f"{error.path} ({error.reason})" for error in errors[:NAMED])
        more = f" and {len(errors) - NAMED} more" if len(errors) > NAMED else ""
        raise ArcvqError(f"cannot read {len(errors)} images: {named}{more}; repair the files or take them out{hint}")
