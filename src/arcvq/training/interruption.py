"""An interruption waits for the step to end, so that a checkpoint is never taken in the middle of one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect INT, TERM and HUP signals in a list instead of stopping. One more signal a second later interrupts at once.

    Not sooner: a launcher of several processes passes the same Ctrl-C on to each of them once more.
    """
    received: list[int] = []
    first = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: Any) -> None:
        nonlocal first
        if received and time.monotonic() - first > 1:
            raise KeyboardInterrupt
        if not received:
            first = time.monotonic()
        received.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
