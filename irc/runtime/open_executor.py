"""The executor of a plan with open sizes: a bound plan for each, made when its first call comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

import torch

from irc.dialects.bound_sizes import bound_module
from irc.dialects.size import Dim, Relation, Size, deciding, floor_quotient, symbol
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.plan.in_notebook import shown_plan
from irc.plan.load import LoadedPlan
from irc.plan.open_sizes import QuotientSize, SizeCondition, dim_of, example_or
from irc.plan.schema import Plan
from irc.plan.sizes import CAPTURE, SIZES, PlanSizes, SizedPlan
from irc.runtime.code import check_calls, read_kernels, runnable
from irc.runtime.driver import BySizes, Driver
from irc.runtime.executor import Executor
from irc.runtime.executors import driver_of
from irc.runtime.kernel_templates import kernel_templates


class OpenExecutor:
    """Runs a plan for any sizes that it was checked for; call it with the inputs in order.

    Args:
        loaded: with open sizes.
        tensors: weights by name.
        options: what :class:`irc.runtime.torch_driver.TorchDriver` takes.
    """

    def __init__(
        self, loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor], **options: Any
    ) -> None:
        self.bound = BoundPlans(loaded)
        self._driver: Driver[LoadedPlan, Executor] = driver_of(
            loaded.plan.backend, tensors, **options
        )
        self._executors = BySizes(self._bind)
        self._latest, self._drawn = loaded.plan, loaded

    def _repr_html_(self) -> str:
        """Return the plan of the example as a notebook shows it."""
        return shown_plan(self._drawn)

    @property
    def plan(self) -> Plan:
        """What was run last; the example before the first call."""
        return self._latest

    @property
    def sizes(self) -> PlanSizes:
        """Which sizes are open."""
        return self.bound.sizes

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run once and return the outputs.

        Raises:
            IrcError: ``input-mismatch``, or ``size-outside``, naming the dim.
        """
        return self.at(tuple([tuple(x.shape) for x in inputs]))(*inputs)

    def at(self, shapes: tuple[tuple[int, ...], ...]) -> Executor:
        """Return what runs inputs of these shapes."""
        executor = self._executors.at(shapes)
        self._latest = executor.plan
        return executor

    def _bind(self, shapes: tuple[tuple[int, ...], ...]) -> Executor:
        return self._driver.bind(self.bound.for_shapes(shapes))


class BoundPlans:
    """Plans of a folder for numbers.

    Args:
        loaded: with open sizes.
    """

    def __init__(self, loaded: LoadedPlan) -> None:
        assert loaded.sized is not None
        loaded = runnable(loaded)
        assert loaded.sized is not None
        # Kernels that are written again have to be given what they were written for, at all sizes.
        self._read = read_kernels(loaded) if loaded.code == "rewritten" else None
        self._loaded = loaded
        self._sized: SizedPlan = loaded.sized
        self.sizes = self._sized.sizes
        self.names = [loaded.plan.buffers[index].name for index in loaded.plan.inputs]
        self._kernels = kernel_templates(loaded, self.sizes)

    def for_shapes(self, shapes: Sequence[Sequence[int]]) -> LoadedPlan:
        """Return the plan for shapes of inputs.

        Raises:
            IrcError: ``input-mismatch``, or ``size-outside``, naming the dim.
        """
        return self.at(self.values(shapes))

    def values(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the numbers of all symbols in shapes of inputs; raises as :meth:`for_shapes`."""
        if len(shapes) != len(self.names):
            raise IrcError(
                "input-mismatch", f"the plan takes {len(self.names)} inputs, not {len(shapes)}"
            )
        return self.sizes.values(shapes, self.names)

    def values_of(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return numbers of all symbols from some by the model's names; others are the example's.

        Raises:
            IrcError: ``size-unknown``, ``size-outside``.
        """
        values = example_or(self.sizes.symbols, numbers)
        full = self.sizes.extended(values)
        self.sizes.check(full, self.names)
        return full

    def at(self, full: Mapping[str, int]) -> LoadedPlan:
        """Return the plan for numbers of all symbols."""
        plan, texts = self._sized.at(full), dict(self._loaded.texts)
        del texts[SIZES]
        emit = import_module(f"irc.backends.{plan.backend}").emit
        instances = {kernel.like.sym_name.data: kernel.at(full) for kernel in self._kernels}
        for name, kernel in instances.items():
            (path,) = (p for p in texts if p.startswith(f"kernels/{name}."))
            texts[path] = emit(kernel).encode()
        if self._read is not None:
            for kernel in instances.values():
                kernel.verify()
            check_calls(plan, {**self._read, **instances}, str(self._loaded.folder))
        return replace(self._loaded, plan=plan, texts=texts)

    def with_program(self, full: Mapping[str, int]) -> LoadedPlan:
        """Return the plan for numbers, whose IR is the model's program for them, as far as kept."""
        if full == self.sizes.example:
            return self._loaded
        loaded = self.at(full)
        texts = {name: t for name, t in loaded.texts.items() if not name.startswith("ir/")}
        if (text := texts.pop(CAPTURE, None)) is not None:
            with deciding(KnownSizes(self.sizes)):
                program = load(text.decode(), CAPTURE)
            texts["ir/00-capture.mlir"] = dump(bound_module(program, full)).encode()
        return replace(loaded, texts=texts)


class StatedSizes(Protocol):
    """What a file says of sizes."""

    @property
    def quotients(self) -> tuple[QuotientSize, ...]:
        """Sizes that follow from others."""
        ...

    @property
    def conditions(self) -> tuple[SizeCondition, ...]:
        """What was taken for granted."""
        ...


class KnownSizes:
    """Answers of the trace that a program was made by: it is checked again as it is read."""

    def __init__(self, sizes: StatedSizes) -> None:
        self._answers = {(c.relation, dim_of(c.difference)): c.holds for c in sizes.conditions}
        self._quotients = {(dim_of(q.dim), dim_of(q.by)): q.symbol for q in sizes.quotients}

    def decide(self, relation: Relation, difference: Size) -> bool | None:
        """Return what the trace was told."""
        return self._answers.get((relation, difference))

    def quotient(self, dim: Size, by: int) -> Dim | None:
        """Return the name that the trace gave."""
        return floor_quotient(dim, by, self._named)

    def _named(self, dim: Size, by: int) -> Dim | None:
        name = self._quotients.get((dim, by))
        return None if name is None else symbol(name)
