"""Product quantization with a codebook for each group of channels, and multichannel quantization with one for all."""

from typing import Any

import pytest
import torch

from arcvq import VQ, Arc, ArcvqError, Ball
from arcvq.quantizers import CVQ, EMAVQ, GroupedVQ, MultichannelVQ


def test_each_group_is_quantized_by_its_own_codebook() -> None:
    quantizer = GroupedVQ(6, 9, groups=3, codebook={"init": "normal"})
    latents = torch.randn(5, 6, 4)
    out = quantizer(latents)
    assert out.tokens.shape == (5, 4, 3)
    assert quantizer.codebook.shape == (27, 2)
    losses = []
    for i, part in enumerate(latents.chunk(3, dim=1)):
        plain = VQ(2, 9)
        plain.load_state_dict(quantizer.layer(i).state_dict())
        theirs = plain(part)
        assert torch.equal(out.tokens[..., i], theirs.tokens)
        assert torch.equal(out.quantized.chunk(3, dim=1)[i], theirs.quantized)
        losses.append(theirs.loss)
    torch.testing.assert_close(out.loss, torch.stack(losses).mean())
    assert torch.equal(quantizer.codebook[quantizer.code_indices(out.tokens)].flatten(-2).movedim(-1, 1), out.quantized)


def test_one_group_equals_vq() -> None:
    quantizer, plain = GroupedVQ(4, 16, groups=1), VQ(4, 16)
    plain.load_state_dict(quantizer.layer(0).state_dict())
    latents = torch.randn(50, 4)
    ours, theirs = quantizer(latents), plain(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.quantized, theirs.quantized)
    assert torch.equal(ours.loss, theirs.loss)


def test_each_codebook_is_updated_with_its_group() -> None:
    quantizer = GroupedVQ(4, 8, groups=2, codebook={"kind": "emavq", "init": "normal"})
    plain = [EMAVQ(2, 8), EMAVQ(2, 8)]
    for own, layer in zip(plain, quantizer.vqs()):
        own.load_state_dict(layer.state_dict())
    batches = torch.randn(2, 30, 4)
    quantizer.after_step(*[quantizer(batch) for batch in batches])
    for i, (own, layer) in enumerate(zip(plain, quantizer.vqs())):
        own.after_step(*[own(batch.chunk(2, dim=1)[i]) for batch in batches])
        torch.testing.assert_close(layer.codebook, own.codebook)


def test_ball_and_arc_act_on_each_group() -> None:
    samp: dict[str, Any] = {"kind": "arcvq", "ball": Ball(schedule="constant", start=0.5), "arc": Arc()}
    quantizer = GroupedVQ(4, 8, groups=2, codebook=samp)
    out = quantizer(torch.randn(30, 4))
    assert "arc" in out.losses
    quantizer.after_step(out)
    torch.testing.assert_close(quantizer.codebook.norm(dim=1), torch.full((16,), 0.5))


def test_kmeans_init_finds_codes_of_each_group() -> None:
    quantizer = GroupedVQ(4, 3, groups=2, codebook={"init": "kmeans"})
    codes = 10 * torch.randn(2, 3, 2)
    latents = torch.cat([codes[0].repeat(10, 1), codes[1].flip(0).repeat(10, 1)], dim=1)
    quantizer.init_from_latents_(latents)
    torch.testing.assert_close(quantizer(latents).quantized, latents)


def test_frozen_layers_count_steps_with_the_quantizer() -> None:
    quantizer = GroupedVQ(4, 8)
    for frozen in (False, True, False):
        quantizer.frozen = frozen
        quantizer.after_step(quantizer(torch.randn(9, 4)))
    assert [quantizer.step.item(), *(layer.step.item() for layer in quantizer.vqs())] == [3, 3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 0}, "groups must be from 1 to 1024, got 0"),
        ({"groups": 10**9}, "groups must be from 1 to 1024"),
        ({"groups": 2, "heads": 4}, "say groups alone, got heads 4"),
        ({"groups": 3}, "dim 4 cannot be cut into 3 equal heads"),
    ],
)
def test_wrong_groups_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        GroupedVQ(4, 8, **options)


def test_one_channel_equals_vq() -> None:
    quantizer, plain = MultichannelVQ(4, 16, channels=1), VQ(4, 16)
    plain.load_state_dict(quantizer.state_dict())
    latents = torch.randn(5, 4, 3, 3)
    ours, theirs = quantizer(latents), plain(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.quantized, theirs.quantized)
    assert torch.equal(ours.loss, theirs.loss)


def test_permuted_chunks_permute_tokens() -> None:
    quantizer = MultichannelVQ(8, 16, init="normal")
    latents, order = torch.randn(5, 8, 3, 3), torch.tensor([2, 0, 3, 1])
    permuted = latents.unflatten(1, (4, 2))[:, order].flatten(1, 2)
    tokens = quantizer(latents).tokens
    assert tokens.shape == (5, 3, 3, 4)
    assert torch.equal(quantizer(permuted).tokens, tokens[..., order])
    assert not torch.equal(tokens[..., order], tokens)


def test_channels_and_other_heads_raise() -> None:
    with pytest.raises(ArcvqError, match="say channels alone, got 4 and heads 2"):
        MultichannelVQ(8, 16, heads=2)


def test_online_clustered_codebook_gives_four_tokens_per_position() -> None:
    quantizer = CVQ(256, 1024, heads=4)
    out = quantizer(torch.randn(1, 256, 16, 16))
    assert out.tokens.shape == (1, 16, 16, 4)
    assert quantizer.codebook.shape == (1024, 64)
    assert torch.equal(quantizer.decode(out.tokens), out.quantized)
    before = quantizer.codebook.detach().clone()
    quantizer.after_step(out)
    assert not torch.equal(quantizer.codebook, before)  # anchors are chunks of latents
