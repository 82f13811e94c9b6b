"""Finds the weights of the networks of the metrics. Nothing is downloaded unless the caller asks for it."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.hub import load_state_dict_from_url

from arcvq.errors import ArcvqError


class MissingWeights(ArcvqError):
    """The weights of a metric's network are not on this machine; the message gives the command that downloads them."""


def load_weights(
    *, what: str, file: str, url: str, command: str, download: bool = False, needs: Sequence[str] = ()
) -> tuple[dict[str, Tensor], str]:
    """Load a network's weights; returns the state dict and its file or URL.

    Looks for `file` in the folder ARCVQ_WEIGHTS, then for the file of `url` in torch's cache. `download` allows to fetch `url`. A
    file in the folder that lacks the tensors `needs` is passed over.
    """
    reason = "not found"
    folder = os.environ.get("ARCVQ_WEIGHTS")
    if folder:
        path = Path(folder) / file
        if path.is_file():
            try:
                state = load_file(path)
            except (SafetensorError, OSError) as error:
                raise ArcvqError(f"cannot read {path} ({error}); delete it and fetch it again") from None
            if all(name in state for name in needs):
                return state, str(path)
            reason = f"{file} in ARCVQ_WEIGHTS lacks {', '.join(name for name in needs if name not in state)}"
    cached = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
    if cached.is_file():
        try:
            return torch.load(cached, map_location="cpu", weights_only=True), str(cached)
        except Exception as error:
            # A damaged file raises different errors in the archive, the unpickler and the tensors.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ArcvqError(f"cannot read {cached} ({reason}); delete it and fetch it again") from None
    if download:
        try:
            return load_state_dict_from_url(url, map_location="cpu", weights_only=True), url
        except OSError as error:
            raise MissingWeights(
                missing_weights_message(what, file, command, f"the download failed: {error}")
            ) from None
    raise MissingWeights(missing_weights_message(what, file, command, reason))


def missing_weights_message(what: str, file: str, command: str, reason: str) -> str:
    """The error message for weights that are not on this machine, with the ways to get them."""
    return (
        f"{what} is not on this machine ({reason}): run once with a network: {command} "
        f"-- or put {file} into the folder that ARCVQ_WEIGHTS points to"
    )


def load_state(network: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load a state dict into a network; if it does not fit, the error names `source`."""
    try:
        network.load_state_dict(state)
    except RuntimeError:
        missing = sorted(network.state_dict().keys() - state.keys())
        detail = f"it lacks {missing[0]}" if missing else "its names or shapes differ"
        raise ArcvqError(f"{source} does not fit the network ({detail}); fetch the right file again") from None
