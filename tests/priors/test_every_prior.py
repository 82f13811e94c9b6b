"""What every registered prior keeps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_prior import GRID, SMALL, UNREACHED, grid_of, kind_of, small_generator, small_prior, some_values

from arcvq.errors import ArcvqError
from arcvq.priors import PRIORS, AutoregressivePrior, Generator, Noise, SamplingOptions

LABELS = torch.tensor([0, 2, 1, 2])
AUTOREGRESSIVE = [name for name in SMALL if issubclass(PRIORS[kind_of(name)], AutoregressivePrior)]
OVER_TOKENS = [name for name in SMALL if PRIORS[kind_of(name)].models == "tokens"]


def sample(prior, labels=LABELS, indices=(0, 1, 2, 3), known=None, **options):
    noise = Noise(7, indices)
    return prior.sample(labels, noise, SamplingOptions(**options), batch=len(indices), known=known)


def test_every_kind_has_a_small_configuration() -> None:
    assert {kind_of(name) for name in SMALL} == set(PRIORS)


@pytest.mark.parametrize("name", SMALL)
def test_training_loss_reaches_every_parameter(name: str) -> None:
    prior = small_prior(name).train()
    terms = prior(some_values(prior, 16), torch.arange(16) % 3)
    torch.stack(list(terms.values())).sum().backward()
    without = [key for key, each in prior.named_parameters() if each.grad is None or not each.grad.any()]
    unreached = UNREACHED.get(kind_of(name), ())
    assert without == [key for key, _ in prior.named_parameters() if any(part in key for part in unreached)]


@pytest.mark.parametrize("name", SMALL)
def test_sampled_values_have_the_shape_and_range_of_the_grid(name: str) -> None:
    prior = small_prior(name)
    values = sample(prior)
    assert values.shape == some_values(prior, 4).shape
    if prior.models == "tokens":
        assert values.dtype == torch.int64
        assert values.min() >= 0
        assert values.max() < GRID.codebook_size
    else:
        assert values.isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_image_depends_on_seed_and_index_and_not_on_its_place_in_the_batch(name: str) -> None:
    prior = small_prior(name)
    values, order = sample(prior, guidance=1.5), [2, 0, 3, 1]
    moved = sample(prior, LABELS[order], order, guidance=1.5)
    assert torch.equal(moved, values[order])
    assert not torch.equal(sample(prior, indices=(4, 5, 6, 7), guidance=1.5), values)


@pytest.mark.parametrize("name", SMALL)
def test_guidance_of_0_hides_the_class(name: str) -> None:
    prior = small_prior(name)
    unconditional = sample(prior, torch.full((4,), prior.null))
    assert torch.equal(sample(prior, guidance=0.0), unconditional)
    assert not torch.equal(sample(prior), unconditional)


@pytest.mark.parametrize("name", SMALL)
def test_evaluation_changes_nothing_and_depends_on_no_other_image(name: str) -> None:
    prior = small_prior(name)
    before = {key: each.clone() for key, each in prior.state_dict().items()}
    values = some_values(prior, 4)
    whole = prior.evaluate(values, LABELS, Noise(0, range(4)))
    part = prior.evaluate(values[2:], LABELS[2:], Noise(0, [2, 3]))
    torch.testing.assert_close(part, whole[2:], rtol=1e-4, atol=1e-4)
    assert whole.shape == (4,)
    assert whole.isfinite().all()
    assert all(torch.equal(each, before[key]) for key, each in prior.state_dict().items())


@pytest.mark.parametrize("name", SMALL)
def test_short_training_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    prior = PRIORS.build(SMALL[name], grid_of(name)).train()
    values, labels = some_values(prior, 8), torch.arange(8) % 3
    optimizer = torch.optim.Adam(prior.parameters(), lr=1e-2)
    losses = []
    for _ in range(80):
        loss = torch.stack(list(prior(values, labels).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        prior.after_step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("name", OVER_TOKENS)
def test_known_tokens_are_kept(name: str) -> None:
    prior = small_prior(name)
    known = some_values(prior, 4)
    known[:, 1:] = -1
    values = sample(prior, known=known)
    assert torch.equal(values[:, :1], known[:, :1])
    assert values.min() >= 0
    with pytest.raises(ArcvqError, match="known tokens"):
        sample(prior, known=known[:, :2])


@pytest.mark.parametrize("name", SMALL)
def test_option_that_the_prior_does_not_have_is_refused(name: str) -> None:
    prior = small_prior(name)
    values = {"top_k": 2, "top_p": 0.5, "temperature": 0.5, "steps": 2, "order": "halton", "eta": 0.5}
    refused = [option for option in values if option not in prior.sampling_options]
    assert refused
    for option in refused:
        with pytest.raises(ArcvqError, match=option):
            sample(prior, **{option: values[option]})


@pytest.mark.parametrize("name", AUTOREGRESSIVE)
def test_no_logit_depends_on_its_own_or_a_later_token(name: str) -> None:
    prior = small_prior(name)
    assert isinstance(prior, AutoregressivePrior)
    tokens = some_values(prior, 4)
    logits, flat = prior.logits(tokens, LABELS), tokens.flatten(1)
    for position in range(prior.length):
        changed = flat.clone()
        changed[:, position] = (changed[:, position] + 1) % GRID.codebook_size
        other = prior.logits(changed.view_as(tokens), LABELS)
        assert torch.equal(other[:, : position + 1], logits[:, : position + 1])
        if position + 1 < prior.length:
            assert not torch.equal(other[:, position + 1 :], logits[:, position + 1 :])


@pytest.mark.parametrize("name", AUTOREGRESSIVE)
def test_step_by_step_logits_equal_those_of_the_whole_sequence(name: str) -> None:
    prior = small_prior(name)
    assert isinstance(prior, AutoregressivePrior)
    tokens = some_values(prior, 4)
    logits, state = prior.logits(tokens, LABELS), prior.begin(LABELS)
    for position in range(prior.length):
        found = prior.next_logits(state, torch.tensor([position]), prior.step_kind(position))
        torch.testing.assert_close(found, logits[:, position], rtol=1e-5, atol=1e-5)
        state.tokens[:, position] = tokens.flatten(1)[:, position]


@pytest.mark.parametrize("name", AUTOREGRESSIVE)
def test_a_step_reads_nothing_on_the_host(name: str) -> None:
    """So that it can be recorded once and replayed at every position: tensors without values raise when they are read."""
    prior = small_prior(name).to("meta")
    assert isinstance(prior, AutoregressivePrior)
    state = prior.begin(LABELS.to("meta"))
    for kind in range(prior.step_kinds):
        logits = prior.next_logits(state, torch.zeros(1, dtype=torch.int64, device="meta"), kind)
        assert logits.shape == (4, GRID.codebook_size)


@pytest.mark.parametrize("name", AUTOREGRESSIVE)
def test_temperature_of_0_takes_the_likeliest_token_each_time(name: str) -> None:
    prior = small_prior(name)
    assert isinstance(prior, AutoregressivePrior)
    values = sample(prior, temperature=0.0)
    assert torch.equal(prior.logits(values, LABELS).argmax(-1), values.flatten(1))


@pytest.mark.parametrize("name", SMALL)
def test_saved_generator_makes_the_same_images_when_loaded(name: str, tmp_path: Path) -> None:
    generator = small_generator(name)
    images = generator(3, seed=1, chunk=2)
    assert images.shape == (3, 1, 12, 16)
    assert images.abs().max() <= 1
    loaded = Generator.from_pretrained(generator.save_pretrained(tmp_path / "model"))
    assert loaded.class_names == ["cat", "dog", "red fox"]
    assert torch.equal(loaded(3, seed=1, chunk=2), images)
    assert torch.equal(loaded(1, seed=1, chunk=2), images[:1])
    assert torch.equal(loaded(1, seed=1, first=2, chunk=2, classes="red fox"), images[2:])


@pytest.mark.parametrize("name", SMALL)
def test_prior_without_classes_samples_and_refuses_classes(name: str) -> None:
    prior = small_prior(name, replace(grid_of(name), classes=0))
    generator = Generator(prior, small_generator(name).tokenizer)
    assert generator(2, chunk=2).shape == (2, 1, 12, 16)
    with pytest.raises(ArcvqError, match="without classes"):
        generator(2, chunk=2, classes=0)


@pytest.mark.parametrize("name", SMALL)
def test_sampling_calls_what_was_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compile_(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            calls.append(function.__name__)
            return function(*arguments, **named)

        return called

    prior = small_prior(name)
    values = sample(prior)
    monkeypatch.setattr(torch, "compile", compile_)
    prior.compile_step()
    assert torch.equal(sample(prior), values)
    assert calls


@pytest.mark.parametrize("name", SMALL)
def test_resolved_options_are_those_that_sampling_uses(name: str) -> None:
    prior = small_prior(name)
    found = prior.resolved_options(SamplingOptions())
    assert tuple(found) == prior.sampling_options
    assert all(found[option] is not None for option in found if option not in ("top_k", "top_p"))
    assert prior.resolved_options(SamplingOptions(guidance=1.5))["guidance"] == 1.5
