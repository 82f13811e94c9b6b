"""Progress bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_bar(activity: str = "measuring") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function `progress(label, done, total)` that draws one bar per label, on a terminal only."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def update(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(f"{activity} ({label})", total=total)
            progress.update(tasks[label], completed=done)

        yield update
