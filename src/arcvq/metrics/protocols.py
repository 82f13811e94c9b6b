"""Exactly how a number is measured. A protocol's name and hash travel with every number."""

import hashlib
import json
from dataclasses import asdict, dataclass

from arcvq.data.pixels import Rounding
from arcvq.errors import ArcvqError
from arcvq.metrics.fid import Interpolation
from arcvq.metrics.image import SsimWindow
from arcvq.metrics.lpips import LpipsName


@dataclass(frozen=True)
class Protocol:
    """Every choice that changes a number."""

    name: str
    # JPEG quality that originals and reconstructions pass through before they are compared; None: lossless
    jpeg_quality: int | None
    # how floats become 8-bit levels
    rounding: Rounding
    ssim_window: SsimWindow
    lpips_network: LpipsName
    # side that Pillow resizes the 8-bit image to before the FID network's own resize; None: no such step
    fid_resize: int | None
    # the FID network's own resize to 299
    fid_interpolation: Interpolation
    # one more when the code that follows these choices was corrected and its numbers changed
    revision: int = 1

    @property
    def hash(self) -> str:
        """Twelve hex digits over all fields: two numbers with one hash were measured alike."""
        fields = asdict(self)
        if self.revision == 1:
            del fields["revision"]  # as it was before there was a second
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

# What the paper's released evaluation does, for comparison with print: both sides through JPEG, levels floored,
# and a 229-pixel image in front of FID.
PAPER = Protocol(
    name="paper",
    jpeg_quality=75,
    rounding="floor",
    ssim_window="uniform",
    lpips_network="vgg",
    fid_resize=229,
    fid_interpolation="torch",
    revision=2,  # before, a GPU floored the originals in another way than a CPU does
)

PROTOCOLS = {EXACT.name: EXACT, PAPER.name: PAPER}


def protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise ArcvqError(f"unknown protocol {name!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
