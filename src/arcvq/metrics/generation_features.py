"""Features of a set of images for the metrics of generation, in one pass and only those that are needed; cached for a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from arcvq.data import Images, batches
from arcvq.functional.precision import ieee_matmul
from arcvq.metrics.fid import FeatureStatistics, fid_batch_size, fid_features, fid_network, inception_head
from arcvq.metrics.networks import load_once
from arcvq.metrics.originals import (
    original_features_file,
    original_statistics_file,
    read_original_features,
    read_original_statistics,
    write_original_features,
    write_original_statistics,
)
from arcvq.metrics.protocols import hash_fields
from arcvq.metrics.sampling import GenerationProtocol
from arcvq.metrics.vgg import vgg_features, vgg_network
from arcvq.metrics.weights import MissingWeights

NEEDS_INCEPTION = ("gfid", "kid", "inception_score", "precision_recall")


@dataclass(frozen=True)
class GenerationNetworks:
    """The networks of the metrics of generation; a metric whose network is None is missing, for the reason given."""

    # images as `fid_input` prepares them → features; features → logits; images of 224 pixels → features
    inception: nn.Module | None
    head: nn.Module | None = None
    vgg: nn.Module | None = None
    # metric -> why its network is missing
    missing: dict[str, str] = field(default_factory=dict)


def load_generation_networks(
    wanted: Iterable[str], *, device: torch.device | str = "cpu", download: bool = False
) -> GenerationNetworks:
    """Load the networks that the wanted metrics need. Weights that are not on this machine are reported in `missing`."""
    wanted = set(wanted)
    missing: dict[str, str] = {}

    def load(name: str, metrics: Iterable[str], loader: Callable[..., nn.Module]) -> nn.Module | None:
        needed = [metric for metric in metrics if metric in wanted and metric not in missing]
        if not needed:
            return None
        try:
            return load_once((name, str(device)), lambda: loader(device=device, download=download))
        except MissingWeights as error:
            missing.update(dict.fromkeys(needed, str(error)))
            return None

    inception = load("fid", NEEDS_INCEPTION, fid_network)
    head = load("inception_head", ["inception_score"], inception_head)
    vgg = load("vgg", ["precision_recall_vgg"], vgg_network)
    return GenerationNetworks(inception, head, vgg, missing)


class Features:
    """Collects what the wanted metrics need of one set of images; rows of features are kept on the CPU, in float32."""

    def __init__(
        self, protocol: GenerationProtocol, networks: GenerationNetworks, wanted: set[str], logits: bool
    ) -> None:
        """`logits` is for generated images: the Inception Score needs no reference."""
        self.protocol, self.networks = protocol, networks
        self.statistics = FeatureStatistics() if "gfid" in wanted else None
        self.rows: dict[str, list[Tensor]] = {}
        if wanted & {"kid", "precision_recall"}:
            self.rows["inception"] = []
        if logits and "inception_score" in wanted:
            self.rows["logits"] = []
        if "precision_recall_vgg" in wanted:
            self.rows["vgg"] = []

    def update(self, images: Tensor, kept: Tensor | None = None) -> None:
        """Add uint8 images (B, C, H, W) on the networks' device. Rows are kept of those where `kept` (B,) is True, or of all."""
        protocol, networks = self.protocol, self.networks
        if self.statistics is not None or self.rows.keys() & {"inception", "logits"}:
            assert networks.inception is not None
            features = fid_features(
                images, networks.inception, resize=protocol.fid_resize, interpolation=protocol.fid_interpolation
            )
            if self.statistics is not None:
                self.statistics.update(features)
            if "inception" in self.rows:
                self._keep("inception", features if kept is None else features[kept])
            if "logits" in self.rows:
                assert networks.head is not None
                with torch.no_grad(), ieee_matmul(features):
                    self._keep("logits", networks.head(features))
        if "vgg" in self.rows:
            assert networks.vgg is not None
            images = images if kept is None else images[kept]
            if len(images):
                self._keep("vgg", vgg_features(images, networks.vgg))

    def _keep(self, name: str, rows: Tensor) -> None:
        self.rows[name].append(rows.to("cpu", torch.float32))

    def get(self, name: str, device: torch.device) -> Tensor:
        """All rows of `inception`, `logits` or `vgg` on `device`, (N, D)."""
        return torch.cat(self.rows[name]).to(device)


def kept_images(count: int, protocol: GenerationProtocol) -> Tensor | None:
    """Which of the reference's images KID, precision and recall compare with, bool (count,); None for all."""
    if count <= protocol.reference_features:
        return None
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(protocol.metric_seed))
    kept = torch.zeros(count, dtype=torch.bool)
    kept[drawn[: protocol.reference_features]] = True
    return kept


def reference_features(
    reference: Images,
    protocol: GenerationProtocol,
    networks: GenerationNetworks,
    wanted: set[str],
    device: torch.device,
    progress: Callable[[int], None],
) -> Features:
    """The features of the reference images, from the cache or in one pass; `progress` is called with the images of each batch."""
    result = Features(protocol, networks, wanted, logits=False)
    lacking = Features(protocol, networks, wanted, logits=False)  # what the cache does not have
    kept = kept_images(len(reference), protocol)
    batch_size = fid_batch_size(device)
    resize = {"resize": protocol.fid_resize, "interpolation": protocol.fid_interpolation}
    chosen = None if kept is None else [protocol.reference_features, protocol.metric_seed]

    statistics_file = None
    if result.statistics is not None and networks.inception is not None:
        statistics_file = original_statistics_file(
            reference, hash_fields(resize), networks.inception, device, batch_size
        )
        cached = read_original_statistics(statistics_file, device)
        if cached is not None:
            result.statistics, lacking.statistics = cached, None
    files = {}
    for name, network in {"inception": networks.inception, "vgg": networks.vgg}.items():
        if name in result.rows and network is not None:
            choices = hash_fields({"features": name, "kept": chosen, **(resize if name == "inception" else {})})
            files[name] = original_features_file(reference, choices, network, device, batch_size)
            rows = read_original_features(files[name])
            if rows is not None:
                result.rows[name] = [rows]
                del lacking.rows[name]

    if lacking.statistics is None and not lacking.rows:
        progress(len(reference))
        return result
    done = 0
    for pixels in batches(reference, batch_size, device=device):
        lacking.update(pixels, None if kept is None else kept[done : done + len(pixels)].to(device))
        done += len(pixels)
        progress(len(pixels))
    if lacking.statistics is not None:
        result.statistics = lacking.statistics
        write_original_statistics(statistics_file, lacking.statistics)
    for name in lacking.rows:
        result.rows[name] = lacking.rows[name]
        write_original_features(files[name], torch.cat(lacking.rows[name]))
    return result
