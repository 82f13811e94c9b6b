"""Quantizers of arcvq inside the autoencoders of other libraries."""

from copy import deepcopy

import pytest
import torch
from diffusers import VQModel
from torch import nn

from arcvq import ArcvqError, Ball
from arcvq.compat import DiffusersQuantizer, TamingQuantizer, reversed_bits
from arcvq.quantizers import EMAVQ, FSQ, LFQ, VQ, ArcVQ


class TamingModel(nn.Module):
    """A minimal model that calls its quantizer as taming's VQModel does."""

    def __init__(self, quantize):
        super().__init__()
        self.encoder, self.quantize, self.decoder = nn.Conv2d(3, 8, 4, 4), quantize, nn.ConvTranspose2d(8, 3, 4, 4)

    def forward(self, images):
        quantized, loss, (_, _, _) = self.quantize(self.encoder(images))
        return self.decoder(quantized), loss


def test_diffusers_model_trains_and_updates_quantizer():
    model = VQModel(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, mid_block_add_attention=False)
    model.quantize = DiffusersQuantizer(ArcVQ(4, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(2, 3, 8, 8)
    model.train()
    for _ in range(3):
        output = model(images)
        assert output.commit_loss.shape == ()
        assert output.commit_loss.requires_grad
        optimizer.zero_grad()
        ((output.sample - images).square().mean() + output.commit_loss).backward()
        optimizer.step()
    assert int(model.quantize.quantizer.step) == 3
    model.eval()(images)
    assert int(model.quantize.quantizer.step) == 3


@pytest.mark.parametrize("quantizer", [VQ(8, 16), EMAVQ(8, 16)], ids=["trained", "running means"])
def test_accumulated_micro_batches_count_as_one_step(quantizer):
    model = TamingModel(TamingQuantizer(quantizer))
    optimizer, other = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD([nn.Parameter(torch.ones(1))])
    for _ in range(2):
        for _ in range(2):
            sample, loss = model(torch.rand(2, 3, 8, 8))
            (sample.square().mean() + loss).backward()
        optimizer.step()
        other.step()
        optimizer.zero_grad()
    assert int(quantizer.step) == 2


def test_update_bounds_the_codes_and_advances_the_schedules():
    quantizer = ArcVQ(8, 16, ball=Ball(start=0.5, end=1.0))
    model = TamingModel(TamingQuantizer(quantizer))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    radii = []
    for _ in range(3):
        sample, loss = model(torch.rand(2, 3, 8, 8))
        optimizer.zero_grad()
        (sample.square().mean() + loss).backward()
        optimizer.step()
        radii.append(quantizer.samp.radius(quantizer.step))
        assert quantizer.codebook.norm(dim=1).max() <= radii[-1] * (1 + 1e-5)
    assert radii == sorted(set(radii))


def test_no_grad_passes_do_not_count_as_steps():
    model = TamingModel(TamingQuantizer(VQ(8, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    sample, loss = model(torch.rand(2, 3, 8, 8))
    with torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    (sample.square().mean() + loss).backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    assert int(model.quantize.quantizer.step) == 1


def test_deepcopy_updates_only_itself():
    model = TamingModel(TamingQuantizer(VQ(8, 16)))
    model(torch.rand(2, 3, 8, 8))
    copy = deepcopy(model)
    optimizer = torch.optim.SGD(copy.parameters(), lr=0.1)
    sample, loss = copy(torch.rand(2, 3, 8, 8))
    (sample.square().mean() + loss).backward()
    optimizer.step()
    assert (int(model.quantize.quantizer.step), int(copy.quantize.quantizer.step)) == (0, 1)


@pytest.mark.parametrize("heads", [1, 2])
def test_codebook_entries_equal_quantized_latents(heads):
    layer = TamingQuantizer(VQ(8, 16, heads=heads)).eval()
    quantized, _, (perplexity, _, tokens) = layer(torch.randn(2, 8, 3, 5))
    assert perplexity >= 1
    assert torch.equal(layer.get_codebook_entry(tokens.flatten(), (2, 3, 5, 8)), quantized)
    assert torch.equal(layer.get_codebook_entry(tokens), quantized)


def test_channel_last_is_refused():
    with pytest.raises(ArcvqError, match="channel_last"):
        TamingQuantizer(VQ(8, 16, channel_last=True))


def test_reversed_bits_match_vector_quantize_pytorch():
    layer = LFQ(4, 16).eval()
    output = layer(torch.randn(2, 4, 8, 8))
    theirs = reversed_bits(output.tokens, 16)
    # Its LFQ sums (codes > 0) · mask, where mask is 2 ** torch.arange(bits - 1, -1, -1).
    mask = torch.tensor([8, 4, 2, 1]).view(1, 4, 1, 1)
    assert torch.equal(theirs, ((output.quantized > 0) * mask).sum(dim=1))
    assert torch.equal(reversed_bits(theirs, 16), output.tokens)
    with pytest.raises(ArcvqError, match="power of two"):
        reversed_bits(theirs, 15)


def test_fsq_codes_match_vector_quantize_pytorch():
    levels = torch.tensor([8, 5, 5])
    # Its FSQ: level indices are tokens // basis % levels, and codes (index - levels // 2) / (levels // 2).
    indices = torch.arange(200).unsqueeze(1) // torch.tensor([1, 8, 40]) % levels
    assert torch.equal(FSQ(3, 200, levels=(8, 5, 5)).codebook, (indices - levels // 2) / (levels // 2))
