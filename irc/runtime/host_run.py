"""Trial runs of a host program: inputs, time, and the difference from eager.

Eager is the same program with the ops of its regions run one by one, in torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ExternOp
from irc.dialects.size import bind
from irc.dialects.types import TensorType, is_float
from irc.errors import IrcError
from irc.interpret.dynamic import WEIGHTS
from irc.interpret.levels import difference
from irc.logs import PROGRESS, tell_share
from irc.plan.host import HostPlan, load_host
from irc.plan.open_sizes import example_or
from irc.plan.ranges import smallest_table
from irc.runtime.compare import Comparison
from irc.runtime.dtypes import dtypes
from irc.runtime.host import HostExecutor, host_module, load_host_weights
from irc.runtime.inputs import check_memory, chosen, read_arrays
from irc.runtime.onnx_ops.values import Array, as_tensor
from irc.runtime.report import RunReport

if TYPE_CHECKING:
    from irc.interpret.check import CheckReport

Output: TypeAlias = "torch.Tensor | list[Any] | tuple[Any, ...] | dict[Any, Any] | Array | None"
"""What a host program gives: an item of ONNX, or a tensor."""

TIMED_CALLS = 5
TRIPS = (2, 5)
"""Random numbers that the host decides by (trips, how many to take) lie between these."""


def run_host(
    folder: str | Path,
    *,
    inputs: str | None = None,
    compare: bool = True,
    seed: int = 0,
    outputs: str | None = None,
    sizes: Mapping[str, int] | None = None,
    trust: bool = False,
    verify: bool = False,
) -> RunReport:
    """Run a host program on this machine and report; see :func:`irc.runtime.launch.run_plan`.

    Raises:
        IrcError: ``input-mismatch``, ``size-outside``, ``size-unknown``, ``plan-corrupt``.
    """
    plan = load_host(folder, trust=trust)
    weights = load_host_weights(plan, verify=verify)
    values = host_inputs(plan, inputs, seed, sizes or {})
    run = HostExecutor(plan, weights)
    PROGRESS.info("the first call")
    results = run(*values)
    PROGRESS.info("timing calls")
    seconds: list[float] = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        run(*values)
        seconds.append(time.perf_counter() - start)
    if outputs is not None:
        _save(outputs, plan, results)
    notes = tuple(f"op by op   {name}" for name in sorted(run.stepped))
    if compare:
        PROGRESS.info("the model, eagerly")
    comparison = compared(plan, weights, values, results) if compare else None
    threads = torch.get_num_threads()
    return RunReport("", threads, (min(seconds),), None, comparison, notes=notes)


def compared(
    plan: HostPlan,
    weights: Mapping[str, torch.Tensor],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
) -> Comparison:
    """Hold outputs against eager's in the model's dtypes and in float64."""
    eager = _tensors(HostExecutor(plan, weights, compiled=False)(*inputs))
    wide = HostExecutor(plan, weights, compiled=False, wide=True)
    exact = _tensors(wide(*inputs))
    compiled = _tensors(outputs)
    if [x.shape for x in exact] != [x.shape for x in eager]:
        # A value near a threshold is above it in one dtype and below in the other.
        exact = eager
    if len(compiled) != len(eager) or len(exact) != len(eager):
        return Comparison(float("inf"), float("inf"), 0.0)
    apart = [float(_difference(a, b, absolute=True)) for a, b in zip(compiled, eager, strict=True)]
    return Comparison(
        max(apart, default=0.0),
        max((_difference(a, b) for a, b in zip(compiled, exact, strict=True)), default=0.0),
        max((_difference(a, b) for a, b in zip(eager, exact, strict=True)), default=0.0),
    )


def _difference(a: torch.Tensor, b: torch.Tensor, *, absolute: bool = False) -> float:
    if a.shape != b.shape:
        return float("inf")
    if absolute and a.numel():
        return float((a.to(torch.float64) - b.to(torch.float64)).abs().nan_to_num(0.0).max())
    return difference(a, b)


def _tensors(values: Sequence[Output]) -> list[torch.Tensor]:
    """Return all numbers of some outputs; of strings, whether they are equal is left to hashes."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(value)
        elif isinstance(value, dict):
            tensors += _tensors([np.array(sorted(map(str, value.items())), object)])
        elif isinstance(value, np.ndarray) and value.dtype == object:
            codes = [sum(text.encode()) + len(text) for text in map(str, value.reshape(-1))]
            tensors.append(torch.tensor(codes, dtype=torch.int64).reshape(value.shape))
        elif isinstance(value, np.ndarray):
            plain = value.dtype.kind in "fiub" and value.dtype.isbuiltin
            tensors.append(as_tensor(value if plain else value.astype(np.float32)))
    return tensors


def host_inputs(plan: HostPlan, file: str | None, seed: int, sizes: Mapping[str, int]) -> list[Any]:
    """Return inputs from an ``.npz`` file, or random ones.

    Raises:
        IrcError: ``file-missing``, ``input-mismatch``, ``size-unknown``; ``memory-exceeded``.
    """
    if file is not None:
        return chosen(read_arrays(file), plan.facts.inputs)
    numbers = example_or(plan.facts.symbols, sizes)
    module, generator = host_module(plan), torch.Generator().manual_seed(seed)
    inputs = [(n, value) for role, n, value in arguments(entry(module)) if role not in WEIGHTS]
    kinds = [value.type for _, value in inputs if isinstance(value.type, TensorType)]
    check_memory([(kind.dtype, _shape(kind, numbers)) for kind in kinds])
    return [_drawn(module, name, value, numbers, generator) for name, value in inputs]


def _drawn(
    module: ModuleOp,
    name: str,
    value: SSAValue,
    numbers: Mapping[str, int],
    generator: torch.Generator,
) -> torch.Tensor:
    kind = value.type
    if not isinstance(kind, TensorType):
        raise IrcError(
            "input-mismatch",
            f"input '{name}' is no tensor of numbers, so none can be drawn",
            help="call what irc.load gives, or write the inputs to a file: --inputs F.npz",
        )
    shape = _shape(kind, numbers)
    dtype = dtypes()[kind.dtype]
    if is_float(kind.dtype):
        return torch.randn(shape, generator=generator).to(dtype)
    if kind.dtype == "i1":
        return torch.rand(shape, generator=generator) < 0.5
    if (table := smallest_table(value, functions(module))) is not None:
        return torch.randint(0, table, shape, generator=generator).to(dtype)
    decides = any(isinstance(use.operation, ExternOp) for use in value.uses)
    low, high = TRIPS if decides else (0, 2)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def _shape(kind: TensorType, numbers: Mapping[str, int]) -> list[int]:
    return [dim for dim in (bind(dim, numbers) for dim in kind.shape) if isinstance(dim, int)]


@dataclass(frozen=True)
class CheckedHost:
    """A host program that agrees with eager, and its regions.

    Attributes:
        regions: what was compared of each region that has a plan, by name.
        unplanned: why others have none, by name.
        relative: largest difference of the whole from eager in float64, relative to an output.
        eager_relative: the same of eager in the model's dtypes.
    """

    regions: Mapping[str, CheckReport]
    unplanned: Mapping[str, str]
    relative: float
    eager_relative: float

    def __str__(self) -> str:
        lines = [line for name, report in self.regions.items() for line in (name, f"{report}", "")]
        for name, reason in self.unplanned.items():
            lines += [name, f"has no plan: {reason}", ""]
        lines.append(f"the host program agrees with eager: {_said(self)}")
        return "\n".join(lines)


def _said(comparison: Comparison | CheckedHost) -> str:
    return f"relative {comparison.relative:.1e} (eager's own {comparison.eager_relative:.1e})"


def check_host(folder: str, inputs: str | None = None, *, trust: bool = False) -> CheckedHost:
    """Check every region by its passes, and the host program as a whole; see ``irc check``.

    Raises:
        IrcError: ``check-failed``.
    """
    from irc.interpret.check import check_plan

    plan = load_host(folder, trust=trust)
    trust = plan.code == "trusted"
    regions: dict[str, CheckReport] = {}
    for number, name in enumerate(plan.regions, 1):
        tell_share("region", number, len(plan.regions))
        regions[name] = check_plan(f"{folder}/regions/{name}", trust=trust)
    PROGRESS.info("the host program")
    unplanned = {name: known.reason for name, known in plan.facts.regions.items() if known.reason}
    values = host_inputs(plan, inputs, 0, {})
    weights = load_host_weights(plan)
    comparison = compared(plan, weights, values, HostExecutor(plan, weights)(*values))
    if not comparison.ok:
        raise IrcError(
            "check-failed", f"the host program differs from eager: {_said(comparison)}",
            because=["each region agrees with eager by itself"],
        )  # fmt: skip
    return CheckedHost(regions, unplanned, comparison.relative, comparison.eager_relative)


def _save(path: str, plan: HostPlan, outputs: Sequence[Any]) -> None:
    from irc.plan.weights import write_safetensors

    named: dict[str, torch.Tensor] = {}
    for name, value in zip(plan.facts.outputs, outputs, strict=True):
        if not isinstance(value, torch.Tensor):
            raise IrcError(
                "option-value", f"output '{name}' is no tensor, which a .safetensors file holds"
            )
        named[name] = value
    write_safetensors(Path(path), named)
