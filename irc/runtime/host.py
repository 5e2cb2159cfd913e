"""Running a host program: its regions by their plans, the rest op by op.

A region's plan is for the sizes that it was checked for. At others (a loop that never runs collects
0 rows) the ops of the region run one by one, in torch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry
from irc.dialects.size import deciding
from irc.dialects.text import load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.dynamic import WEIGHTS, HostProgram
from irc.plan.digests import check_weights
from irc.plan.files import WEIGHTS as WEIGHTS_FILE
from irc.plan.host import PROGRAM, HostPlan
from irc.plan.host_code import Library
from irc.plan.in_notebook import shown_plan
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.runtime import library
from irc.runtime.array_call import Call, array_call
from irc.runtime.code import check_module
from irc.runtime.driver import BySizes
from irc.runtime.dtypes import dtypes
from irc.runtime.executors import driver_of
from irc.runtime.host_calls import HostCalls
from irc.runtime.host_lower import host_code
from irc.runtime.onnx_ops.values import as_item, as_tensor
from irc.runtime.open_executor import BoundPlans, KnownSizes
from irc.runtime.prepared import Store

_weights_file: Any = safe_open
"""A file of safetensors, whose types are unknown."""


def host_module(plan: HostPlan) -> ModuleOp:
    """Read the host program.

    Raises:
        IrcError: ``ir-syntax``, ``ir-invalid``, ``ir-too-large``.
    """
    with deciding(KnownSizes(plan.facts)):
        return load(plan.text, PROGRAM)


class HostExecutor:
    """Runs a host program; call it with the inputs in order.

    Args:
        plan: the program and the plans of its regions.
        weights: by name.
        num_threads: for kernels; by default what torch uses.
        compiled: run regions by their plans; else all ops run one by one, which is eager.
        wide: without plans, compute floats in float64.

    Attributes:
        stepped: how often a region ran op by op, by name, for want of a plan for the sizes.
    """

    def __init__(
        self,
        plan: HostPlan,
        weights: Mapping[str, torch.Tensor],
        *,
        num_threads: int | None = None,
        compiled: bool = True,
        wide: bool = False,
    ) -> None:
        self.plan = plan
        module = host_module(plan)
        if plan.code == "unknown":
            check_module(module, str(plan.folder))
        self._entry = entry(module)
        stored = {
            name: tensor.double() if wide and tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        self._program = HostProgram(module, stored, wide=wide)
        self._arguments = arguments(self._entry)
        self._kinds = [value.type for role, _, value in self._arguments if role not in WEIGHTS]
        self._stored = stored
        store = Store()
        regions = {
            name: _Region(name, module, loaded, stored, store, num_threads)
            for name, loaded in (plan.regions.items() if compiled else ())
        }
        self._regions = _Regions(regions, self._program)
        code, arrays = host_code(module, plan.facts, weights)
        self._calls = HostCalls(code, arrays, self._regions)
        self._compiled = compiled

    def _repr_html_(self) -> str:
        """Return the plan as a notebook shows it."""
        return shown_plan(self.plan)

    @property
    def stepped(self) -> Mapping[str, int]:
        """How often a region ran op by op, by name."""
        return self._regions.stepped

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run once and return the outputs: tensors; arrays, lists or None for other values.

        Raises:
            IrcError: ``input-mismatch``, ``size-outside``.
        """
        items = [as_item(value) for value in inputs]
        outputs = self.run(items) if self._compiled else self._eager(items)
        return tuple(
            as_tensor(value) if isinstance(kind, TensorType) else value
            for value, kind in zip(outputs, self._entry.function_type.outputs, strict=True)
        )

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Run once on arrays, lists and None, and return such.

        Raises:
            IrcError: ``input-mismatch``, ``size-outside``.
        """
        with torch.no_grad():
            return self._calls.run(items)

    def refused(self, items: Sequence[Any]) -> str | None:
        """Say why the program is not for the sizes of some inputs; None where it is."""
        try:
            self._calls.check_sizes(items)
        except IrcError as error:
            return error.message
        return None

    def _eager(self, items: Sequence[Any]) -> list[Any]:
        sizes = self._calls.check_sizes(items)
        inputs = iter([
            as_tensor(value) if isinstance(kind, TensorType) else value
            for kind, value in zip(self._kinds, items, strict=True)
        ])  # fmt: skip
        ordered = [
            self._stored[name] if role in WEIGHTS else next(inputs)
            for role, name, _ in self._arguments
        ]
        with torch.no_grad():
            outputs = self._program.run(self._entry, ordered, sizes)
        return [as_item(value) for value in outputs]


class _Regions:
    """The regions of a program: by their plans, or op by op."""

    def __init__(self, regions: Mapping[str, _Region], program: HostProgram) -> None:
        self._regions, self._program = regions, program
        self.stepped: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, name: str, inputs: list[Any], sizes: Mapping[str, int]) -> list[Any] | None:
        """Run the plan of a region; None where there is none for the sizes."""
        region = self._regions.get(name)
        return None if region is None else region.run(inputs, sizes)

    def step(self, name: str, inputs: list[Any], sizes: Mapping[str, int]) -> list[Any]:
        """Run the ops of a region one by one."""
        with self._lock:
            self.stepped[name] = self.stepped.get(name, 0) + 1
        tensors = [as_tensor(value) for value in inputs]
        return [as_item(value) for value in self._program.call(name, tensors, sizes)]

    def library(
        self, step: Library, operands: list[Any], shapes: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Run an op of flow."""
        names = [each.dtype for each in step.stated if each is not None]
        results = [(tuple(s), name) for s, name in zip(shapes, names, strict=True)]
        tensors = library.run(step.op, step.attrs, [as_tensor(each) for each in operands], results)
        wanted = [dtypes()[name] for name in names]
        return [
            as_item(t.to(dtype) if t.is_floating_point() else t)
            for t, dtype in zip(tensors, wanted, strict=True)
        ]


class _Region:
    """A region's plan, and executors of it for the sizes that came."""

    def __init__(
        self,
        name: str,
        module: ModuleOp,
        loaded: LoadedPlan,
        weights: Mapping[str, torch.Tensor],
        store: Store,
        num_threads: int | None,
    ) -> None:
        func = entry(module, name)
        own = {n: weights[n] for role, n, _ in arguments(func) if role in WEIGHTS}
        backend = loaded.plan.backend
        self._driver = driver_of(backend, own, num_threads=num_threads, store=store)
        self._bound = None if loaded.sized is None else BoundPlans(loaded)
        self._one = self._call(loaded) if self._bound is None else None
        self._symbols = [] if self._bound is None else [
            each.symbol for each in self._bound.sizes.symbols
        ]  # fmt: skip
        self._calls = BySizes(self._bind)

    def _call(self, loaded: LoadedPlan) -> Call:
        return array_call(self._driver.bind(loaded))

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[Any] | None:
        """Run the plan for the sizes at hand; None where there is none."""
        call = self._one or self._calls.at(tuple([sizes[name] for name in self._symbols]))
        return None if call is None else call(inputs)

    def _bind(self, numbers: tuple[int, ...]) -> Call | None:
        bound = self._bound
        assert bound is not None
        full = bound.sizes.extended(dict(zip(self._symbols, numbers, strict=True)))
        try:
            bound.sizes.check(full, bound.names)
        except IrcError:
            return None
        return self._call(bound.at(full))


def load_host_weights(plan: HostPlan, *, verify: bool = False) -> dict[str, torch.Tensor]:
    """Read the weights beside a host program.

    Args:
        plan: the host program.
        verify: compare them with their digests also where that was done here before.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    if plan.folder is None:
        return dict(plan.weights)
    path = Path(plan.folder) / WEIGHTS_FILE
    check_weights(path, known=plan.code != "unknown", always=verify)
    try:
        with _weights_file(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise corrupt(f"the weights cannot be read: {error}", str(path)) from None
