"""Training a tokenizer: one loop, from an empty folder or from its last checkpoint to the same weights."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from arcvq import distributed
from arcvq.data import (
    Images,
    InMemoryImages,
    batch_count,
    batch_indices,
    batches,
    first_images,
    hold_out,
    load_images,
)
from arcvq.errors import ArcvqError, Diverged, Stopped
from arcvq.objectives import Reconstruction
from arcvq.storage import write_json
from arcvq.systems import System
from arcvq.tokenizers import Tokenizer
from arcvq.training.capture import Captured, captures
from arcvq.training.checkpoint import (
    Position,
    load_checkpoint,
    newest_checkpoint,
    random_state,
    save_checkpoint,
)
from arcvq.training.environment import device_name, library_versions
from arcvq.training.initialization import init_from, start_codebook
from arcvq.training.interruption import stop_signals
from arcvq.training.launch import make_accelerator
from arcvq.training.monitor import Monitor
from arcvq.training.observe import observe, save_codebook
from arcvq.training.optimization import check_stages, learning_rate, make_optimizer, set_learning_rate
from arcvq.training.run import RunFolder
from arcvq.training.step import Outcome, Step, image_layout

AGREE_EVERY = 10


def train(system: System, out: str | Path, *, quiet: bool = False, stop_after: int | None = None) -> Tokenizer:
    """Train `system` into the run folder `out`; an unfinished run there, or a shorter one, goes on from its last checkpoint.

    `stop_after` interrupts the run after so many steps, as a signal would: a checkpoint, then `Stopped`.
    """
    return TrainingRun(system, out, quiet=quiet).go(stop_after)


class TrainingRun:
    """Everything one training holds. The constructor sets the scene; `go` plays it."""

    def __init__(
        self, system: System, out: str | Path, *, quiet: bool = False, images: tuple[Images, Images] | None = None
    ) -> None:
        # Where: devices, processes, precision.
        self.system, self.training = system, system.training
        self.accelerator = make_accelerator(self.training)
        self.is_main = self.accelerator.is_main_process

        # On what: small sets live on the device, so that the loop never waits for them.
        train_images, test_images = images or load_data(system)
        self.images, self.test_images = (x.to(self.accelerator.device) for x in (train_images, test_images))
        self.resident = isinstance(self.images, InMemoryImages)
        # What `stage_batches` hands out → uint8 (b, C, H, W).
        self.read: Callable[[Tensor], Tensor] = self.images.gather if self.resident else _unchanged
        self.batches_per_epoch = batch_count(len(self.images), system.data.batch_size)
        self.stages = self.training.plan()
        self.stage_steps = self.training.stage_steps(self.batches_per_epoch)
        self.total_steps = sum(self.stage_steps)

        # What: the model and its objective.
        torch.manual_seed(self.training.seed)
        size = (self.images.height, self.images.width)
        tokenizer = system.build_tokenizer(self.images.channels, size, self.total_steps)
        tokenizer.check_size(*size)
        check_stages(tokenizer, self.stages)
        self.run = RunFolder(out)
        if self.training.init_from is not None and not self.run.has_begun():
            init_from(tokenizer, self.training.init_from)
        # The processes begin with the same weights; from here on each draws for its own images.
        if self.accelerator.process_index:
            torch.manual_seed(self.training.seed + self.accelerator.process_index)
        device = self.accelerator.device
        self.captures = captures(
            self.training, device, self.accelerator.num_processes, self.images, tokenizer.quantizer
        )
        self.tokenizer = tokenizer.to(device).to(memory_format=image_layout(device)).train()
        variance = 1.0 if system.objective.normalise == "none" else self.images.pixel_variance()
        self.objective = Reconstruction(system.objective, variance)

        # Into what, now that all else is known to be right.
        self.is_new = self.is_main and self.run.open(system, self.batches_per_epoch)
        self.accelerator.wait_for_everyone()
        self.monitor = Monitor(self.run, self.total_steps, active=self.is_main, quiet=quiet)
        self.position = Position(images=len(self.images))
        self.resume_from: Path | None = None
        self.began = 0.0
        self.take: Callable[..., Outcome] | None = None
        self.rate: float | None = None

    def go(self, stop_after: int | None = None) -> Tokenizer:
        trained = self.run.trained_steps()
        if trained is not None and trained >= self.total_steps:
            return Tokenizer.from_pretrained(self.run.model, device=self.accelerator.device)
        with self.run.locked() if self.is_main else nullcontext():
            self.find_position(trained)
            try:
                with self.monitor, stop_signals() as signalled:
                    self.play(signalled, stop_after)
            except ArcvqError as error:
                # What the first step refuses is a configuration's fault: leave the place free for the corrected one.
                if self.is_new and self.position.step == 0:
                    self.run.remove()
                elif self.is_main and isinstance(error, Diverged):
                    write_json(self.run.diverged, {**self.taken(self.position.step), "why": str(error)})
                raise
            return self.finish()

    def find_position(self, trained: int | None) -> None:
        """Where to start: at the newest readable checkpoint, or at step 0. `trained`: steps of a finished run, to be extended."""
        self.accelerator.wait_for_everyone()
        found = distributed.on_first_process(lambda: newest_checkpoint(self.run.checkpoints))
        if found is not None:
            self.resume_from, self.position = found
            if self.position.images != len(self.images):
                raise ArcvqError(
                    f"{self.run.path}: began with {self.position.images:,} training images and now finds {len(self.images):,}: "
                    "bring the data back, or choose another --out"
                )
        elif trained is not None:
            raise ArcvqError(
                f"{self.run.path}: has no checkpoint to go on from after its {trained} steps: "
                f"choose another --out, with --init-from {self.run.path}"
            )
        if self.is_main:
            if trained is not None:
                self.run.extend(self.system)
            self.run.diverged.unlink(missing_ok=True)
            self.run.sweep()
            self.run.forget_after(self.position.step if found else -1)
        self.monitor.first_step = self.position.step
        self.began = self.monitor.began = time.perf_counter() - self.position.seconds

    def play(self, signalled: list[int], stop_after: int | None) -> None:
        """Every stage, every batch; looking, saving and stopping in between."""
        looks = evaluation_steps(self.total_steps, self.training.evaluations)
        count = self.training.checkpoints
        saves = {round(self.total_steps * i / count) for i in range(1, count + 1)}
        if self.resume_from is None:
            self.start_codebook()
            self.look()
        while self.position.stage < len(self.stages):
            self.begin_stage()
            for batch in self.stage_batches():
                outcome = self.step(batch)
                if self.position.step % self.training.log_every == 0 or self.position.step == self.total_steps:
                    self.log(outcome)
                elif self.position.step % 10 == 0:
                    self.monitor.show(self.position.step)
                if self.position.step in looks:
                    self.look()
                received = self.signalled(signalled)
                stopping = received or self.position.step == stop_after
                if self.position.step in saves or stopping:
                    self.refuse_nonfinite(self.accelerator.reduce(outcome.stats["nonfinite"].float(), "sum").item())
                    self.save()
                if stopping:
                    done = f"{self.position.step} of {self.total_steps}"
                    why = f"{self.run.path}: stopped at step {done}; the same command goes on"
                    raise Stopped(why, received or signal.SIGINT)
            self.position.stage, self.position.stage_step = self.position.stage + 1, 0

    def begin_stage(self) -> None:
        """An optimizer for what this stage trains; after an interruption, as it was left."""
        stage = self.stages[self.position.stage]
        self.take = self.rate = None  # an earlier stage's graphs go first, then what they point to
        self.accelerator.free_memory()  # an earlier stage's optimizer must not be unscaled or asked about skipped steps
        self.optimizer = make_optimizer(self.tokenizer, stage, self.training, captured=self.captures)
        # With one channel, contiguous and channels-last strides look alike, and torch 2.11's layout pass was seen to guess wrong:
        # grey images do without it.
        options = {"layout_optimization": self.tokenizer.channels > 1} if self.training.compile else None
        alone = self.accelerator.num_processes == 1
        if options and not alone:  # what the processes exchange belongs between compiled parts
            self.tokenizer.compile(dynamic=False, options=options)
        self.model, self.prepared = self.accelerator.prepare(self.tokenizer, self.optimizer)
        if self.resume_from is not None:
            scaler = load_checkpoint(self.resume_from, self.tokenizer, self.optimizer, self.accelerator.process_index)
            if self.accelerator.scaler is not None and scaler is not None:
                self.accelerator.scaler.load_state_dict(scaler)
            self.resume_from = None
        # Last: a graph knows tensors by their address.
        step = Step(
            self.accelerator,
            self.model,
            self.prepared,
            self.objective,
            self.tokenizer,
            self.read,
            self.training.gradient_clip,
            options if alone else None,
            min(self.system.data.batch_size, len(self.images)),
        )
        self.take = Captured(step, [self.tokenizer], [self.optimizer]) if self.captures else step

    def stage_batches(self) -> Iterator[Tensor]:
        """This process's part of each global batch that the stage still has to see: int64 (b,) of a set in memory, which `read`
        looks up, or else uint8 (b, C, H, W)."""
        while (left := self.stage_steps[self.position.stage] - self.position.stage_step) > 0:
            epoch, start = divmod(self.position.stage_step, self.batches_per_epoch)
            walk: dict[str, Any] = {
                "seed": self.training.seed + 1_000_003 * self.position.stage,
                "epoch": epoch,
                "start": start,
                "rank": self.accelerator.process_index,
                "world": self.accelerator.num_processes,
                "device": self.accelerator.device,
            }
            size = self.system.data.batch_size
            found = (
                batch_indices(len(self.images), size, **walk) if self.resident else batches(self.images, size, **walk)
            )
            for i, batch in enumerate(found):
                if i == left:
                    return
                yield batch

    def step(self, batch: Tensor) -> Outcome:
        """One optimizer step on one global batch. What it tells is to be read before the next."""
        assert self.take is not None
        stage, steps = self.stages[self.position.stage], self.stage_steps[self.position.stage]
        rate = learning_rate(stage, self.training, self.position.stage_step, steps)
        if rate != self.rate:
            set_learning_rate(self.optimizer, rate)
            self.rate = rate
        outcome = self.take(batch, self.micro_batch_shares())
        self.position.step += 1
        self.position.stage_step += 1
        return outcome

    def micro_batch_shares(self) -> tuple[float, ...]:
        """Each micro-batch's part of this step's global batch: as many, and the same, on every process."""
        batch_size, world = self.system.data.batch_size, self.accelerator.num_processes
        first = self.position.stage_step % self.batches_per_epoch * batch_size
        size = min(batch_size, len(self.images) - first)
        shards = [size * (rank + 1) // world - size * rank // world for rank in range(world)]
        count = min(self.training.accumulate, max(1, min(shards)))
        return tuple(sum(shard // count + (i < shard % count) for shard in shards) / size for i in range(count))

    def signalled(self, received: list[int]) -> int:
        """The signal to stop for, or 0. Several processes agree on it, every few steps: they must all save after the same one."""
        number = received[0] if received else 0
        if self.accelerator.num_processes == 1:
            return number
        if self.position.step % AGREE_EVERY:
            return 0
        return int(distributed.gather(torch.tensor(number, device=self.accelerator.device)).max())

    @property
    def epoch(self) -> float:
        return self.position.step / self.batches_per_epoch

    def log(self, outcome: Outcome) -> None:
        """Here the host reads what the device computed (else only when looking and saving, and an eager quantizer's check for NaN)."""
        terms, stats = outcome
        values = {**terms, "loss": torch.stack(list(terms.values())).sum()}
        values |= {
            name: stats[name]
            for name in (
                "perplexity",
                "arc_weight",
                "arc_loss",
                "ball_radius",
                "temperature",
                "variance",
                "vector_rate",
            )
            if name in stats
        }
        names = list(values)
        stacked = torch.stack([values[name].float() for name in names] + [stats["nonfinite"].float()])
        *numbers, nonfinite = self.accelerator.reduce(stacked, "mean").tolist()
        self.refuse_nonfinite(nonfinite)
        speed = self.monitor.images_per_second(self.position.step * self.system.data.batch_size)
        self.monitor.train(
            self.position.step,
            self.epoch,
            {**dict(zip(names, numbers)), "learning_rate": self.rate, "images_per_second": speed},
        )

    def refuse_nonfinite(self, count: float) -> None:
        """Before anything is written of a run that has diverged: a checkpoint of it would be the one to go on from."""
        if count:
            raise Diverged(
                f"training diverged before step {self.position.step}: the latents are not finite; lower the learning rate"
            )

    def look(self) -> None:
        """Evaluate, keep the codebook's history and, if asked to, the best weights."""
        if self.is_main:
            self.monitor.pause()
            values, counts = observe(self.tokenizer, self.test_images)
            self.monitor.evaluation(self.position.step, self.epoch, values)
            save_codebook(self.run.codebooks, self.position.step, self.tokenizer, counts)
            if self.training.select == "test-best" and (
                self.position.best is None or values["mse"] < self.position.best
            ):
                self.position.best = values["mse"]
                seen = "held-out" if self.system.data.holdout else "test"
                self.save_model({"selected": f"lowest {seen} MSE, at step {self.position.step}"})
        self.accelerator.wait_for_everyone()

    def save(self) -> None:
        self.position.seconds = time.perf_counter() - self.began
        states = gather_object([random_state()])
        if self.is_main:
            self.monitor.flush()
            scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None
            save_checkpoint(self.run.checkpoints, self.position, self.tokenizer, self.optimizer, scaler, states)
        self.accelerator.wait_for_everyone()

    def save_model(self, notes: dict[str, Any]) -> None:
        about = {
            "recipe": self.system.title,
            "data": self.system.data.name,
            "steps": self.total_steps,
            "seed": self.training.seed,
        }
        self.tokenizer.save_pretrained(self.run.model, notes={**about, **notes})

    def start_codebook(self) -> None:
        if self.training.init_from is None:
            start_codebook(self.tokenizer, self.images, self.training.seed)

    def finish(self) -> Tokenizer:
        """What remains: the model, and what it took."""
        if self.is_main:
            if self.training.select == "last":
                self.save_model({})
            write_json(self.run.training, self.taken(self.total_steps))
        self.accelerator.wait_for_everyone()
        return Tokenizer.from_pretrained(self.run.model, device=self.accelerator.device)

    def taken(self, steps: int) -> dict[str, Any]:
        """What so many steps took."""
        return {
            "steps": steps,
            "seconds": time.perf_counter() - self.began,
            "device": device_name(self.accelerator.device),
            "processes": self.accelerator.num_processes,
            "versions": library_versions(),
        }


def load_data(system: System) -> tuple[Images, Images]:
    """Training images of a system, and those that are looked at along the way: the test set, or what is held out."""
    data = system.data
    root = Path(data.root) if data.root else None
    if data.holdout:
        everything = load_images(data.name, split="train", root=root, image_size=data.image_size)
        rest, held = hold_out(everything, data.holdout)
        return first_images(rest, data.limit), first_images(held, system.training.evaluation_images)
    train_images = load_images(data.name, split="train", root=root, image_size=data.image_size, limit=data.limit)
    size = train_images.height if train_images.height == train_images.width else None
    test_images = load_images(
        data.name, split="test", root=root, image_size=data.image_size or size, limit=system.training.evaluation_images
    )
    return train_images, test_images


def evaluation_steps(total: int, evaluations: int) -> set[int]:
    """Evenly spaced, and log-spaced before the first of those: a codebook lives or dies in its first steps."""
    even = {round(total * i / evaluations) for i in range(1, evaluations + 1)} if evaluations else {total}
    return even | {2**i for i in range(total.bit_length()) if 2**i < min(even)}


def _unchanged(batch: Tensor) -> Tensor:
    return batch
