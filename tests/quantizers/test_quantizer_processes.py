"""Two processes give the gradients, codebooks and statistics of one batch, for any split of the tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from every_quantizer import ANY_NUMBER, DRAWING, KINDS, STOCHASTIC, WITHOUT_GRADIENT
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from arcvq import VQ, ArcVQ, Ball
from arcvq.quantizers import CVQ, LFQ, Arc, Entropy, Quantized, Quantizer, Restart

TOKENS, STEPS = 20, 2
EVERYTHING: dict[str, Any] = {
    "arc": Arc(top_k=3, stop_gradient=False, schedule="adaptive", smoothing=0.5),
    "entropy": Entropy(weight=0.3, temperature=0.5),
    "ball": Ball(alpha=0.01),
    "code_dim": 3,
}
RESTART = Restart(decay=0.5, threshold=0.6)
LATENTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [2.0, 1.0], [-1.0, 2.0], [0.0, -1.0]])

# name: class, options, tokens of each process, whether a mask is given to each process, mode at after_step
SCENARIOS: dict[str, tuple[type[Quantizer], dict[str, Any], list[int], list[bool], bool]] = {
    "vq, even": (VQ, {}, [10, 10], [False, False], True),
    "vq, uneven": (VQ, {}, [14, 6], [False, False], True),
    "arcvq, even": (ArcVQ, {}, [10, 10], [False, False], True),
    "arcvq, uneven": (ArcVQ, {}, [13, 7], [False, False], True),
    "arcvq, fewer tokens than top_k": (ArcVQ, {}, [18, 2], [False, False], True),
    "arcvq, masked": (ArcVQ, {}, [12, 8], [True, True], True),
    "arcvq, reference backend": (ArcVQ, {"backend": "reference"}, [7, 13], [False, False], True),
    "everything, uneven": (ArcVQ, EVERYTHING, [5, 15], [False, False], True),
    "everything, masked in one process only": (ArcVQ, EVERYTHING, [11, 9], [True, False], True),
    "restart": (ArcVQ, {**EVERYTHING, "restart": RESTART}, [14, 6], [False, False], True),
    "restart, update in eval mode": (ArcVQ, {**EVERYTHING, "restart": RESTART}, [14, 6], [False, False], False),
}
# Every kind on uneven shards, padded in one process only; two also with a process without tokens.
for kind, (cls, options) in KINDS.items():
    if kind in ANY_NUMBER and kind not in ("vq", "arcvq"):
        SCENARIOS[kind] = (cls, options, [13, 7], [True, False], True)
SCENARIOS |= {f"{kind}, one empty": (*KINDS[kind], [20, 0], [False, False], True) for kind in ("emavq", "cvq closest")}
RESTARTED = [name for name in SCENARIOS if name.startswith("restart")]
RANDOM = [*RESTARTED, *DRAWING]
# Kinds that draw in training, and their loss that does not depend on the noise; it is compared on whole images.
NOISELESS = {"hvq": "kl", "sq": "entropy", "gaussian": "divergence", "vmf": "divergence"}


class Model(nn.Module):
    def __init__(self, cls: type[Quantizer], options: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.encoder = nn.Linear(6, 4)
        size = {} if "latent_dim" in options else {"codebook_size": 16}  # without codes
        self.quantizer = cls(4, **{**size, **options})

    def forward(self, images: Tensor, mask: Tensor | None) -> Quantized:
        return self.quantizer(self.encoder(images), mask)


def whole_batch(step: int, masked: list[bool], sizes: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    images, drop = torch.randn(TOKENS, 6, generator=generator), torch.rand(TOKENS, generator=generator) < 0.4
    may_drop = torch.cat([torch.full((size,), flag) for size, flag in zip(sizes, masked)])
    return images, ~(drop & may_drop)


def train(name: str, rank: int | None) -> dict[str, Any]:
    """Train two steps of a scenario, as one of two processes or alone with the whole batch."""
    cls, options, sizes, masked, training_mode = SCENARIOS[name]
    model = Model(cls, options)
    wrapped = model if rank is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1000 + (rank or 0))  # processes draw different random numbers
    result: dict[str, Any] = {"gradients": [], "stats": []}
    for step in range(STEPS):
        images, mask = whole_batch(step, masked, sizes)
        everyone = mask.sum()
        share = 1
        given = mask if any(masked) else None
        if rank is not None:
            images, mask = images.split(sizes)[rank], mask.split(sizes)[rank]
            given, share = (mask if masked[rank] else None), len(sizes)
        model.train()
        out = wrapped(images, given)
        target = (out.quantized - images[:, :4]).square().sum(dim=1)
        reconstruction = share * (target * mask).sum() / everyone
        optimizer.zero_grad()
        (reconstruction + out.loss).backward()
        result["gradients"].append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
        result["stats"].append({key: value.clone() for key, value in out.stats.items() if key != "nonfinite"})
        optimizer.step()
        model.train(training_mode)
        model.quantizer.after_step(out)
    result["state"] = {key: value.clone() for key, value in model.quantizer.state_dict().items()}
    return result


def stochastic_loss(kind: str, rank: int | None) -> dict[str, Any]:
    """The gradients and statistics of one forward pass of a quantizer that draws in training."""
    cls, options = KINDS[kind]
    whole, masked = [13, 7], [kind in ANY_NUMBER, False]
    if kind not in ANY_NUMBER:
        options, whole = {**options, "positions": 4}, [12, 8]
    model = Model(cls, options)
    images, mask = whole_batch(0, masked, whole)
    given = mask if any(masked) else None
    if rank is not None:
        images = images.split(whole)[rank]
        given = mask.split(whole)[rank] if masked[rank] else None
    wrapped = model if rank is None else DistributedDataParallel(model, find_unused_parameters=True)
    out = wrapped(images, given)
    out.losses[NOISELESS[kind.split()[0]]].backward()
    stats = {key: value.clone() for key, value in out.stats.items() if key != "nonfinite"}
    return {"gradients": {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}, "stats": stats}


def sampled_anchors(rank: int) -> Tensor:
    """The codes after 4,000 equal ones sampled their anchors from six latents, three in each process."""
    quantizer = CVQ(2, 4000, anchor="probrandom")
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([1.0, 0.0]))
    quantizer.after_step(quantizer(LATENTS.chunk(2)[rank]))
    return quantizer.codebook.detach()[1:]  # the first has all tokens, and stays


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    results: dict[str, Any] = {name: train(name, rank) for name in SCENARIOS}
    results["stochastic"] = {name: stochastic_loss(name, rank) for name in STOCHASTIC}

    torch.manual_seed(rank)  # different codebooks and different latents, until the first process's centres arrive
    start = VQ(4, 16, init="kmeans")
    start.kmeans_init_(torch.randn(60, 4))
    results["k-means"] = start.state_dict()
    balanced = LFQ(8, 16, balanced=True)
    balanced.init_from_latents_(torch.randn(60, 8))
    results["balanced"] = balanced.state_dict()

    torch.manual_seed(3)  # the same on both, as in a loop that seeds all processes equally
    results["anchors"] = sampled_anchors(rank)

    # Evaluation waits for no other process: only one evaluates.
    if rank == 0:
        for kind in ANY_NUMBER:
            Model(*KINDS[kind]).eval()(torch.randn(9, 6), None)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(worker, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in STOCHASTIC])
def test_gradients_equal_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    alone = train(name, None)
    steps = (
        1 if name in RANDOM else STEPS
    )  # a restart draws at random: afterwards codebooks differ from those of one process
    for step in range(steps):
        expected = alone["gradients"][step]
        assert expected.keys() >= {"encoder.weight", "encoder.bias"}
        learns = any(key.startswith("quantizer.") for key in expected)
        assert learns != (name.split(",")[0] in WITHOUT_GRADIENT)
        for rank in ranks:
            assert rank[name]["gradients"][step].keys() == expected.keys()
            for key, gradient in expected.items():
                assert gradient.norm() > 1e-4
                torch.testing.assert_close(rank[name]["gradients"][step][key], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in STOCHASTIC])
def test_statistics_equal_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    expected = train(name, None)["stats"][0]
    assert "perplexity" in expected
    for rank in ranks:
        for key, value in expected.items():
            torch.testing.assert_close(rank[name]["stats"][0][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_processes_have_same_state_after_two_steps(name: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (rank[name]["state"] for rank in ranks)
    assert first["step"].item() == STEPS
    for key, value in first.items():
        assert torch.equal(second[key], value), key


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in RANDOM])
def test_state_after_two_steps_equals_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    for key, value in train(name, None)["state"].items():
        torch.testing.assert_close(ranks[0][name]["state"][key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", RESTARTED)
def test_restart_scenario_moves_codes(name: str, ranks: list[dict[str, Any]]) -> None:
    moved = ranks[0][name]["state"]["codebook"]
    without = ranks[0]["everything, uneven"]["state"]["codebook"]
    assert ((moved - without).norm(dim=1) > 0.2).any()


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_losses_of_stochastic_quantizers_equal_one_process(kind: str, ranks: list[dict[str, Any]]) -> None:
    alone = stochastic_loss(kind, None)
    drawn = ("perplexity", "usage") if kind == "hvq" else ()  # statistics of drawn tokens
    for rank in ranks:
        ours = rank["stochastic"][kind]
        for key, gradient in alone["gradients"].items():
            torch.testing.assert_close(ours["gradients"][key], gradient, rtol=1e-4, atol=1e-6)
        for key in alone["stats"].keys() - drawn:
            torch.testing.assert_close(ours["stats"][key], alone["stats"][key], rtol=1e-5, atol=1e-6)
    assert alone["gradients"]["encoder.weight"].norm() > 1e-6


def test_sampled_anchors_come_from_all_processes(ranks: list[dict[str, Any]]) -> None:
    codes = ranks[0]["anchors"]
    assert torch.equal(ranks[1]["anchors"], codes)
    share = torch.bincount(torch.cdist(codes, LATENTS).argmin(dim=1), minlength=6) / len(codes)
    cosines = LATENTS[:, 0] / LATENTS.norm(dim=1)  # with the initial code of all
    torch.testing.assert_close(share, cosines.softmax(dim=0), rtol=0, atol=0.03)


def test_balanced_init_is_that_of_first_process(ranks: list[dict[str, Any]]) -> None:
    for key in ("project_in.weight", "project_in.bias"):
        assert torch.equal(ranks[1]["balanced"][key], ranks[0]["balanced"][key]), key


def test_kmeans_init_is_that_of_first_process(ranks: list[dict[str, Any]]) -> None:
    assert torch.equal(ranks[0]["k-means"]["codebook"], ranks[1]["k-means"]["codebook"])
    torch.manual_seed(0)
    alone = VQ(4, 16, init="kmeans")
    alone.kmeans_init_(torch.randn(60, 4))
    torch.testing.assert_close(ranks[0]["k-means"]["codebook"], alone.codebook.detach())
    assert ranks[1]["k-means"]["initialized"].item()
