"""Protocols: exactly how a number is measured. A protocol's name and hash are saved with every number."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from arcvq.data.pixels import Rounding
from arcvq.errors import ArcvqError
from arcvq.metrics.fid import Interpolation
from arcvq.metrics.image import SsimWindow
from arcvq.metrics.lpips import LpipsName


@dataclass(frozen=True)
class Protocol:
    """All choices that change a measured number."""

    name: str
    # JPEG quality of originals and reconstructions before they are compared; None: no JPEG
    jpeg_quality: int | None
    # how floats are rounded to 8 bits
    rounding: Rounding
    ssim_window: SsimWindow
    lpips_network: LpipsName
    # side that Pillow resizes 8-bit images to before the FID network's own resize; None: no such step
    fid_resize: int | None
    # the FID network's own resize to 299
    fid_interpolation: Interpolation
    # increased when the code is corrected so that numbers change
    revision: int = 1

    @property
    def hash(self) -> str:
        """A hash of all fields, 12 hex digits: numbers with the same hash were measured in the same way."""
        fields = asdict(self)
        if self.revision == 1:
            del fields["revision"]  # so that hashes from before this field stay valid
        return hash_fields(fields)


def hash_fields(fields: Mapping[str, Any]) -> str:
    """A hash of plain values by name, 12 hex digits; their order does not matter."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


EXACT = Protocol(
    name="exact",
    jpeg_quality=None,
    rounding="round",
    ssim_window="uniform",
    lpips_network="vgg",
    fid_resize=None,
    fid_interpolation="tensorflow",
)

# The paper's released evaluation, to compare with its printed numbers: JPEG on both sides, floor rounding, and a resize to
# 229 pixels before FID.
PAPER = Protocol(
    name="paper",
    jpeg_quality=75,
    rounding="floor",
    ssim_window="uniform",
    lpips_network="vgg",
    fid_resize=229,
    fid_interpolation="torch",
    revision=2,  # in revision 1 a GPU floored originals differently from a CPU
)

PROTOCOLS = {EXACT.name: EXACT, PAPER.name: PAPER}


def protocol(name: str) -> Protocol:
    """The protocol of this name."""
    if name not in PROTOCOLS:
        raise ArcvqError(f"unknown protocol {name!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
