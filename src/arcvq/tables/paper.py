"""The tables: the paper's thirteen in its order, then our own. Which rows they have; not a number is here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arcvq.tables.experiments import ARC, BEYOND, GRADIENT, Experiment
from arcvq.tables.runs import BUDGET_RUNS, CHALLENGE_RUNS, ON_TOP_RUNS, RECIPE_RUNS, SAMP_RUNS, TUNING_RUNS
from arcvq.tables.studies import GRID, HEAVIER, SHAPED

ALL = ("l1", "psnr", "ssim", "lpips", "rfid")
FOUR = ("psnr", "ssim", "lpips", "rfid")
BOTH = ("mnist", "cifar10")


@dataclass(frozen=True)
class Row:
    """One system. `run` is the name of its results; `print_of` the part of printed.json that has its numbers."""

    label: str
    run: str
    print_of: str | None = "main"


@dataclass(frozen=True)
class Table:
    """A table that small images can answer."""

    key: str
    title: str
    rows: tuple[Row, ...]
    data: tuple[str, ...] = BOTH
    metrics: tuple[str, ...] = ALL
    seeds: tuple[int, ...] = (1,)
    alias: str = ""

    def runs(self) -> list[str]:
        return list(dict.fromkeys(row.run for row in self.rows))


@dataclass(frozen=True)
class PrintedTable:
    """A table that this version cannot measure, or that has nothing to measure: the printed cells, and why there are no others.

    `columns`: key in printed.json → heading and format.
    """

    key: str
    title: str
    columns: tuple[tuple[str, str, str], ...]
    why: str


def _own(experiments: Iterable[Experiment]) -> tuple[Row, ...]:
    return tuple(Row(experiment.name, experiment.name, None) for experiment in experiments)


def _heavier(own: Row) -> Row:
    return Row(f"{own.label}, weight × 4", HEAVIER[own.run].name, None)


VQ, COSINE = Row("VQ-VAE", "vq-vae"), Row("VQ-VAE, cosine", "vq-vae-cosine")
ARCVQ, ARCVQ_APPENDIX = Row("ArcVQ-VAE", "arcvq-vae"), Row("ArcVQ-VAE", "arcvq-vae", "appendix")
NO_LARGE = "this version has no trunk for images of 256×256"
NO_PRIOR = "this version has no priors"
TEXT, WHOLE, TWO = "", ",d", ".2f"

TABLE_1 = Table(
    "table1",
    "Table 1: reconstruction of small images",
    (VQ, Row("HVQ-VAE", "hvq-vae"), Row("SQ-VAE", "sq-vae"), Row("CVQ-VAE", "cvq-vae"), ARCVQ),
    seeds=(1, 2, 3),
)
TABLES: tuple[Table | PrintedTable, ...] = (
    TABLE_1,
    PrintedTable(
        "table2",
        "Table 2: reconstruction of ImageNet",
        (("method", "method", TEXT), ("tokens", "tokens", TEXT), ("codes", "K", WHOLE), ("usage", "usage", ".1%"), ("rfid", "rFID", TWO)),
        NO_LARGE,
    ),
    PrintedTable(
        "table3",
        "Table 3: generation of ImageNet",
        (("method", "method", TEXT), ("prior", "prior", TEXT), ("codes", "K", WHOLE), ("fid", "FID", TWO), ("is", "IS", ".1f"),
         ("precision", "precision", TWO), ("recall", "recall", TWO)),
        f"{NO_LARGE}, and {NO_PRIOR}",
    ),
    Table(
        "table4",
        "Table 4: top-k, margin and scale of the ArcLoss",
        (
            Row("k = 3, m = 0.1, s = 10", "arcvq-vae"),
            *(
                Row(label, experiment.name)
                for label, experiment in zip(("k = 1", "k = 8", "m = 0.5", "m = 1.0", "s = 5", "s = 20"), ARC)
            ),
        ),
        metrics=("psnr", "ssim", "rfid"),
        alias="ablations",
    ),
    PrintedTable(
        "table5",
        "Table 5: width of the codes, on FFHQ",
        (("width", "D", WHOLE), ("norm", "ℓ2 norm of used codes", TWO), ("codes", "K", WHOLE), ("usage", "usage", ".0%"),
         ("psnr", "PSNR", TWO), ("ssim", "SSIM", ".4f"), ("rfid", "rFID", TWO)),
        NO_LARGE,
    ),
    Table(
        "table6",
        "Table 6: components",
        (
            VQ,
            Row("+ BBNR", "vq-vae-bbnr"),
            Row("+ BBNR, codes chosen by distance", "vq-vae-bbnr-euclidean", None),
            Row("+ ArcLoss", "arcvq-vae"),
        ),
        metrics=("psnr", "ssim", "rfid"),
        alias="components",
    ),
    PrintedTable("table7", "Table 7: settings of the tokenizers", (), "it has settings, which the presets follow, and no results"),
    PrintedTable("table8", "Table 8: settings of the diffusion prior", (), f"it has settings and no results, and {NO_PRIOR}"),
    Table(
        "table9",
        "Table 9: beside continuous latents",
        (Row("VAE", "vae"), Row("hyperspherical VAE", "hyperspherical-vae"), VQ, ARCVQ_APPENDIX),
        metrics=FOUR,
        alias="hyperspherical",
    ),
    PrintedTable(
        "table10",
        "Table 10: VQGAN-LC with its codebook reduced afterwards",
        (("method", "method", TEXT), ("codes", "K", WHOLE), ("usage", "usage", ".1%"), ("rfid", "rFID", TWO)),
        NO_LARGE,
    ),
    Table(
        "table11",
        "Table 11: cosine matching alone",
        (VQ, COSINE, _heavier(COSINE), ARCVQ_APPENDIX),
        data=("cifar10",),
        metrics=FOUR,
        alias="cosine",
    ),
    Table(
        "table12",
        "Table 12: schedule of the norm bound",
        (VQ, Row("ArcVQ-VAE, M(t) = 1", "arcvq-vae-fixed-ball"), ARCVQ_APPENDIX),
        metrics=FOUR,
        alias="schedule",
    ),
    PrintedTable(
        "table13",
        "Table 13: PixelCNN on the tokens of CIFAR-10",
        (("method", "tokenizer", TEXT), ("tokens", "tokens", WHOLE), ("codes", "K", WHOLE), ("fid", "FID", TWO)),
        NO_PRIOR,
    ),
    Table("beyond", "Beyond the paper: other quantizers, and the prior on top of them", _own(BEYOND), data=("cifar10",)),
    Table("released-code", "As the released code trains: s = 5, weights chosen on the test set",
          (Row("released code", "released-code", None), ARCVQ)),
    Table("gradient", "Study: the ArcLoss with a gradient to the codes", (ARCVQ, *_own(GRADIENT)), data=("cifar10",)),
    Table("tuning", "Study: learning rate and its schedule, for every system", _own(TUNING_RUNS), data=("cifar10",)),
    Table("recipe", "Study: a better recipe", _own(RECIPE_RUNS), data=("cifar10",)),
    Table("budgets", "Study: quality against training time", _own(BUDGET_RUNS), data=("cifar10",)),
    Table("challengers", "Study: the nearest rivals, with more seeds", _own(CHALLENGE_RUNS), data=("cifar10",), seeds=(1, 2, 3)),
    Table("samp", "Study: the recipe with ball and ArcLoss, and without", _own(SAMP_RUNS), data=("cifar10",), seeds=(1, 2, 3)),
    Table("scaffold", "The recipe as a preset", (Row("arcvq-scaffold", "arcvq-scaffold", None),), seeds=(1, 2, 3)),
    Table("schedules", "Study: other schedules of the ArcLoss and of the norm bound", _own(SHAPED), data=("cifar10",)),
    Table("on-top", "Study: the prior on top of other quantizers", _own(ON_TOP_RUNS), data=("cifar10",)),
    Table("grid", "Study: α × λ × learning rate", _own(GRID), data=("cifar10",)),
    Table("print", "Study: four times the weight on the reconstruction",
          tuple(row for own in (VQ, Row("CVQ-VAE", "cvq-vae"), ARCVQ) for row in (own, _heavier(own)))),
)  # fmt: skip
