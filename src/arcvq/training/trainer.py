"""The training loop: any task, from an empty folder or from its last checkpoint, to the same weights."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from signal import SIGINT
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from arcvq import distributed
from arcvq.data.source import Batch, Source
from arcvq.errors import ArcvqError, Diverged, Stopped
from arcvq.storage import write_json
from arcvq.tasks.parameters import set_trained, trained_parameters
from arcvq.tasks.task import Task, memory_format
from arcvq.training.capture import Captured, can_capture
from arcvq.training.checkpoint import Position, load_checkpoint, newest_checkpoint, random_state, save_checkpoint
from arcvq.training.config import TrainingConfig
from arcvq.training.environment import device_name, library_versions
from arcvq.training.interruption import stop_signals
from arcvq.training.launch import make_accelerator
from arcvq.training.monitor import Monitor
from arcvq.training.optimizers import make_optimizer, scheduled_rate, set_learning_rate
from arcvq.training.plan import checkpoint_steps, evaluation_steps, micro_batch_weights
from arcvq.training.run import RunFolder
from arcvq.training.skipped import SkippedImages
from arcvq.training.step import Step, StepResult, make_average

# Steps after which several processes look for a stop signal together.
AGREE_EVERY = 10
# Each stage of a training walks the data in an order of its own.
STAGE_SEED = 1_000_003


class Trainer:
    """Trains a task: `Trainer(task, source, evaluation, training, out).run()`.

    It knows the task's contract (arcvq.tasks.Task) and nothing of what the task does. To time single steps without writing
    checkpoints: `trainer.begin()`, then `trainer.step(batch)` for each of `trainer.batches()`.
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        evaluation: Source,
        training: TrainingConfig,
        out: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        quiet: bool = False,
        accelerator: Accelerator | None = None,
    ) -> None:
        """`config` is what config.yaml says of this training; a run folder with another one is refused."""
        self.task, self.training = task, training
        self.accelerator = accelerator or make_accelerator(training)
        if self.accelerator.process_index:  # the same weights on all processes, then random numbers of its own
            torch.manual_seed(training.seed + self.accelerator.process_index)
        self.device, self.is_main = self.accelerator.device, self.accelerator.is_main_process
        self.alone = self.accelerator.num_processes == 1
        self.source, self.evaluation = source.to(self.device), evaluation.to(self.device)
        self.stage_steps = training.stage_steps(self.source.batches_per_epoch)
        self.total_steps = sum(self.stage_steps)
        training.check_networks(task.networks)
        layout = memory_format(self.device)
        for network in task.networks.values():
            network.to(self.device).to(memory_format=layout).train()
            self.accelerator.prepare_model(network, evaluation_mode=True)  # the precision of its forward, in place
        task.frozen.to(self.device).to(memory_format=layout)
        if training.compile and not self.alone:  # what the processes exchange belongs between compiled parts
            for network in task.networks.values():
                network.compile(dynamic=False, options=task.compile_options)
        self.averages: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.captures = can_capture(training, self.accelerator, self.source, task)
        self.run_folder, self.config = RunFolder(out), dict(config or {})
        opened = distributed.on_first_process(lambda: self.run_folder.open(self.config, source.batches_per_epoch))
        self.is_new = self.is_main and opened
        self.monitor = Monitor(
            self.run_folder, self.total_steps, headline=task.headline, active=self.is_main, quiet=quiet
        )
        self.skipped = SkippedImages(self.run_folder.skipped, [self.source, self.evaluation])
        self.position, self.stage = Position(length=self.source.length), -1
        self.phase: Hashable = None
        self.step_fn: Step | Captured[StepResult] | None = None
        self.began = time.perf_counter()

    def run(self, stop_after: int | None = None) -> Task:
        """Train to the end, or to the next stop signal (or step `stop_after`): then save a checkpoint and raise `Stopped`."""
        finished = self.run_folder.finished_steps()
        if finished is not None and finished >= self.total_steps:
            return self.task
        with ExitStack() as stack:
            distributed.on_first_process(lambda: stack.enter_context(self.run_folder.locked()))
            checkpoint = self.find_position(finished)
            try:
                with self.monitor, stop_signals() as received:
                    self.begin(checkpoint)
                    if checkpoint is None:
                        self.evaluate()
                    self.train(received, stop_after)
            except ArcvqError as error:
                # What the first step refuses is a configuration's fault: leave the place free for the corrected one.
                if self.is_new and self.position.step == 0:
                    self.run_folder.remove()
                elif self.is_main and isinstance(error, Diverged):
                    write_json(self.run_folder.diverged, {**self.summary(), "why": str(error)})
                raise
            self.finish()
        return self.task

    # ---- from where -----------------------------------------------------------------------------------------------------

    def find_position(self, finished: int | None) -> Path | None:
        """The newest readable checkpoint, if there is any; what was logged after it is dropped. `finished`: the steps of a finished
        run, to be extended."""
        networks = self.task.networks
        averages = networks if self.training.ema is not None else {}
        found = distributed.on_first_process(lambda: newest_checkpoint(self.run_folder.checkpoints, networks, averages))
        checkpoint = None
        if found is not None:
            checkpoint, self.position = found
            if self.position.length != self.source.length:
                raise ArcvqError(
                    f"{self.run_folder.path}: began with {self.position.length:,} training samples and now finds "
                    f"{self.source.length:,}: bring the data back, or choose another --out"
                )
        elif finished is not None:
            raise ArcvqError(
                f"{self.run_folder.path}: has no checkpoint to go on from after its {finished} steps: "
                f"choose another --out, with --init-from {self.run_folder.path}"
            )
        if self.is_main:
            if finished is not None:
                self.run_folder.extend(self.config)
            self.run_folder.diverged.unlink(missing_ok=True)
            self.run_folder.remove_partial_writes()
            self.run_folder.truncate_metrics(self.position.step if checkpoint else -1)
        self.monitor.first_step = self.position.step
        self.began = self.monitor.began = time.perf_counter() - self.position.seconds
        return checkpoint

    def begin(self, checkpoint: Path | None = None) -> None:
        """Load the checkpoint; without one, let the task prepare its networks. Makes averages, optimizers and the step function."""
        if checkpoint is None and self.training.init_from is not None:
            self.task.init_from(self.training.init_from)
        elif checkpoint is None:
            self.task.prepare(self.source)
        if self.training.ema is not None:
            self.averages = {name: make_average(network) for name, network in self.task.networks.items()}
        if self.position.step < self.total_steps:
            self.begin_stage(self.stage_at(self.position.step))
        if checkpoint is not None:
            optimizers = self.optimizers if self.stage_step else {}  # a stage begins with new ones
            networks, rank = self.task.networks, self.accelerator.process_index
            scaler = load_checkpoint(checkpoint, networks, self.averages, optimizers, rank)
            if self.accelerator.scaler is not None and scaler is not None:
                self.accelerator.scaler.load_state_dict(scaler)

    def stage_at(self, step: int) -> int:
        """The stage of the step after `step`."""
        return sum(step >= end for end in accumulate(self.stage_steps))

    @property
    def stage_step(self) -> int:
        """How many steps of this stage are done."""
        return self.position.step - sum(self.stage_steps[: self.stage])

    def train(self, received: list[int], stop_after: int | None) -> None:
        """Every stage, every batch; evaluations and checkpoints between them."""
        evaluations = evaluation_steps(self.total_steps, self.training.evaluations)
        saves = checkpoint_steps(self.total_steps, self.training.checkpoints)
        for batch in self.batches():
            result = self.step(batch)
            step = self.position.step
            if step % self.training.log_every == 0 or step == self.total_steps:
                self.log(result)
            elif step % 10 == 0:
                self.monitor.show(step)
            if step in evaluations:
                self.evaluate()
            signal = self.stop_signal(received)
            stopping = signal or step == stop_after
            if step in saves or stopping:
                self.refuse_nonfinite(self.accelerator.reduce(result.nonfinite.float(), "sum").item())
                self.save()
            if stopping:
                why = f"{self.run_folder.path}: stopped at step {step} of {self.total_steps}; the same command goes on"
                raise Stopped(why, signal or SIGINT)

    def batches(self) -> Iterator[Batch]:
        """This process's part of every global batch that is left; a new stage begins before its first batch."""
        while (stage := self.stage_at(self.position.step)) < len(self.stage_steps):
            if stage != self.stage:
                self.begin_stage(stage)
            first = self.stage_step
            found = self.source.batches(
                seed=self.training.seed + STAGE_SEED * stage,
                first=first,
                rank=self.accelerator.process_index,
                world=self.accelerator.num_processes,
            )
            for _, batch in zip(range(self.stage_steps[stage] - first), found):
                yield {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    def begin_stage(self, stage: int) -> None:
        """New optimizers; the networks wrapped for what learns now."""
        self.stage, self.stage_config = stage, self.training.plan()[stage]
        self.step_fn = None  # graphs go before the tensors that they point to
        self.accelerator.free_memory()
        self.begin_phase(self.task.phase(sum(self.stage_steps[:stage])))
        self.configs = {name: self.training.optimizer(name) for name in self.task.networks}
        self.optimizers = {
            name: make_optimizer(network, self.configs[name], captured=self.captures)
            for name, network in self.task.networks.items()
        }
        self.rates: dict[str, float] = {}
        self.prepared = {name: self.accelerator.prepare_optimizer(each) for name, each in self.optimizers.items()}
        self.make_step()

    def begin_phase(self, phase: Hashable) -> None:
        """Turn gradients on for what this phase trains, and off for the rest."""
        self.phase, trained = phase, self.task.trained(phase)
        for name, network in self.task.networks.items():
            set_trained(network, trained.get(name))
            if name in trained and not trained_parameters(network):
                raise ArcvqError(f"nothing in {', '.join(trained[name]) or name} learns by gradient")
        self.task.begin_phase(phase)

    def make_step(self) -> None:
        """The step function. After everything else: a graph knows tensors by address."""
        step = Step(
            self.accelerator,
            self.task,
            self.source,
            {name: self.wrap(network, name) for name, network in self.task.networks.items()},
            self.prepared,
            clips={name: config.gradient_clip for name, config in self.configs.items()},
            averages=self.averages,
            decay=self.training.ema or 0.0,
            compile_options=self.task.compile_options if self.training.compile and self.alone else None,
            compiled_from=min(self.source.batch_size, self.source.length),
        )
        modules = [*self.task.networks.values(), *self.averages.values()]
        self.step_fn = Captured(step, modules, list(self.optimizers.values())) if self.captures else step

    def wrap(self, network: nn.Module, name: str) -> nn.Module:
        """The network as this process calls it in training: with several processes, gradients are averaged over them."""
        self.wrapped = self.task.trained(self.phase)
        if self.alone or name not in self.wrapped:
            return network
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=device_ids, broadcast_buffers=False)

    def step(self, batch: Batch) -> StepResult:
        """One step on one global batch. A captured step's result is overwritten by the next."""
        phase = self.task.phase(self.position.step)
        if phase != self.phase:
            self.begin_phase(phase)
            if not self.alone and self.task.trained(phase) != self.wrapped:
                self.make_step()
        self.set_rates()
        assert self.step_fn is not None
        size = self.source.samples_in_batch(self.stage_step)
        weights = micro_batch_weights(size, self.accelerator.num_processes, self.training.accumulate)
        result = self.step_fn(batch, weights, phase)
        self.position.step += 1
        return result

    def set_rates(self) -> None:
        """Set each network's learning rate for this step."""
        done, steps = self.stage_step, self.stage_steps[self.stage]
        for name, config in self.configs.items():
            base = self.stage_config.learning_rate or config.learning_rate
            rate = scheduled_rate(base, self.training, done, steps)
            if self.rates.get(name) != rate:
                set_learning_rate(self.optimizers[name], rate)
                self.rates[name] = rate

    def stop_signal(self, received: list[int]) -> int:
        """The signal to stop for, or 0. Several processes agree on it, every few steps: they must all save after the same one."""
        number = received[0] if received else 0
        if self.alone:
            return number
        if self.position.step % AGREE_EVERY:
            return 0
        return int(distributed.gather(torch.tensor(number, device=self.device)).max())

    # ---- what is written ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> float:
        """How many epochs are done, as a fraction."""
        return self.position.step / self.source.batches_per_epoch

    def log(self, result: StepResult) -> None:
        """Read the step's scalars on the host: here, at checkpoints and at evaluations, and nowhere else."""
        several = len(self.task.networks) > 1
        totals = {f"{name}_loss" if several else "loss": loss for name, loss in result.losses.items()}
        values = {**result.terms, **totals, **result.stats}
        stacked = torch.stack([value.float() for value in values.values()] + [result.nonfinite.float()])
        *numbers, nonfinite = self.accelerator.reduce(stacked, "mean").tolist()
        self.refuse_nonfinite(nonfinite)
        rates = {f"{name}_learning_rate" if several else "learning_rate": self.rates[name] for name in result.losses}
        speed = self.monitor.samples_per_second(self.position.step * self.source.batch_size)
        record = {**dict(zip(values, numbers)), **rates, "samples_per_second": speed}
        self.monitor.log_train(self.position.step, self.epoch, record, headline=list(totals))
        self.skipped.write()

    def refuse_nonfinite(self, count: float) -> None:
        """Fail if values are not finite, before a checkpoint is written: a run must not resume from a diverged one."""
        if count:
            raise Diverged(
                f"training diverged before step {self.position.step}: not all values are finite; lower the learning rate"
            )

    def evaluate(self) -> None:
        """A line of metrics.jsonl and, if asked for, the best weights so far."""
        if self.is_main:
            self.monitor.reset_speed()
            with self.averaged():
                values = self.task.evaluate(self.evaluation, self.run_folder.path, self.position.step)
                self.monitor.log_evaluation(self.position.step, self.epoch, values)
                if self.training.select == "test-best":
                    self.keep_best(values)
        distributed.wait_for_all(self.device)

    def keep_best(self, values: Mapping[str, Any]) -> None:
        metric = self.task.selection
        if metric is None:
            raise ArcvqError("training.select is test-best, but this task names no metric to select by: use last")
        if self.position.best is None or values[metric] < self.position.best:
            self.position.best = values[metric]
            self.save_model({"selected": f"lowest {metric} on {self.evaluation.name}, at step {self.position.step}"})

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the task's networks are their averages, if there are any."""
        own = dict(self.task.networks)
        self.task.networks.update(self.averages)
        try:
            yield
        finally:
            self.task.networks.update(own)

    def save(self) -> None:
        """Write a checkpoint, with the random states of all processes."""
        self.position.seconds = time.perf_counter() - self.began
        states = gather_object([random_state()])
        if self.is_main:
            self.monitor.flush()
            scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None
            save_checkpoint(
                self.run_folder.checkpoints,
                self.position,
                self.task.networks,
                self.averages,
                self.optimizers,
                scaler,
                states,
            )
        distributed.wait_for_all(self.device)

    def save_model(self, notes: dict[str, Any]) -> None:
        """Let the task write its model into the run folder."""
        about = {"data": self.source.name, "steps": self.total_steps, "seed": self.training.seed}
        if self.config.get("name"):
            about["recipe"] = self.config["name"]
        self.task.save(self.run_folder.model, {**about, **notes})

    def finish(self) -> None:
        """Save the model and write training.json."""
        if self.is_main:
            with self.averaged():
                if self.training.select == "last":
                    self.save_model({})
            write_json(self.run_folder.training, self.summary())
        distributed.wait_for_all(self.device)

    def summary(self) -> dict[str, Any]:
        """What training.json says: steps, time, device and versions."""
        return {
            "steps": self.position.step,
            "seconds": time.perf_counter() - self.began,
            "device": device_name(self.device),
            "processes": self.accelerator.num_processes,
            "versions": library_versions(),
            **self.skipped.summary(),
        }
