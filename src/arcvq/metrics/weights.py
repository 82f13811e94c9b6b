"""Where the networks behind LPIPS and FID find their weights. Nothing is downloaded unless a caller asks for it."""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.hub import load_state_dict_from_url

from arcvq.errors import ArcvqError


class MissingWeights(ArcvqError):
    """A metric's network is not on this machine. The message says which command brings it."""


def load_weights(
    *, what: str, file: str, url: str, command: str, download: bool = False
) -> tuple[dict[str, Tensor], str]:
    """A state dict and the name of where it came from.

    First `file` in the folder that ARCVQ_WEIGHTS names, then the file that `url` leaves in torch's cache. Only with
    `download` is `url` fetched.
    """
    folder = os.environ.get("ARCVQ_WEIGHTS")
    if folder:
        path = Path(folder) / file
        if path.is_file():
            try:
                return load_file(path), str(path)
            except (SafetensorError, OSError) as error:
                raise ArcvqError(f"cannot read {path} ({error}); delete it and fetch it again") from None
    cached = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
    if cached.is_file():
        try:
            return torch.load(cached, map_location="cpu", weights_only=True), str(cached)
        except Exception as error:
            # A damaged file can fail in the archive, in the unpickler or in a tensor.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ArcvqError(f"cannot read {cached} ({reason}); delete it and fetch it again") from None
    if download:
        try:
            return load_state_dict_from_url(url, map_location="cpu", weights_only=True), url
        except OSError as error:
            raise MissingWeights(missing_line(what, file, command, f"the download failed: {error}")) from None
    raise MissingWeights(missing_line(what, file, command, "not found"))


def missing_line(what: str, file: str, command: str, reason: str) -> str:
    return (
        f"{what} is not on this machine ({reason}): run once with a network: arcvq evaluate RUN --download, or {command} "
        f"-- or put {file} into the folder that ARCVQ_WEIGHTS points to"
    )


def fill(network: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load `state` into `network`, all of it or an error that names the file."""
    try:
        network.load_state_dict(state)
    except RuntimeError:
        missing = sorted(network.state_dict().keys() - state.keys())
        detail = f"it lacks {missing[0]}" if missing else "its names or shapes differ"
        raise ArcvqError(f"{source} does not fit the network ({detail}); fetch the right file again") from None
