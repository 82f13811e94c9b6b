"""FSQ and LFQ: fixed codes."""

import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import entropy_loss, entropy_statistics
from arcvq.quantizers import FSQ, LFQ, Quantizer


@pytest.mark.parametrize(
    "quantizer", [FSQ(3, 512), LFQ(9, 512), FSQ(4, 1000, levels=(8, 5, 5, 5))], ids=lambda q: type(q).__name__
)
def test_every_code_quantizes_to_its_own_token(quantizer: Quantizer) -> None:
    """tokens → codes → tokens, for all of them."""
    codes = quantizer.codebook
    latents = codes if isinstance(quantizer, LFQ) else torch.atanh(_before_squashing(quantizer, codes))
    out = quantizer(latents)
    assert out.tokens.tolist() == list(range(len(codes)))
    assert torch.equal(out.quantized, codes)
    assert out.stats["usage"].item() == 1.0
    assert out.stats["perplexity"].item() == pytest.approx(len(codes), rel=1e-4)


def _before_squashing(quantizer: Quantizer, codes: torch.Tensor) -> torch.Tensor:
    """tanh of the latents that are squashed onto these codes (without FSQ's sideways shift)."""
    columns = []
    for column, level in zip(codes.unbind(dim=1), quantizer.levels):
        half, offset = (level - 1) * (1 - 1e-3) / 2, 0.0 if level % 2 else 0.5
        inner = ((column * (level // 2) + offset) / half).clamp(-0.9999, 0.9999)
        columns.append(torch.tanh(torch.atanh(inner) - torch.atanh(torch.tensor(offset / half))))
    return torch.stack(columns, dim=1)


def test_codebook_is_no_parameter_and_not_saved() -> None:
    for quantizer in (FSQ(64, 512), LFQ(64, 512)):
        assert set(dict(quantizer.named_parameters())) == {
            f"project_{way}.{part}" for way in ("in", "out") for part in ("weight", "bias")
        }
        assert "codebook" not in quantizer.state_dict()
        assert not quantizer.codebook.requires_grad


@pytest.mark.parametrize(
    ("size", "levels"), [(2, (2,)), (8, (8,)), (32, (8, 4)), (512, (8, 8, 8)), (1024, (8, 8, 8, 2))]
)
def test_default_levels_are_eights(size: int, levels: tuple[int, ...]) -> None:
    quantizer = FSQ(64, size)
    assert quantizer.config.levels == levels
    assert quantizer.code_dim == len(levels)


def test_fsq_gradient_passes_squashing_and_loss_is_zero() -> None:
    latents = torch.randn(5, 3, requires_grad=True)
    out = FSQ(3, 512)(latents)
    assert out.losses == {}
    assert out.loss.item() == 0.0
    (gradient,) = torch.autograd.grad(out.quantized.sum(), latents)
    half, width = 7 * (1 - 1e-3) / 2, 4
    expected = (1 - torch.tanh(latents + torch.atanh(torch.tensor(0.5 / half))).square()) * half / width
    torch.testing.assert_close(gradient, expected)


def test_fsq_rounds_zero_to_zero() -> None:
    assert torch.equal(FSQ(4, 1000, levels=(8, 5, 5, 5))(torch.zeros(1, 4)).quantized, torch.zeros(1, 4))


def test_lfq_quantizes_to_signs() -> None:
    latents = torch.tensor([[0.3, -2.0, 1e-9], [-0.1, -0.1, 5.0]])
    out = LFQ(3, 8)(latents)
    assert out.quantized.tolist() == [[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]
    assert out.tokens.tolist() == [1 + 4, 4]


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_lfq_losses_are_commitment_and_entropy(backend: str) -> None:
    latents = torch.randn(40, 3)
    quantizer = LFQ(3, 8, commitment_weight=0.5, entropy={"weight": 0.2, "temperature": 0.7}, backend=backend)
    out = quantizer(latents)
    torch.testing.assert_close(out.losses["commitment"], 0.5 * (latents - latents.sign()).square().mean())
    # p = softmax(−‖z − c‖² / τ) over corners is one logistic a bit: σ(4z / τ).
    p = torch.sigmoid(4 * latents / 0.7)
    bits = (torch.special.entr(p) + torch.special.entr(1 - p)).sum(dim=1).mean()
    sums = entropy_statistics(latents, quantizer.codebook, 0.7, "euclidean")
    torch.testing.assert_close(sums[0] / 40, bits)
    torch.testing.assert_close(out.losses["entropy"], 0.2 * entropy_loss(*sums, 40))
    assert set(quantizer.eval()(latents).losses) == {"commitment"}


def test_one_hot_balanced_signs_have_lowest_entropy_term() -> None:
    quantizer = LFQ(3, 8, entropy={"weight": 1.0})
    out = quantizer(quantizer.codebook)
    assert out.losses["entropy"].item() == pytest.approx(-torch.tensor(8.0).log().item(), abs=1e-5)
    assert out.losses["commitment"].item() == 0.0


@pytest.mark.parametrize(("heads", "shape"), [(1, (6, 5, 4, 3)), (2, (60, 5))])
def test_balanced_lfq_starts_with_standardized_bits(heads: int, shape: tuple[int, ...]) -> None:
    quantizer = LFQ(5, 8, heads=heads, balanced=True, channel_last=len(shape) == 2)
    latents = 3 + 0.1 * torch.randn(shape)
    before = [tensor.clone() for tensor in (quantizer.project_in.weight, quantizer.project_in.bias)]
    quantizer.init_from_latents_(latents)
    rows = latents if len(shape) == 2 else latents.movedim(1, -1).reshape(-1, 5)
    values = quantizer.project_in(rows)
    torch.testing.assert_close(values.mean(dim=0), torch.zeros(3 * heads), atol=1e-4, rtol=0)
    torch.testing.assert_close(values.std(dim=0), torch.ones(3 * heads), atol=1e-4, rtol=0)
    old = rows @ before[0].T + before[1]
    torch.testing.assert_close(values, (old - old.mean(dim=0)) / old.std(dim=0), atol=1e-3, rtol=1e-3)
    with pytest.raises(ArcvqError, match="needs two positions or more, got 1"):
        quantizer.balance_(latents[:1, :, :1, :1] if len(shape) > 2 else latents[:1])


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (FSQ, {"codebook_size": 500}, "codebook_size 500 is not a power of two: give levels"),
        (FSQ, {"codebook_size": 512, "levels": [8, 8]}, "levels [8, 8] make 64 codes, but codebook_size is 512"),
        (FSQ, {"codebook_size": 4, "levels": [4, 1]}, "levels: each channel needs at least 2, got [4, 1]"),
        (FSQ, {"codebook_size": 512, "code_dim": 4}, "code_dim must be the number of levels, 3, got 4"),
        (LFQ, {"codebook_size": 500}, "codebook_size must be a power of two from 2 on, one bit a channel, got 500"),
        (LFQ, {"codebook_size": 1}, "codebook_size must be a power of two from 2 on"),
        (LFQ, {"code_dim": 8}, "code_dim must be the number of bits, 9, got 8"),
        (LFQ, {"arc": {}}, "unknown option 'arc'"),
        (LFQ, {"balanced": True}, "balanced needs a linear layer before the bits, and there is none: dim is 9"),
    ],
)
def test_wrong_options_raise_with_reason(cls: type[Quantizer], options: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        cls(9 if "balanced" in options else 64, **options)
    assert message in str(raised.value)
