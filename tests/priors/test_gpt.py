"""GPT's training orders, replaced input tokens, and its untrained prediction."""

import math

import pytest
import torch

from arcvq import ArcvqError
from arcvq.priors import Gpt, GptConfig, Grid

GRID = Grid(height=4, width=5, codebook_size=17, classes=3)
SIZES = {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}


def gpt(**options: object) -> Gpt:
    torch.manual_seed(0)
    return Gpt(GRID, GptConfig(**SIZES, **options))  # type: ignore[arg-type]


def test_untrained_prediction_costs_the_logarithm_of_the_codes() -> None:
    tokens = torch.randint(17, (3, 4, 5))
    assert gpt()(tokens)["cross_entropy"].item() == pytest.approx(math.log(17), rel=1e-6)


def test_random_orders_become_rarer_between_the_shares_of_the_training() -> None:
    prior = gpt(order="annealed", total_steps=100, anneal=(0.5, 0.75))
    shares = []
    for step in (0, 50, 60, 75, 100):
        prior.step.fill_(step)
        shares.append(prior.random_share().item())
    assert shares == pytest.approx([1, 1, 0.6, 0, 0])


def test_training_order_is_a_permutation_and_ends_in_raster_order() -> None:
    prior = gpt(order="annealed", total_steps=100)
    order = prior.training_order(64)
    assert order is not None
    assert torch.equal(order.sort(1).values, torch.arange(20).expand(64, -1))
    assert (order != torch.arange(20)).any(1).all()
    prior.step.fill_(90)
    assert torch.equal(prior.training_order(64), torch.arange(20).expand(64, -1))
    assert gpt().training_order(64) is None


def test_order_moves_tokens_and_their_places_together() -> None:
    """With the class alone before it, the first token of an order costs what its place says, whatever the order of the others."""
    prior = gpt(order="annealed", total_steps=100)
    torch.nn.init.normal_(prior.head.weight)
    labels, order = torch.tensor([1, 1]), torch.stack([torch.arange(20), torch.arange(20).flip(0)])
    tokens = torch.randint(17, (1, 20)).expand(2, -1)
    logits = prior.ordered_logits(tokens.gather(1, order), labels, order)
    again = prior.ordered_logits(tokens.gather(1, order.flip(0)), labels, order.flip(0))
    torch.testing.assert_close(logits, again.flip(0))
    assert not torch.allclose(logits[0, 0], logits[1, 0])


def test_replaced_input_tokens_are_learned_as_they_were() -> None:
    """Inputs are replaced, targets are not: a head that copies its input then errs on the replaced ones alone."""
    prior = gpt(token_dropout=0.5)
    seen: list[torch.Tensor] = []
    original = prior.ordered_logits

    def recorded(tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(tokens)
        return original(tokens, *rest)  # type: ignore[arg-type]

    prior.ordered_logits = recorded  # type: ignore[method-assign]
    tokens = torch.randint(17, (200, 4, 5))
    prior(tokens)
    changed = (seen[0] != tokens.flatten(1)).float().mean().item()
    assert changed == pytest.approx(0.5 * 16 / 17, abs=0.03)
    gpt_without = gpt()
    gpt_without.ordered_logits = lambda tokens, *rest: seen.append(tokens) or original(tokens, *rest)  # type: ignore
    gpt_without(tokens)
    assert torch.equal(seen[1], tokens.flatten(1))


def test_annealed_order_needs_the_length_of_the_training() -> None:
    with pytest.raises(ArcvqError, match="total_steps"):
        gpt(order="annealed")(torch.zeros(1, 4, 5, dtype=torch.int64))
