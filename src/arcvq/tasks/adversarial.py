"""Train a tokenizer together with a discriminator."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.data.source import Batch
from arcvq.errors import ArcvqError
from arcvq.functional.adversarial import adaptive_weight, discriminator_loss, generator_loss, lecam, r1_penalty
from arcvq.functional.precision import compute_dtype
from arcvq.nets import Decoded
from arcvq.objectives import AdversarialConfig, Discriminator, Objective
from arcvq.storage import read_tensors
from arcvq.tasks.phase import Phase
from arcvq.tasks.task import StepOutput, sum_of_terms
from arcvq.tasks.tokenizer import TokenizerTask, losses_of, quantizer_output, unit_images
from arcvq.tokenizers import Tokenizer


class AdversarialTask(TokenizerTask):
    """Two networks, `tokenizer` and `discriminator`, stepped in this order. One reconstruction serves both.

    begins  the step at which the discriminator joins
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        objective: Objective,
        discriminator: Discriminator,
        config: AdversarialConfig,
        *,
        begins: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, objective, **options)
        self.networks["discriminator"] = discriminator
        self.config, self.begins = config, begins

    @property
    def discriminator(self) -> Discriminator:
        discriminator = self.networks["discriminator"]
        assert isinstance(discriminator, Discriminator)
        return discriminator

    def phase(self, step: int) -> Phase:
        """The stage, and what the discriminator does at this step."""
        adversarial = step >= self.begins
        penalty = adversarial and self.config.r1 > 0 and (step + 1 - self.begins) % self.config.r1_every == 0
        base = super().phase(step)
        return Phase(base.stage, base.quantized, adversarial, penalty)

    def trained(self, phase: Hashable) -> dict[str, Sequence[str]]:
        assert isinstance(phase, Phase)
        return super().trained(phase) | ({"discriminator": ()} if phase.adversarial else {})

    def init_from(self, source: str) -> None:
        """The tokenizer's weights as for any tokenizer; the discriminator's from the newest checkpoint, if the run had one."""
        super().init_from(source)
        files = sorted(Path(source).glob("checkpoints/step-*/discriminator.safetensors"))
        if not files:
            return
        own, given = self.discriminator.state_dict(), read_tensors(files[-1], "a checkpoint")
        if {name: tensor.shape for name, tensor in own.items()} != {
            name: tensor.shape for name, tensor in given.items()
        }:
            raise ArcvqError(f"training.init_from: the discriminator in {files[-1]} does not fit this configuration")
        self.discriminator.load_state_dict({**given, "step": own["step"]})

    def loss(
        self, name: str, network: nn.Module, batch: Batch, shared: Mapping[str, Any], phase: Hashable
    ) -> StepOutput:
        assert isinstance(phase, Phase)
        if name == "discriminator":
            return self.discriminator_loss(network, unit_images(batch), shared["reconstruction"], phase)
        return self.tokenizer_loss(network, unit_images(batch), phase)

    def tokenizer_loss(self, network: nn.Module, images: Tensor, phase: Phase) -> StepOutput:
        """The objective, the adversarial term and the quantizer's losses.

        The gradients of objective and discriminator are taken at the reconstruction, one after the other, so that their graphs do
        not lie in memory together; only their weighted sum goes through the decoder.
        """
        shown, options = self.forward_inputs(images, phase)
        decoded, quantized = network(shown, **options)
        outputs = [decoded.images, *decoded.extra.values()]
        leaves = [output.detach().to(compute_dtype(output)).requires_grad_() for output in outputs]
        terms = self.objective_terms(Decoded(leaves[0], dict(zip(decoded.extra, leaves[1:]))), images, phase)
        total = torch.stack(list(terms.values())).sum()
        gradients = list(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
        stats: dict[str, Tensor] = {}
        if phase.adversarial:
            terms["adversarial"], gradient, stats = self.adversarial_term(leaves[0], decoded, gradients[0])
            gradients[0] = gradients[0] + gradient
        through = [(output.to(gradient.dtype) * gradient).sum() for output, gradient in zip(outputs, gradients)]
        about = quantizer_output(quantized)
        return StepOutput(
            torch.stack([*through, *losses_of(quantized).values()]).sum(),
            {name: term.detach() for name, term in (terms | losses_of(quantized)).items()},
            stats=about.pop("stats", {}) | stats,
            shared={"reconstruction": leaves[0].detach()},
            **about,
        )

    def adversarial_term(
        self, reconstruction: Tensor, decoded: Decoded, other: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The weighted term, its gradient at the reconstruction, and statistics. `other`: the gradient of all other terms there."""
        config = self.config
        logits, share = self.discriminator(reconstruction), distributed.batch_weight(reconstruction)
        term = generator_loss(logits, config.loss) * share
        (gradient,) = torch.autograd.grad(term, reconstruction)
        other_norm, norm = (self.norm_at_last_layer(decoded.images, each) for each in (other, gradient))
        weight = config.weight * self.discriminator.ramp(config.ramp_steps)
        if config.adaptive:
            weight = weight * adaptive_weight(other_norm, norm)
        stats = {
            "generator_logits": share * logit_sum(logits) / max(1, logits.numel()),
            "adversarial_weight": weight,
            "reconstruction_gradient": other_norm,
            "adversarial_gradient": norm,
        }
        return weight * term.detach(), weight * gradient, stats

    def norm_at_last_layer(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The norm of the gradient of the decoder's last weight, over all processes, for this gradient of its images."""
        last = self.tokenizer.autoencoder.last_layer
        if not last.requires_grad:  # a stage that does not train the decoder
            return gradient.new_zeros(())
        (found,) = torch.autograd.grad(images, last, gradient.to(images.dtype), retain_graph=True)
        return (distributed.sum_over_processes(found.to(compute_dtype(found))) / distributed.world_size()).norm()

    def discriminator_loss(self, network: nn.Module, images: Tensor, fake: Tensor, phase: Phase) -> StepOutput:
        """The discriminator's loss on images and their reconstructions, and its penalties."""
        config, own = self.config, self.discriminator
        images = images.to(fake.dtype).requires_grad_(phase.penalty)
        real_logits, fake_logits = network(images), network(fake)
        weight = distributed.batch_weight(images)
        terms = {
            "discriminator": config.discriminator_weight
            * weight
            * discriminator_loss(real_logits, fake_logits, config.loss)
        }
        if config.lecam:
            penalty = lecam(real_logits, fake_logits, own.real_average, own.fake_average)
            terms["lecam"] = config.lecam * weight * penalty
        if phase.penalty:
            terms["r1"] = config.r1 / 2 * config.r1_every * weight * r1_penalty(real_logits, images)
        real_sum, fake_sum = logit_sum(real_logits), logit_sum(fake_logits)
        count = torch.full_like(real_sum, real_logits.numel())
        share = weight / count.clamp(min=1)
        stats = {"real_logits": share * real_sum, "fake_logits": share * fake_sum}
        return sum_of_terms(terms, stats=stats, update=torch.stack([real_sum, fake_sum, count]))

    def after_step(self, name: str, updates: Sequence[Any], phase: Hashable) -> None:
        if name == "discriminator":
            self.discriminator.after_step(updates)
        else:
            super().after_step(name, updates, phase)


def logit_sum(logits: Tensor) -> Tensor:
    """The sum of the logits, without gradient."""
    return logits.detach().to(compute_dtype(logits)).sum()
