"""PixelCNN: what a position sees, what an untrained one predicts, and its settings."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.nets.pixelcnn import GatedPixelCnn
from arcvq.priors import Grid, Noise, PixelCnn, PixelCnnConfig
from arcvq.systems import PriorRunConfig, load_config

GRIDS = [(3, 5), (5, 3), (1, 6), (6, 1), (4, 4)]


def seen_by(net: GatedPixelCnn, height: int, width: int) -> Tensor:
    """(P, P): whether the output at a position (row) depends on the input at another, by the gradient in float64."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, height, width, dtype=torch.float64, requires_grad=True)
    found = net.double().eval()(x, torch.zeros(1, dtype=torch.int64)).sum((0, 1)).flatten()
    gradients = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in found]
    return torch.stack([gradient.abs().sum((0, 1)).flatten() > 0 for gradient in gradients])


@pytest.mark.parametrize(("height", "width"), GRIDS)
def test_position_sees_every_earlier_one_and_no_other(height: int, width: int) -> None:
    torch.manual_seed(0)
    net = GatedPixelCnn(4, 5, 1, first_kernel=5, kernel=3)
    positions = height * width
    assert torch.equal(seen_by(net, height, width), torch.ones(positions, positions).tril(-1).bool())


@pytest.mark.parametrize(("first_kernel", "kernel", "layers"), [(3, 3, 1), (3, 3, 2), (7, 3, 1), (3, 5, 2)])
def test_position_sees_as_far_as_the_kernels_reach(first_kernel: int, kernel: int, layers: int) -> None:
    torch.manual_seed(0)
    net = GatedPixelCnn(4, layers, 1, first_kernel=first_kernel, kernel=kernel)
    height, width, reach = 6, 9, first_kernel // 2 + (layers - 1) * (kernel // 2)
    rows, columns = torch.arange(height * width) // width, torch.arange(height * width) % width
    near = ((rows[:, None] - rows) <= reach) & ((columns[:, None] - columns).abs() <= reach)
    earlier = torch.ones(height * width, height * width).tril(-1).bool()
    assert torch.equal(seen_by(net, height, width), near & earlier)


@pytest.mark.parametrize(("height", "width"), GRIDS)
@pytest.mark.parametrize(("first_kernel", "kernel", "layers"), [(3, 3, 1), (7, 3, 3), (5, 5, 2)])
def test_steps_with_a_cache_give_the_whole_grid(
    first_kernel: int, kernel: int, layers: int, height: int, width: int
) -> None:
    torch.manual_seed(0)
    net = GatedPixelCnn(4, layers, 3, first_kernel=first_kernel, kernel=kernel).double()
    x, labels = torch.randn(2, 4, height, width, dtype=torch.float64), torch.tensor([2, 0])
    cache, zeros = net.make_cache(2, height, width, x), torch.zeros_like(x[:, :, 0])
    for _ in range(2):  # a second grid in the same cache sees nothing of the first
        x = x.flip(0)
        expected = net(x, labels)
        for row in range(height):
            net.begin_row(x[:, :, row - 1] if row else zeros, torch.tensor([row]), cache, labels)
            for column in range(width):
                left = x[:, :, row, column - 1] if column else zeros[:, :, 0]
                found = net.step(left, torch.tensor([column]), cache, labels)
                torch.testing.assert_close(found, expected[:, :, row, column])


def test_training_leaves_no_way_to_later_positions() -> None:
    """The kernels hold no weights for them: weight decay, momentum and the like have nothing to revive."""
    torch.manual_seed(0)
    net = GatedPixelCnn(4, 5, 1, first_kernel=5, kernel=3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        net(torch.randn(2, 4, 3, 4), torch.zeros(2, dtype=torch.int64)).square().sum().backward()
        optimizer.step()
    assert not seen_by(net, 3, 4).triu().any()


def test_untrained_prior_gives_every_token_log_k() -> None:
    prior = PixelCnn(Grid(height=3, width=5, codebook_size=32, classes=2), PixelCnnConfig(width=8, layers=2)).eval()
    tokens, labels = torch.randint(32, (4, 3, 5)), torch.tensor([0, 1, 1, 0])
    assert prior(tokens, labels)["cross_entropy"].item() == pytest.approx(math.log(32), rel=1e-6)
    torch.testing.assert_close(prior.evaluate(tokens, labels, Noise(0, range(4))), torch.full((4,), 5.0))


def test_one_grid_is_learned_by_heart() -> None:
    torch.manual_seed(0)
    prior = PixelCnn(Grid(height=3, width=5, codebook_size=7), PixelCnnConfig(width=16, layers=3, head_width=32))
    tokens = torch.randint(7, (1, 3, 5))
    optimizer = torch.optim.Adam(prior.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss = prior(tokens)["cross_entropy"]
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-2


@pytest.mark.parametrize("classes", [0, 10])
def test_defaults_have_the_number_of_parameters_of_their_shapes(classes: int) -> None:
    """Gated stacks of 15 layers and 64 channels, kernels of 7 and then 3, and a head of 512."""
    c, k, head = 64, 512, 512

    def layer(rows: int, kernel: int) -> int:
        vertical, horizontal = rows * kernel * c * 2 * c + 2 * c, rows * c * 2 * c + 2 * c
        across, out, labels = 4 * c * c + 2 * c, c * c + c, (classes + 1) * 2 * c
        return vertical + horizontal + across + out + labels

    expected = k * c + layer(3, 7) + 14 * layer(2, 3) + c * head + head + head * k + k
    prior = PixelCnn(Grid(height=8, width=8, codebook_size=k, classes=classes), PixelCnnConfig())
    assert sum(parameter.numel() for parameter in prior.parameters()) == expected


def test_preset_for_photographs_has_the_size_that_it_says_and_sees_the_whole_grid() -> None:
    config = load_config("photos-128/pixelcnn")
    assert isinstance(config, PriorRunConfig)
    assert isinstance(config.prior, PixelCnnConfig)
    with torch.device("meta"):
        prior = PixelCnn(Grid(height=16, width=16, codebook_size=1024, classes=139), config.prior)
    assert sum(parameter.numel() for parameter in prior.parameters()) == pytest.approx(7.0e6, rel=0.01)
    reach = config.prior.first_kernel // 2 + (config.prior.layers - 1) * (config.prior.kernel // 2)
    assert reach >= 15


def test_dropout_changes_training_only() -> None:
    torch.manual_seed(0)
    net = GatedPixelCnn(4, 2, 1, first_kernel=3, kernel=3, dropout=0.5)
    x, labels = torch.randn(2, 4, 3, 4), torch.zeros(2, dtype=torch.int64)
    assert not torch.equal(net(x, labels), net(x, labels))
    net.eval()
    assert torch.equal(net(x, labels), net(x, labels))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": 4}, "prior.kernel must be odd, got 4"),
        ({"first_kernel": 1}, "prior.first_kernel must be from 3"),
        ({"layers": 0}, "prior.layers"),
        ({"width": 0}, "prior.width"),
        ({"head_width": 2**14}, "prior.head_width"),
        ({"dropout": 1.0}, "prior.dropout"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        PixelCnnConfig(**settings)


def test_several_tokens_per_position_are_refused() -> None:
    with pytest.raises(ArcvqError, match="use rq-transformer"):
        PixelCnn(Grid(height=2, width=2, codebook_size=4, depth=2), PixelCnnConfig())
