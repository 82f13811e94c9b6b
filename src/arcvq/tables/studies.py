"""Our own studies. What is tuned is tuned alike: short runs, chosen on images held out of the training set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from arcvq.functional.schedules import NAMED_RUNS
from arcvq.tables.experiments import Experiment

# The data set that everything is tuned and compared on.
DATA = "cifar10"
# Every system that has tokens, the most telling first.
CONTENDERS = (
    "vq-vae", "arcvq-vae", "cvq-vae", "vq-vae-ema", "simvq", "vq-vae-rotation", "sq-vae", "fsq", "vq-vae-cosine", "lfq", "hvq-vae",
)  # fmt: skip
# Of them, those whose own settings follow the length of the training: temperatures that fall over it.
STRETCHED = ("sq-vae", "hvq-vae")
BUDGETS = (25, 50, 100, 250, 500)
# The last look of such a run is at all held-out images, and that is what is compared; the test set stays for the report.
SHORT = (
    "--training.epochs=100",
    "--data.holdout=5000",
    "--training.evaluation_images=5000",
    "--training.evaluations=10",
    "--training.checkpoints=1",
)
# Everyone begins with the four in the middle. Where a schedule's best is the lowest or the highest tried, the next one is tried too.
LADDER = ("2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2")
RATES = LADDER[2:6]
SCHEDULES = ("constant", "cosine")
# So many dB behind the other schedule, at the best rate of each, one is not worth a longer training.
FAR = 1.0
How = tuple[str, str]  # a rate and a schedule
LEARNING: tuple[How, ...] = tuple(product(RATES, SCHEDULES))


def learning(rate: str, schedule: str) -> tuple[str, ...]:
    """With the same short warm-up for everyone: high rates ask for one."""
    return (f"--training.learning_rate={rate}", f"--training.schedule={schedule}", "--training.warmup_steps=100")


def learning_name(rate: str, schedule: str) -> str:
    return f"lr{rate}{'-cosine' * (schedule == 'cosine')}"


# ---- tuning: the same eight for everyone, and what they ask for -----------------------------------------------------------


def tuning(system: str, hows: Iterable[How] = LEARNING) -> dict[How, Experiment]:
    """Rate and schedule → the run that tries them."""
    return {
        how: Experiment(f"tune-{system}-{learning_name(*how)}", system, (*SHORT, *learning(*how)), quick=True)
        for how in hows
    }


def tunings(chosen: Mapping[str, Any]) -> list[Experiment]:
    """Every system's eight, then what lies beyond them."""
    further = chosen.get("further", {})
    return [run for system in CONTENDERS for run in tuning(system).values()] + [
        run for system in CONTENDERS for run in tuning(system, map(tuple, further.get(system, ()))).values()
    ]


# ---- α × λ × learning rate ----------------------------------------------------------------------------------------------

MULTIPLES = {"third": 1 / 3, "same": 1.0, "triple": 3.0}
GRID_RATES = ("3e-4", "1e-3")


def grid_name(growth: str, decay: str, rate: str) -> str:
    return f"grid-alpha-{growth}-decay-{decay}-lr{rate}"


def in_fractions(growth: float, decay: float) -> tuple[str, ...]:
    """M = exp(growth·x) and γ = exp(−decay·x), x the fraction of training that is over."""
    return (
        "--quantizer.ball.time=fraction",
        f"--quantizer.ball.alpha={growth:.4g}",
        "--quantizer.arc.time=fraction",
        f"--quantizer.arc.decay={decay:.4g}",
    )


def in_steps(growth: float, decay: float, epochs: int) -> tuple[str, ...]:
    """The same curves as in a training of so many epochs, whatever the length of this one."""
    steps = NAMED_RUNS["cifar10"].steps * epochs / BUDGETS[-1]
    return (
        "--quantizer.ball.time=steps",
        f"--quantizer.ball.alpha={growth / steps:.4g}",
        "--quantizer.arc.time=steps",
        f"--quantizer.arc.decay={decay / steps:.4g}",
    )


# What the paper's α·T and λ·T come to on CIFAR-10: the same curves, whatever the length of a run.
PAPER_GROWTH = NAMED_RUNS["cifar10"].growth * NAMED_RUNS["cifar10"].steps
PAPER_DECAY = NAMED_RUNS["cifar10"].decay * NAMED_RUNS["cifar10"].steps

GRID = [
    Experiment(
        grid_name(growth, decay, rate),
        "arcvq-vae",
        (*SHORT, *learning(rate, "cosine"), *in_fractions(MULTIPLES[growth] * PAPER_GROWTH, MULTIPLES[decay] * PAPER_DECAY)),
        quick=True,
    )
    for growth, decay, rate in product(MULTIPLES, MULTIPLES, GRID_RATES)
]  # fmt: skip


# ---- other schedules than exponential ones --------------------------------------------------------------------------------

AS_IN_THE_PAPER = grid_name("same", "same", "1e-3")  # what they are beside


def _shaped(part: str, kind: str, says: str, **settings: float) -> Experiment:
    """One of M and γ along another curve, the other as it was."""
    shape = [f"--quantizer.{part}.{key}={value}" for key, value in {"schedule": kind, **settings}.items()]
    as_it_was = next(run for run in GRID if run.name == AS_IN_THE_PAPER).settings
    return Experiment(f"schedule-{part}-{kind}", "arcvq-vae", (*as_it_was, *shape), says, quick=True)


FIVE_TIMES = {"duration": 0.2}
SHAPED = [
    _shaped("arc", "constant", "γ stays 1"),
    _shaped("arc", "linear", "γ falls in a line, to 0 at the end"),
    _shaped("arc", "cosine", "γ falls along half a cosine, to 0 at the end"),
    _shaped("arc", "oscillating", "γ falls to 0 and rises to 1 again, five times", **FIVE_TIMES),
    _shaped("arc", "adaptive", "γ falls as the perplexity rises, to 0 at 0.8 K"),
    _shaped("ball", "constant", "M stays 1"),
    _shaped("ball", "linear", "M rises in a line, to 10 at the end"),
    _shaped("ball", "cosine", "M rises along half a cosine, to 10 at the end"),
    _shaped("ball", "oscillating", "M rises to 10 and falls to 1 again, five times", **FIVE_TIMES),
]


# ---- a better recipe ----------------------------------------------------------------------------------------------------

# ArcLoss and ball hold the codebook up while it is built, and are taken down early: the weight is below a hundredth after
# a sixth of the training, and the ball wider than any code by then.
EARLY = (20, 30)
FAST = in_fractions(*EARLY)
EUCLIDEAN, ANGULAR = "--quantizer.metric=euclidean", "--quantizer.metric=cosine"
NEITHER = ("--quantizer.arc=null", "--quantizer.ball=null")


def _candidate(name: str, says: str, *settings: str, preset: str = "arcvq-vae", rate: str = "4e-3") -> Experiment:
    own = (*learning(rate, "cosine"), *settings)
    return Experiment(f"scaffold-{name}", preset, own, says)


def _on_draws(name: str, says: str, *settings: str, variance: float = 0.05, rate: str = "4e-3") -> Experiment:
    """On SQ-VAE, its draws nearly sure of themselves from the start: its own variance begins far wider than a unit ball's codes lie
    apart."""
    sharp = ("--quantizer.floor=0", f"--quantizer.start_variance={variance}")
    what = f"on SQ-VAE's draws, with a free variance from {variance}{says}"
    return _candidate(f"sq{name}", what, *settings, *sharp, preset="sq-vae", rate=rate)


def _weight(**settings: Any) -> tuple[str, ...]:
    return tuple(f"--quantizer.arc.{key}={value}" for key, value in settings.items())


# As SQ-VAE has it: the better the images, the more an error of theirs weighs beside the latents' terms.
LIKELIHOOD = "--objective.reconstruction=likelihood"
# The ball puts codes there in its first step; without one they begin eight times as far out.
SPHERE = "--quantizer.start=unit-sphere"

# Codes are chosen by distance and the learning rate is 4e-3 unless it says otherwise. Names without the length: what wins is
# run at every budget.
CANDIDATES = [
    _candidate("paper", "the paper's M and γ over this run's length, learning rate 1e-3",
               *in_fractions(PAPER_GROWTH, PAPER_DECAY), EUCLIDEAN, rate="1e-3"),
    _candidate("euclidean", "taken down early, learning rate 1e-3", *FAST, EUCLIDEAN, rate="1e-3"),
    _candidate("rate", "taken down early, learning rate 2e-3", *FAST, EUCLIDEAN, rate="2e-3"),
    _candidate("rate-high", "taken down early", *FAST, EUCLIDEAN),
    _candidate("rate-highest", "taken down early, learning rate 8e-3", *FAST, EUCLIDEAN, rate="8e-3"),
    _candidate("cosine", "taken down early, codes chosen by angle", *FAST),
    _candidate("light", "γ0 = 0.3", *FAST, EUCLIDEAN, *_weight(weight=0.3)),
    _candidate("third", "γ along half a cosine to 0 at 30 % of training", *FAST, EUCLIDEAN, *_weight(schedule="cosine", duration=0.3)),
    _candidate("half", "γ0 = 0.3, along half a cosine to 0 at 50 %", *FAST, EUCLIDEAN,
               *_weight(weight=0.3, schedule="cosine", duration=0.5)),
    _candidate("floor", "γ along half a cosine to 0.003 at 30 %, where it stays", *FAST, EUCLIDEAN,
               *_weight(schedule="cosine", duration=0.3, end=0.003)),
    _candidate("adaptive", "γ0 = 0.1 until the perplexity is 0.8 K", *FAST, EUCLIDEAN,
               *_weight(weight=0.1, schedule="adaptive", target=0.8)),
    _candidate("adaptive-strong", "γ0 = 1 until the perplexity is 0.6 K", *FAST, EUCLIDEAN,
               *_weight(weight=1.0, schedule="adaptive", target=0.6)),
    _candidate("rotation", "with the rotation trick", *FAST, EUCLIDEAN, "--quantizer.estimator=rotation"),
    _candidate("restart", "with restarts of dead codes", *FAST, EUCLIDEAN, "--quantizer.restart={}"),
    _candidate("ema", "on running means", *FAST, EUCLIDEAN, preset="vq-vae-ema-samp"),
    _candidate("cvq", "on CVQ-VAE's anchors", *FAST, EUCLIDEAN, preset="cvq-vae-samp"),
    _candidate("likelihood", "the reconstruction as a likelihood", *FAST, EUCLIDEAN, LIKELIHOOD),
    _candidate("likelihood-restart", "the reconstruction as a likelihood, with restarts of dead codes", *FAST, EUCLIDEAN, LIKELIHOOD,
               "--quantizer.restart={}"),
    _on_draws("", "", *FAST),
    _on_draws("-light", ", γ0 = 0.1", *FAST, *_weight(weight=0.1)),
    _on_draws("-lighter", ", γ0 = 0.03", *FAST, *_weight(weight=0.03)),
    _on_draws("-light-rate", ", γ0 = 0.1, learning rate 8e-3", *FAST, *_weight(weight=0.1), rate="8e-3"),
    _on_draws("-sharper", "", *FAST, variance=0.02),
    _on_draws("-rate", ", learning rate 2e-3", *FAST, rate="2e-3"),
    # Controls: what is left when a part is.
    _candidate("no-arc", "control: without ArcLoss", EUCLIDEAN, "--quantizer.arc=null", *FAST[:2]),
    _candidate("no-ball", "control: without ball", EUCLIDEAN, "--quantizer.ball=null", *FAST[2:]),
    _candidate("neither", "control: without both", EUCLIDEAN, *NEITHER),
    _candidate("neither-likelihood", "control: without both, the reconstruction as a likelihood", EUCLIDEAN, *NEITHER, LIKELIHOOD),
    _on_draws("-no-arc", ": control, without ArcLoss", *FAST[:2]),
    _on_draws("-no-ball", ": control, without ball", *FAST[2:]),
    _on_draws("-neither", ": control, without both"),
    _on_draws("-no-ball-sphere", ", codes started on the unit sphere: control, without ball", *FAST[2:], SPHERE),
    _on_draws("-neither-sphere", ", codes started on the unit sphere: control, without both", SPHERE),
]  # fmt: skip
# What is held against the others, and never chosen: it is no recipe for SAMP.
WITHOUT_SAMP = ("scaffold-neither", "scaffold-neither-likelihood", "scaffold-sq-neither", "scaffold-sq-neither-sphere")
# What is left of a recipe without SAMP, by the preset that it stands on: held against it at every length.
CONTROLS = {"arcvq-vae": "scaffold-neither", "sq-vae": "scaffold-sq-neither-sphere"}
# Level after a short training, candidates may differ after a long one: all that are so near to the best go on to a final.
LEVEL = 0.05
# In the final alone, beside the one that they are variants of: a short training has nearly the same curves.
VARIANTS = {
    "scaffold-sq-light": [
        _on_draws("-brief", ", γ0 = 0.1, taken down as in 100 epochs, within some 800 steps", *in_steps(*EARLY, 100), *_weight(weight=0.1)),
        _on_draws("-briefer", ", γ0 = 0.1, taken down as in 25 epochs, within some 200 steps", *in_steps(*EARLY, 25), *_weight(weight=0.1)),
    ],
}  # fmt: skip
RECIPES = {each.name: each for each in (*CANDIDATES, *(each for some in VARIANTS.values() for each in some))}
RECIPE_PRESET = "arcvq-scaffold"  # what the chosen one is shipped as
RECIPE = [
    Experiment(f"recipe-{each.name}", each.preset, (*each.settings, *SHORT), each.says, quick=True)
    for each in CANDIDATES
]


def finals(names: Iterable[str]) -> dict[str, Experiment]:
    """Recipe → the long run that decides; on the same held-out images as the short ones."""
    longest = f"--training.epochs={BUDGETS[-1]}"
    return {
        name: Experiment(f"final-{name}", each.preset, (*each.settings, longest, *SHORT[1:]), each.says)
        for name in names
        for each in (RECIPES[name],)
    }


# ---- SAMP on top of other quantizers --------------------------------------------------------------------------------------

# System → its preset with SAMP. SQ-VAE is what the recipe stands on, and is tried there.
ON_TOP = {
    "vq-vae": "arcvq-vae", "vq-vae-ema": "vq-vae-ema-samp", "cvq-vae": "cvq-vae-samp", "simvq": "simvq-samp",
    "vq-vae-rotation": "vq-vae-rotation-samp",
}  # fmt: skip
# Of them, those that choose codes by angle; the others choose by distance.
BY_ANGLE = ("cvq-vae",)
CURVES = {"paper": in_fractions(PAPER_GROWTH, PAPER_DECAY), "early": FAST}


def on_top(chosen: Mapping[str, Any]) -> dict[tuple[str, str], Experiment]:
    """System and curves of M and γ → the run with SAMP, at the rate that was chosen for the system without it, under cosine decay.
    Codes are chosen by distance or by angle, as without it. The names say the rate, so that another is another run."""
    rates = {system: hows["cosine"] for system, hows in chosen.get("tuned", {}).items() if "cosine" in hows}
    return {
        (system, kind): Experiment(
            f"top-{tuned_name(system, (rates[system], 'cosine'))}-{kind}",
            ON_TOP[system],
            (*SHORT, *learning(rates[system], "cosine"), *curves, ANGULAR if system in BY_ANGLE else EUCLIDEAN),
            quick=True,
        )
        for system in ON_TOP
        if system in rates
        for kind, curves in CURVES.items()
    }


# ---- quality against training time --------------------------------------------------------------------------------------


def budget_name(name: str, epochs: int) -> str:
    return f"{name}-{epochs}epochs"


def preset_name(system: str) -> str:
    """What a system is called where its preset, as it is, stands beside what was tuned."""
    return f"{system}, its preset"


def tuned_name(system: str, how: Iterable[str]) -> str:
    return f"{system}-{learning_name(*how)}"


# A look every 25 epochs of 500.
EVERY_LENGTH = ("--training.evaluations=20", "--training.evaluation_images=10000")


# A long training may do better at a lower rate than a short one: the longest is tried at this one as well.
LONG_RATE = ("1e-3", "cosine")


@dataclass(frozen=True)
class Contender:
    """A system at a rate and schedule, or the recipe, and the lengths at which it is trained. At a constant rate a short training
    is the beginning of a long one: then `looks` of the longest, at the whole test set, tell of all."""

    system: str
    run: Experiment
    lengths: tuple[int, ...] = BUDGETS
    looks: bool = False

    @property
    def name(self) -> str:
        return self.run.name

    def tells_of(self, epochs: int) -> bool:
        return self.looks or epochs in self.lengths

    def run_for(self, epochs: int) -> str:
        """Which of its runs tells of a length."""
        return budget_name(self.name, epochs if epochs in self.lengths else self.lengths[-1])

    def experiments(self) -> list[Experiment]:
        return [
            Experiment(
                budget_name(self.name, epochs),
                self.run.preset,
                (*self.run.settings, f"--training.epochs={epochs}", *(EVERY_LENGTH if self.looks else ())),
                self.run.says,
                quick=epochs < BUDGETS[-1],
            )
            for epochs in self.lengths
        ]


def short_recipe(chosen: Mapping[str, Any]) -> Experiment | None:
    """What was chosen after a short training, before the final."""
    return RECIPES.get(chosen.get("short", chosen.get("recipe", "")))


def recipe_contenders(chosen: Mapping[str, Any]) -> list[Contender]:
    """The recipe as it was chosen, for the longest training at the lower rate too, as everyone; then, if that was another, what was
    chosen before the final, and what is left without SAMP."""
    recipe, before = RECIPES.get(chosen.get("recipe", "")), short_recipe(chosen)
    if recipe is None:
        return []
    found = [Contender(recipe.name, recipe)]
    if before and before != recipe:
        found.append(Contender(before.name, before))
    slower = (*recipe.settings, *learning(*LONG_RATE))
    if set(slower) != set(recipe.settings):
        run = Experiment(tuned_name(recipe.name, LONG_RATE), recipe.preset, slower, recipe.says)
        found.append(Contender(recipe.name, run, BUDGETS[-1:]))
    if recipe.preset in CONTROLS:
        control = CONTROLS[recipe.preset]
        found.append(Contender(control, RECIPES[control]))
    return found


SIDES = {"rival": "rival", "control": "recipe without SAMP", "before": "recipe before the final", "recipe": "recipe"}


def side_of(system: str, chosen: Mapping[str, Any]) -> str:
    """What a contender is in the comparison: a key of SIDES, which says it."""
    known = dict.fromkeys(CONTENDERS, "rival") | {chosen.get("short"): "before", chosen.get("recipe"): "recipe"}
    return known.get(system, "control")


def contenders(chosen: Mapping[str, Any]) -> list[Contender]:
    """The recipe, and every system under both schedules, each at the rate that was best for it."""
    found = recipe_contenders(chosen)
    for system in CONTENDERS:
        hows = [(rate, schedule) for schedule, rate in chosen.get("tuned", {}).get(system, {}).items()]
        for how in dict.fromkeys([*hows, LONG_RATE]) if hows else ():
            looks = how[1] == "constant" and system not in STRETCHED
            run = Experiment(tuned_name(system, how), system, learning(*how))
            found.append(Contender(system, run, BUDGETS if how in hows and not looks else BUDGETS[-1:], looks))
    return found


def budgets(chosen: Mapping[str, Any]) -> list[Experiment]:
    """What was chosen, at every length, on all training images. The names say what was chosen, so that another choice is
    another run. The recipe's longest is not among them: that is its preset."""
    longest = budget_name(chosen.get("recipe", ""), BUDGETS[-1])
    return [run for each in contenders(chosen) for run in each.experiments() if run.name != longest]


# So near to the recipe in PSNR, at some length and with one seed, that more seeds are to tell them apart.
NEAR = 0.2


def challenges(chosen: Mapping[str, Any]) -> list[Experiment]:
    """The runs of rivals that came near, and the recipe's at every length but the longest, which is its preset."""
    near = chosen.get("challengers", {})
    asked = {each.run_for(int(n)) for each in contenders(chosen) for n in near if each.name in near[n]}
    if near:
        asked |= {budget_name(chosen.get("recipe", ""), epochs) for epochs in BUDGETS}
    return [run for run in budgets(chosen) if run.name in asked]


# Short enough for three seeds each.
SHORT_BUDGETS = BUDGETS[:3]


def _without_a_part(recipe: Experiment) -> list[Contender]:
    """A recipe without one part of SAMP, for short trainings: what either gives by itself."""
    without = {"ball": (SPHERE,) if recipe.preset == "sq-vae" else (), "arc": ()}
    found = []
    for part, instead in without.items():
        kept = [setting for setting in recipe.settings if not setting.startswith(f"--quantizer.{part}")]
        settings = (*kept, f"--quantizer.{part}=null", *instead)
        run = Experiment(f"{recipe.name}-no-{part}", recipe.preset, settings, f"{recipe.says}, without {part}")
        found.append(Contender(run.name, run, SHORT_BUDGETS))
    return found


def with_and_without(chosen: Mapping[str, Any]) -> list[Contender]:
    """What was chosen after a short training, without a part of SAMP and without both; nothing where there is no such control."""
    recipe = short_recipe(chosen)
    if recipe is None or recipe.preset not in CONTROLS:
        return []
    control = CONTROLS[recipe.preset]
    return [Contender(recipe.name, recipe), *_without_a_part(recipe), Contender(control, RECIPES[control])]


def with_and_without_runs(chosen: Mapping[str, Any]) -> list[Experiment]:
    """The short trainings among them, and the longest without both, whose seeds differ: what a difference of a few seeds needs."""
    every = [each.experiments() for each in with_and_without(chosen)]
    return [run for runs in every for run in runs[: len(SHORT_BUDGETS)]] + [runs[-1] for runs in every[-1:]]


# ---- what may lie behind the printed numbers ----------------------------------------------------------------------------

# The code of CVQ-VAE divides by the variance of pixels in [0, 1]: four times the weight on the reconstruction.
HEAVIER = {
    system: Experiment(f"{system}-variance01", system, ("--objective.normalise=variance01",))
    for system in ("vq-vae", "cvq-vae", "arcvq-vae", "vq-vae-cosine")
}
