"""What a closed form needs to know of a forward pass: its work, its weights, its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ContractOp, FlowOp
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.ops.rule import RuleError
from irc.ops.work import VIEWS, flops
from irc.search.configurations import Outline
from irc.search.facts import call_counts
from irc.search.products import products_of_call, read_by_call
from irc.training.gradient_totals import widened
from irc.training.optimizers import Optimizer

FUSED = 3
"""So many ops are one kernel, about: what is pointwise goes into its neighbours."""


def outline_of(
    module: ModuleOp,
    *,
    parts: int = 1,
    products: Mapping[str, float] | None = None,
    held: Collection[str] | None = None,
    optimizer: Optimizer | None = None,
) -> Outline:
    """Return the outline of a forward pass.

    Args:
        module: level flow, as captured; its sizes are numbers.
        parts: of the batch, of which the module computes one.
        products: flops of its matrix products by dtype, of a step with those of backward; None: of
            the forward pass alone.
        held: names of the parameters that every plan holds: those that a call reads, or a step
            moves; None: those that the results depend on.
        optimizer: that moves them; None of a call.
    """
    known = functions(module)
    counts = call_counts(known)
    work: Counter[str] = Counter()
    launches, largest = 0, 0.0
    for name, func in known.items():
        for op in func.body.block.ops:
            if not isinstance(op, FlowOp) or op.name in VIEWS:
                continue
            launches += counts[name]
            outputs = [v.type for v in op.outputs if isinstance(v.type, TensorType)]
            if isinstance(op, ContractOp) and outputs:
                largest = max(largest, float(num_bytes(outputs[0])))
            work[outputs[0].dtype if outputs else "f32"] += counts[name] * _flops(op)
    samples = _samples(module)
    dtype = max(work, key=lambda kind: (work[kind], kind)) if work else "f32"
    layers, boundary = _layers(module, counts)
    own = products_of_call(module) if products is None else products
    every = [
        (name, value.type)
        for role, name, value in arguments(entry(module))
        if role == "parameter" and isinstance(value.type, TensorType)
    ]
    names = read_by_call(module) if held is None else held
    kinds = [kind for name, kind in every if name in names]
    states = 0 if optimizer is None else sum(_state_bytes(optimizer, kind) for kind in kinds)
    return Outline(
        flops=float(parts * sum(work.values())),
        dtype=dtype,
        parameter_bytes=float(sum(num_bytes(kind) for _, kind in every)),
        boundary_bytes=parts * (boundary or largest),
        layers=layers,
        samples=parts * samples,
        launches=launches // FUSED,
        products=tuple((kind, parts * number) for kind, number in sorted(own.items())),
        stored_bytes=float(sum(map(num_bytes, kinds)) + states),
        sums_bytes=0.0 if optimizer is None else float(sum(map(num_bytes, kinds))),
    )


def _state_bytes(optimizer: Optimizer, kind: TensorType) -> int:
    """Return the bytes of what an optimiser keeps for a parameter; 0 where a size is a name."""
    if not num_bytes(kind):
        return 0
    shapes = optimizer.states(kind.static_shape()).values()
    return ITEM_BYTES[widened(kind.dtype)] * sum(map(prod, shapes))


def num_bytes(kind: TensorType) -> int:
    """Return the bytes of a whole tensor; 0 where a size is a name."""
    try:
        shape = kind.static_shape()
    except ValueError:
        return 0
    size = ITEM_BYTES[kind.dtype]
    for length in shape:
        size *= length
    return size


def _flops(op: FlowOp) -> int:
    try:
        return flops(op)
    except (RuleError, KeyError, ValueError):
        return 0


def _samples(module: ModuleOp) -> int:
    """Return the first dim of the first input that has one."""
    for role, _, value in arguments(entry(module)):
        kind = value.type
        if role == "input" and isinstance(kind, TensorType) and kind.ndim:
            first = kind.shape[0]
            return first if isinstance(first, int) and first > 0 else 1
    return 1


def _layers(module: ModuleOp, counts: Counter[str] | dict[str, int]) -> tuple[int, float]:
    """Return how many layers are alike, and the bytes that one hands to the next."""
    results: dict[str, float] = {}
    for op in entry(module).body.block.ops:
        if isinstance(op, CallOp) and op.results:
            kinds = [v.type for v in op.results if isinstance(v.type, TensorType)]
            results[op.callee.string_value()] = float(max(map(num_bytes, kinds), default=0))
    if not results:
        # Nothing is repeated: each product may be a layer of its own.
        products = sum(isinstance(op, ContractOp) for op in entry(module).body.block.ops)
        return max(products, 1), 0.0
    name = max(results, key=lambda each: (counts[each], results[each]))
    return max(counts[name], 1), results[name]
