"""The label, number format and better direction of each metric."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MetricLabel:
    """How a metric is labelled, printed and compared."""

    label: str
    format: str = ".4g"
    better: Literal["up", "down", "none"] = "none"

    def text(self, value: float) -> str:
        """The value in this metric's format."""
        return format(value, self.format)

    def best(self, values: list[float]) -> float | None:
        """The best of several values of this metric; None if no direction is better or there are no values."""
        if not values or self.better == "none":
            return None
        return max(values) if self.better == "up" else min(values)


METRIC_LABELS = {
    "l1": MetricLabel("ℓ1", ".4f", "down"),
    "mse": MetricLabel("MSE", ".5f", "down"),
    "psnr": MetricLabel("PSNR", ".2f", "up"),
    "ssim": MetricLabel("SSIM", ".4f", "up"),
    "lpips": MetricLabel("LPIPS", ".4f", "down"),
    "rfid": MetricLabel("rFID", ".2f", "down"),
    "pfid": MetricLabel("pFID", ".2f", "down"),
    "gfid": MetricLabel("gFID", ".2f", "down"),
    "kid": MetricLabel("KID", ".5f", "down"),
    "kid_std": MetricLabel("KID, std over subsets", ".5f"),
    "inception_score": MetricLabel("Inception Score", ".2f", "up"),
    "inception_score_std": MetricLabel("Inception Score, std over splits", ".2f"),
    "precision": MetricLabel("precision", ".3f", "up"),
    "recall": MetricLabel("recall", ".3f", "up"),
    "precision_vgg": MetricLabel("precision, VGG", ".3f", "up"),
    "recall_vgg": MetricLabel("recall, VGG", ".3f", "up"),
    "duplicate_share": MetricLabel("duplicates", ".2%", "down"),
    "bits_per_token": MetricLabel("bits/token under the prior", ".3f", "down"),
    "bits_per_token_bound": MetricLabel("bits/token under the prior, at most", ".3f", "down"),
    "noise_mse": MetricLabel("MSE of the predicted noise", ".4f", "down"),
    "usage": MetricLabel("usage", ".1%", "up"),
    "perplexity": MetricLabel("perplexity", ".1f", "up"),
    "tokens_per_image": MetricLabel("tokens/image", ".0f"),
    "tokens_per_code": MetricLabel("tokens/code", ".0f"),
    "bits_per_image": MetricLabel("bits/image", ".0f"),
    "rate": MetricLabel("nats/image", ".2f"),
    "coverage_50": MetricLabel("codes for 50% of tokens", ".0f"),
    "coverage_90": MetricLabel("codes for 90% of tokens", ".0f"),
    "coverage_99": MetricLabel("codes for 99% of tokens", ".0f"),
    "norm_mean": MetricLabel("code norm, mean", ".3f"),
    "norm_mean_used": MetricLabel("code norm, mean of codes in use", ".3f"),
    "norm_min": MetricLabel("code norm, smallest", ".3f"),
    "norm_q05": MetricLabel("code norm, 5% quantile", ".3f"),
    "norm_median": MetricLabel("code norm, median", ".3f"),
    "norm_q95": MetricLabel("code norm, 95% quantile", ".3f"),
    "norm_max": MetricLabel("code norm, largest", ".3f"),
    "norm_spread": MetricLabel("code norm, std / mean", ".3f"),
    "uniformity": MetricLabel("uniformity", ".2f"),
    "nearest_neighbour_mean": MetricLabel("distance to the nearest code, mean", ".3f"),
    "nearest_neighbour_median": MetricLabel("distance to the nearest code, median", ".3f"),
    "near_duplicate_share": MetricLabel("near duplicates, by angle", ".1%"),
    "near_duplicate_share_distance": MetricLabel("near duplicates, by distance", ".1%"),
}


def metric_label(name: str) -> MetricLabel:
    """The label of a metric; one without an entry is labelled by its name."""
    return METRIC_LABELS.get(name) or MetricLabel(name.replace("_", " "))
