"""The compiled step of training for one kind of batch, on one device or one mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from irc.frontends.torch.capture import Captured
from irc.plan.load import LoadedPlan
from irc.plan.training import trained_by
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executor import Executor
from irc.runtime.loss_scale import LossScale
from irc.training.loss_scale import OVERFLOWS


@dataclass
class StepVersion:
    """The step for one kind of batch.

    Attributes:
        captured: the forward pass.
        plan: of the step.
        executor: runs it.
        communicator: starts its collectives; None on one device.
        collects_first: what ranks compare of a call may be waited for in its first collective.
        optimizer: its numbers.
    """

    captured: Captured
    plan: LoadedPlan
    executor: Executor
    communicator: TorchCommunicator | None = None
    collects_first: bool = False
    optimizer: Mapping[str, object] = field(default_factory=dict[str, object])

    def __call__(
        self, inputs: Sequence[torch.Tensor], lr: torch.Tensor, scale: LossScale | None = None
    ) -> torch.Tensor:
        """Run on the flattened batch, and let the scale of the loss go on."""
        scales = () if scale is None else scale.read()
        loss, *written = self.executor(*inputs, *scales, lr)
        if scale is not None:
            scale.update(written.pop(self._place_of_overflows - 1))
        # What the module writes into its arguments comes last.
        for index, value in zip(self.captured.mutated_inputs.values(), written, strict=True):
            inputs[index].copy_(value)
        return loss

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that it moves, or whose gradients it computes."""
        return frozenset(trained_by(self.plan.plan))

    @cached_property
    def _place_of_overflows(self) -> int:
        plan = self.plan.plan
        return [plan.buffers[index].name for index in plan.outputs].index(OVERFLOWS)
