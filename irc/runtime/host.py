"""Running a host program: its regions by their plans, the rest op by op.

A region's plan is for the sizes that it was checked for. At others (a loop that never runs collects
0 rows) the ops of the region run one by one, in torch.
"""

# pyright: basic
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from irc.dialects.builder import arguments, entry
from irc.dialects.size import deciding, value_of
from irc.dialects.text import load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.dynamic import WEIGHTS, HostProgram
from irc.plan.files import WEIGHTS as WEIGHTS_FILE
from irc.plan.host import PROGRAM, HostFacts, HostPlan
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.plan.open_sizes import dim_of, meets, shown
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.library import dtypes
from irc.runtime.onnx_ops.values import as_item, as_tensor
from irc.runtime.open_executor import BoundPlans, KnownSizes
from irc.runtime.prepared import Store

MAX_SIZES = 64
"""Sizes of a region whose plans are kept; the one used longest ago is dropped."""


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
        self.stepped: dict[str, int] = {}
        module = host_module(plan)
        self._entry = entry(module)
        stored = {
            name: tensor.double() if wide and tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        store = Store()
        self._regions = {
            name: _Region(name, module, loaded, stored, store, num_threads)
            for name, loaded in (plan.regions.items() if compiled else ())
        }
        self._program = HostProgram(module, stored, self._called, wide=wide)
        self._stored = stored
        self._arguments = arguments(self._entry)
        self._kinds = [
            (name, value.type) for role, name, value in self._arguments if role not in WEIGHTS
        ]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run once and return the outputs: tensors; arrays, lists or None for other values.

        Raises:
            IrcError: ``input-mismatch``, ``size-outside``.
        """
        if len(inputs) != len(self._kinds):
            raise IrcError(
                "input-mismatch", f"the plan takes {len(self._kinds)} inputs, not {len(inputs)}"
            )
        given = iter([
            self._checked(name, kind, value)
            for (name, kind), value in zip(self._kinds, inputs, strict=True)
        ])  # fmt: skip
        ordered = [
            self._stored[name] if role in WEIGHTS else next(given)
            for role, name, _ in self._arguments
        ]
        sizes = read_sizes(self.plan.facts, inputs)
        with torch.no_grad():
            found = self._program.run(self._entry, ordered, sizes)
        held = {id(value) for value in ordered}
        return tuple(
            (value.clone() if id(value) in held else value.contiguous())
            if isinstance(value, torch.Tensor)
            else as_item(value)
            for value in found
        )

    def _checked(self, name: str, kind: object, value: Any) -> Any:
        if not isinstance(kind, TensorType):
            return as_item(value)
        tensor = value if isinstance(value, torch.Tensor) else as_tensor(value)
        wanted = dtypes()[kind.dtype]
        fits = tensor.ndim == kind.ndim and all(
            not isinstance(dim, int) or dim == size
            for dim, size in zip(kind.shape, tensor.shape, strict=True)
        )
        if tensor.dtype is not wanted or not fits:
            raise IrcError(
                "input-mismatch",
                f"input '{name}' is {list(tensor.shape)} {tensor.dtype}; "
                f"the plan takes [{', '.join(map(str, kind.shape))}] {wanted}",
            )
        return tensor.contiguous()

    def _called(
        self, op: CallOp, operands: list[Any], sizes: Mapping[str, int]
    ) -> list[Any] | None:
        name = op.callee.string_value()
        region = self._regions.get(name)
        found = None if region is None else region.run(operands, sizes)
        if found is None:
            self.stepped[name] = self.stepped.get(name, 0) + 1
        return found


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
        self._given = [i for i, (role, _, _) in enumerate(arguments(func)) if role not in WEIGHTS]
        self._weights = {n: weights[n] for role, n, _ in arguments(func) if role in WEIGHTS}
        self._store, self._threads = store, num_threads
        self._lock = threading.Lock()
        self._bound = None if loaded.sized is None else BoundPlans(loaded)
        self._one = self._executor(loaded) if self._bound is None else None
        self._symbols = [] if self._bound is None else [
            each.symbol for each in self._bound.sizes.symbols
        ]  # fmt: skip
        self._executors: OrderedDict[tuple[int, ...], Executor | None] = OrderedDict()

    def _executor(self, loaded: LoadedPlan) -> Executor:
        return executor_of(loaded, self._weights, num_threads=self._threads, store=self._store)

    def run(self, operands: Sequence[Any], sizes: Mapping[str, int]) -> list[Any] | None:
        """Run the plan for the sizes at hand; None where there is none."""
        executor = self._one or self._at(sizes)
        if executor is None:
            return None
        return list(executor(*[operands[index] for index in self._given]))

    def _at(self, sizes: Mapping[str, int]) -> Executor | None:
        bound = self._bound
        assert bound is not None
        values = {name: sizes[name] for name in self._symbols}
        key = tuple(values.values())
        with self._lock:
            if key not in self._executors:
                full = bound.sizes.extended(values)
                try:
                    bound.sizes.check(full, bound.names)
                except IrcError:
                    self._executors[key] = None
                else:
                    self._executors[key] = self._executor(bound.at(full))
                if len(self._executors) > MAX_SIZES:
                    self._executors.popitem(last=False)
            self._executors.move_to_end(key)
            return self._executors[key]


def read_sizes(facts: HostFacts, inputs: Sequence[Any]) -> dict[str, int]:
    """Return the numbers of the open sizes in a call's inputs.

    Raises:
        IrcError: ``size-outside`` where the program does not hold for them.
    """
    found = {each.symbol: int(inputs[each.input].shape[each.dim]) for each in facts.symbols}
    for quotient in facts.quotients:
        dim, by = dim_of(quotient.dim), dim_of(quotient.by)
        found[quotient.symbol] = value_of(dim, found) // value_of(by, found)
    for each in facts.symbols:
        if found[each.symbol] < 1:
            raise IrcError("size-outside", f"size '{each.name}' is {found[each.symbol]}")
    for condition in facts.conditions:
        if not meets(condition, found):
            raise IrcError(
                "size-outside",
                f"the plan is for sizes with {shown(condition)}",
                condition.where,
                help="compile the model for these sizes: irc compile ... --size NAME=N",
            )
    return found


def load_host_weights(plan: HostPlan) -> dict[str, torch.Tensor]:
    """Read the weights beside a host program.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    if plan.folder is None:
        return dict(plan.weights)
    path = Path(plan.folder) / WEIGHTS_FILE
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise corrupt(f"the weights cannot be read: {error}", str(path)) from None
