"""Errors with one-line messages: what was wrong, what was expected, what to do."""

from signal import SIGINT


class ArcvqError(ValueError):
    """Wrong input from the user. The command line prints its one line without a traceback and exits with code 2."""


class Diverged(ArcvqError):
    """Losses, weights or outputs of a model are not finite."""


class Stopped(Exception):
    """A signal stopped training after a checkpoint was saved; the same command resumes from it."""

    def __init__(self, message: str, signal: int = SIGINT) -> None:
        super().__init__(message)
        self.signal = signal
