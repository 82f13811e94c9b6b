"""Signals wait for the step to end."""

import os
import signal
import threading
import time

import pytest

from arcvq.training.interruption import stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_nothing_is_interrupted(number: signal.Signals) -> None:
    with stop_signals() as received:
        assert received == []
        os.kill(os.getpid(), number)
        assert received == [number]


def test_a_launcher_that_passes_the_signal_on_does_not_interrupt() -> None:
    with stop_signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert received[0] == signal.SIGINT


def test_a_second_signal_a_while_later_interrupts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        later = time.monotonic() + 1.5
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]


def test_the_handlers_of_before_come_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with stop_signals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in numbers] == before


def test_hangup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_training_in_another_thread_takes_no_signals() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def inside() -> None:
        with stop_signals() as received:
            found.append((received, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [([], before)]
