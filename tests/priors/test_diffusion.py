"""The noise schedule and DDIM, against closed forms and diffusers' scheduler."""

from typing import Any

import pytest
import torch

from arcvq.errors import ArcvqError
from arcvq.priors.diffusion import TIMES, add_noise, ddim_step, ddim_times, signal_shares

SHARES = signal_shares()
ALLOWED = [each for each in range(2, 501) if 1000 % each == 0]


def scheduler() -> Any:
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        beta_start=0.0015,
        beta_end=0.0195,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def some_numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_shares_are_those_of_latent_diffusion() -> None:
    assert (len(SHARES), SHARES.dtype) == (TIMES, torch.float64)
    assert SHARES[0].item() == pytest.approx(0.9985, abs=1e-12)
    assert SHARES[499].item() == pytest.approx(0.1158, abs=5e-5)
    assert SHARES[999].item() == pytest.approx(1.42e-4, abs=5e-7)
    torch.testing.assert_close(SHARES.float(), scheduler().alphas_cumprod, rtol=1e-4, atol=0)


@pytest.mark.parametrize("time", [0, 499, 999])
def test_noisy_values_have_the_moments_of_the_schedule(time: int) -> None:
    share = SHARES[time]
    noisy = add_noise(3 + 0.5 * some_numbers(0, 200_000), some_numbers(1, 200_000), share.expand(200_000))
    assert noisy.mean().item() == pytest.approx(3 * share.sqrt().item(), abs=0.01)
    assert noisy.var().item() == pytest.approx((0.25 * share + 1 - share).item(), rel=0.02)


def test_noise_is_added_to_each_image_by_its_own_share() -> None:
    values, noise = some_numbers(0, 2, 3, 4, 5), some_numbers(1, 2, 3, 4, 5)
    noisy = add_noise(values, noise, torch.tensor([1.0, 0.0]))
    assert torch.equal(noisy, torch.stack([values[0], noise[1]]))


@pytest.mark.parametrize("time", [0, 1, 499, 997, 999])
def test_step_with_the_true_noise_returns_the_values_at_any_share(time: int) -> None:
    values, noise = some_numbers(0, 4, 3), some_numbers(1, 4, 3)
    noisy = add_noise(values, noise, SHARES[time].expand(4))
    share = SHARES[time].item()
    torch.testing.assert_close(ddim_step(noisy, noise, share, 1.0, 0.0, None), values, rtol=0, atol=1e-10)
    # Random noise has no place where nothing but the values is left.
    torch.testing.assert_close(ddim_step(noisy, noise, share, 1.0, 1.0, noise), values, rtol=0, atol=1e-10)
    less = add_noise(values, noise, SHARES[time // 2].expand(4))
    found = ddim_step(noisy, noise, share, SHARES[time // 2].item(), 0.0, None)
    torch.testing.assert_close(found, less, rtol=0, atol=1e-10)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("steps", [4, 250])
def test_every_step_equals_that_of_diffusers(steps: int, eta: float) -> None:
    theirs = scheduler()
    theirs.alphas_cumprod, theirs.final_alpha_cumprod = SHARES, SHARES[0]
    theirs.set_timesteps(steps)
    times = ddim_times(steps)
    noisy = some_numbers(0, 2, 3, 4, 4)
    for index, (now, following) in enumerate(zip(times, [*times[1:], 0])):
        noise, fresh = some_numbers(2 * index + 1, 2, 3, 4, 4), some_numbers(2 * index + 2, 2, 3, 4, 4)
        expected = theirs.step(noise, now, noisy, eta=eta, variance_noise=fresh if eta else None).prev_sample
        found = ddim_step(noisy, noise, SHARES[now].item(), SHARES[following].item(), eta, fresh if eta else None)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        noisy = expected


@pytest.mark.parametrize("steps", ALLOWED)
def test_times_are_those_of_diffusers(steps: int) -> None:
    theirs = scheduler()
    theirs.set_timesteps(steps)
    assert ddim_times(steps) == theirs.timesteps.tolist()


def test_250_steps_ask_at_every_fourth_time_from_997_down_to_1() -> None:
    assert ddim_times(250) == list(range(997, 0, -4))


@pytest.mark.parametrize("steps", [-2, 0, 1, 3, 30, 1000])
def test_steps_that_do_not_divide_the_times_are_refused(steps: int) -> None:
    with pytest.raises(ArcvqError, match=rf"steps must be one of 2, 4, .*500, got {steps}"):
        ddim_times(steps)


def law_of_samples(steps: int, eta: float, mean: float, deviation: float) -> tuple[float, float]:
    """Mean and deviation of what DDIM makes of random noise, if the predicted noise is the exact one of normal data.

    A step is then linear in the noisy values and the fresh noise, so three points tell all.
    """
    found, variance, times = 0.0, 1.0, ddim_times(steps)
    noisy, fresh = torch.tensor([0.0, 1.0, 0.0]).double(), torch.tensor([0.0, 0.0, 1.0]).double()
    for now, following in zip(times, [*times[1:], 0]):
        share = SHARES[now]
        noise = (1 - share).sqrt() * (noisy - share.sqrt() * mean) / (share * deviation**2 + 1 - share)
        after = ddim_step(noisy, noise, share.item(), SHARES[following].item(), eta, fresh).tolist()
        found = after[0] + (after[1] - after[0]) * found
        variance = (after[1] - after[0]) ** 2 * variance + (after[2] - after[0]) ** 2
    return found, variance**0.5


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize(("mean", "deviation"), [(2.0, 0.5), (-1.0, 1.0), (0.0, 3.0)])
def test_sampling_with_the_exact_noise_approaches_the_law_of_normal_data(
    mean: float, deviation: float, eta: float
) -> None:
    errors = []
    for steps in (50, 250, 500):
        found = law_of_samples(steps, eta, mean, deviation)
        errors.append(max(abs(found[0] - mean), abs(found[1] / deviation - 1)))
    assert errors[1] < 0.05
    assert errors[2] < errors[1] < errors[0] or errors[0] < 0.01
