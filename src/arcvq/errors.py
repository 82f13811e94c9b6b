"""The one kind of error that a person can cause: said in one line, with what was expected and what to do."""

from signal import SIGINT


class ArcvqError(ValueError):
    """Wrong input. The command line prints it as one line and exits with code 2; it never needs a traceback."""


class Diverged(ArcvqError):
    """The numbers of a training, or of what came of it, are not finite."""


class Stopped(Exception):
    """A signal stopped a training, after a checkpoint: the same command goes on from there."""

    def __init__(self, message: str, signal: int = SIGINT) -> None:
        super().__init__(message)
        self.signal = signal
