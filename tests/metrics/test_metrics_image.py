import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torchmetrics.functional.image import structural_similarity_index_measure

from arcvq.errors import ArcvqError
from arcvq.metrics import image, l1, psnr, ssim


def image_pair(*shape: int, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(*shape, generator=generator)
    return x, (x + noise * torch.randn(*shape, generator=generator)).clamp(0, 1)


def test_l1_and_psnr_of_constant_offset() -> None:
    x = torch.full((3, 2, 12, 13), 0.25)
    offset = torch.tensor([0.5, 0.25, 0.125])
    y = x + offset.view(-1, 1, 1, 1)
    assert torch.allclose(l1(x, y), offset)
    expected = torch.tensor([-20 * math.log10(delta) for delta in offset.tolist()])
    assert torch.allclose(psnr(x, y), expected, atol=1e-5)


def test_psnr_is_capped_for_equal_images() -> None:
    x, _ = image_pair(2, 3, 12, 12)
    assert psnr(x, x).tolist() == [100.0, 100.0]


def test_psnr_equals_skimage() -> None:
    x, y = image_pair(4, 3, 16, 16)
    expected = [peak_signal_noise_ratio(a.numpy(), b.numpy(), data_range=1.0) for a, b in zip(x, y)]
    assert psnr(x, y).tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 32, 40), (3, 11, 11), (1, 11, 30)])
def test_uniform_ssim_equals_skimage(channels: int, height: int, width: int) -> None:
    x, y = image_pair(5, channels, height, width)
    expected = [
        structural_similarity(a.double().numpy(), b.double().numpy(), channel_axis=0, win_size=11, data_range=1.0)
        for a, b in zip(x, y)
    ]
    assert np.abs(ssim(x, y).numpy() - np.array(expected)).max() < 1e-6


def test_gaussian_ssim_equals_skimage_and_torchmetrics() -> None:
    x, y = image_pair(4, 3, 24, 30)
    found = ssim(x, y, "gaussian")
    expected = [
        structural_similarity(
            a.double().numpy(),
            b.double().numpy(),
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
        )
        for a, b in zip(x, y)
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    _, maps = structural_similarity_index_measure(
        y.double(), x.double(), data_range=1.0, reduction="none", return_full_image=True
    )
    assert torch.allclose(found.double(), maps[..., 5:-5, 5:-5].flatten(1).mean(1), atol=1e-6)
    assert (found - ssim(x, y)).abs().min() > 1e-4


def test_ssim_of_equal_and_flat_images() -> None:
    x, _ = image_pair(2, 3, 20, 20)
    assert torch.allclose(ssim(x, x), torch.ones(2))
    # For flat images SSIM is the brightness term alone. float32 sums would be too inexact for it.
    a, b = torch.full((1, 1, 20, 20), 0.9), torch.full((1, 1, 20, 20), 0.6)
    expected = (2 * 0.9 * 0.6 + 1e-4) / (0.9**2 + 0.6**2 + 1e-4)
    assert float(ssim(a, b)) == pytest.approx(expected, abs=1e-6)


def test_ssim_does_not_depend_on_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = image_pair(7, 1, 16, 16)
    whole = ssim(x, y)
    monkeypatch.setattr(image, "PIXELS_AT_ONCE", 2 * 16 * 16)
    assert torch.allclose(ssim(x, y), whole, atol=1e-7)


def test_wrong_images_are_refused() -> None:
    small = torch.zeros(1, 1, 10, 20)
    with pytest.raises(ArcvqError, match=r"11x11 .* 20x10"):
        ssim(small, small)
    with pytest.raises(ArcvqError, match="unknown SSIM window 'box'"):
        ssim(small, small, "box")  # type: ignore[arg-type]
    with pytest.raises(ArcvqError, match=r"of one shape, but got \(1, 1, 10, 20\), \(1, 3, 10, 20\)"):
        l1(small, small.expand(-1, 3, -1, -1))
    with pytest.raises(ArcvqError, match=r"expected floats in \[0, 1\], but got torch\.uint8"):
        psnr(small.to(torch.uint8), small.to(torch.uint8))
