"""Forward and backward of a module as two functions of one plan.

The program gives the module's results and, from their gradients, those of parameters and inputs. It
is placed as one, so that both halves agree on what is saved and how it lies; then it is split.
The gradient of a parameter stays the sum over ranks that it is computed as, where the reduction is
all that is left: whoever runs the halves reduces many at once, or adds up several batches first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, results
from irc.dialects.placement import Partial, Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.pipeline import Options, run_passes
from irc.pipeline.default import passes_by_part
from irc.pipeline.make import function_plan
from irc.pipeline.training import Training, check_vjp, padding
from irc.plan import json_text
from irc.plan.load import LoadedPlan, pack, unpack
from irc.program import Program
from irc.sharding.padding import cut_again
from irc.training.functions import SAVED, sort_by_function, split_functions
from irc.training.stages import GRADIENT

SEED = "seed"


@dataclass(frozen=True)
class Halves:
    """A module's forward and backward pass, planned.

    Attributes:
        forward: gives the module's results, then what is saved.
        backward: takes what is saved and the gradients of results; gives gradients.
        outputs: names of the module's results.
        saved: names of what is saved, in the order in which forward gives it.
        gradients: of each gradient that backward gives, in order, whose it is.
        reads: of each gradient, the results on whose gradients it depends.
    """

    forward: LoadedPlan
    backward: LoadedPlan
    outputs: tuple[str, ...]
    saved: tuple[str, ...]
    gradients: tuple[str, ...]
    reads: Mapping[str, tuple[str, ...]]


def plan_halves(
    program: Program, options: Options, trained: Collection[str], inputs: Collection[str]
) -> Halves:
    """Plan forward and backward of a captured program, which is changed.

    Args:
        program: as captured.
        options: of the pipeline, with a mesh.
        trained: names of the parameters that get a gradient.
        inputs: names of the inputs that get one.

    Raises:
        IrcError: ``not-differentiable``; what the passes raise.
    """
    module = program.module
    chosen: dict[str, object] = {"trainable": ",".join(trained), "inputs": ",".join(inputs)}
    chosen |= {"outputs": "all", "seeds": "inputs"}
    training = Training(padding(options), {}, differentiate=chosen, recompute=None)
    run_passes(module, training.passes)
    cut_again(entry(module))
    check_vjp(module)
    reads = _reads(module)
    _, before, after = passes_by_part(options)
    at = next(i for i, each in enumerate(before) if each.name == "auto-shard")
    run_passes(module, before[:at], verify_each=options.verify_each)
    sort_by_function(module, merged=True)
    run_passes(module, [before[at]], verify_each=options.verify_each)
    _leave_partial(module, trained)
    run_passes(module, before[at + 1 :], verify_each=options.verify_each)
    for name in ("irc.auto_shard", "irc.plan_cost"):
        module.attributes.pop(name, None)
    outputs = tuple(name for role, name in results(entry(module)) if role == "output")
    gradients = tuple(name for role, name in results(entry(module)) if role == "gradient")
    functions = split_functions(module, splits_backward=False).modules
    saved = tuple(name for role, name in results(entry(functions["F"])) if role == SAVED)
    plans = {kind: function_plan(functions[kind], after, options) for kind in ("F", "B")}
    return Halves(plans["F"], plans["B"], outputs, saved, gradients, reads)


def _reads(module: ModuleOp) -> dict[str, tuple[str, ...]]:
    """Return, of each gradient, the names of the results on whose gradients it depends."""
    func = entry(module)
    depends: dict[SSAValue, frozenset[str]] = {
        value: frozenset([name.removeprefix(GRADIENT)])
        for role, name, value in arguments(func)
        if role == "input" and name.startswith(GRADIENT)
    }
    none = frozenset[str]()
    for op in func.body.block.ops:
        every = none.union(*(depends.get(value, none) for value in op.operands))
        if every:
            depends.update(dict.fromkeys(op.results, every))
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    named = zip(results(func), end.operands, strict=True)
    return {
        name: tuple(sorted(depends.get(value, none)))
        for (role, name), value in named
        if role == "gradient"
    }


def _leave_partial(module: ModuleOp, trained: Collection[str]) -> None:
    """Return gradients of parameters before their last boxing where it only adds ranks up.

    Those of inputs are for what the caller computed them with, and are sums already.
    """
    func = entry(module)
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    for index, (role, name) in enumerate(results(func)):
        if role != "gradient" or name not in trained:
            continue
        value = end.operands[index]
        first = value
        while isinstance(first.owner, BoxingOp):
            first = first.owner.x
        if first is value or not is_reduction(_placement(first), _placement(value)):
            continue
        end.operands[index] = first
        _erase_boxings(value)
    func.update_function_type()


def _erase_boxings(value: SSAValue) -> None:
    op: SSAValue | Operation = value.owner  # type: ignore[assignment]  # an op: boxings alone
    while isinstance(op, BoxingOp) and all(r.first_use is None for r in op.results):
        before = op.x.owner
        op.detach()
        op.erase()
        op = before  # type: ignore[assignment]


def _placement(value: SSAValue) -> Placement:
    assert isinstance(value.type, TensorType)
    assert value.type.placement is not None
    return value.type.placement


def is_reduction(source: Placement, target: Placement) -> bool:
    """Return whether one collective for each partial axis leads from one placement to another.

    >>> from irc.dialects.placement import B, Split
    >>> is_reduction(Placement.of(data=Partial()), Placement.of(data=B))
    True
    >>> is_reduction(Placement.of(data=Split(1)), Placement.of(data=Split(0)))
    False
    """
    partial = source.partial_axes()
    others = [name for name in source.names if name not in partial]
    return (
        bool(partial)
        and not target.partial_axes()
        and all(source[name] == target[name] for name in others)
        and all(source[name] == Partial("sum") for name in partial)
    )


def pack_halves(halves: Halves) -> bytes:
    """Write them as one string of bytes, to be sent."""
    forward, backward = pack(halves.forward), pack(halves.backward)
    facts = {
        "outputs": halves.outputs,
        "saved": halves.saved,
        "gradients": halves.gradients,
        "reads": halves.reads,
        "forward": len(forward),
    }
    header = json_text.dump(facts).encode()
    return len(header).to_bytes(8, "little") + header + forward + backward


def unpack_halves(data: bytes) -> Halves:
    """Read what :func:`pack_halves` wrote."""
    start = 8 + int.from_bytes(data[:8], "little")
    facts = json_text.parse_object(data[8:start], "header")
    middle = start + int(facts["forward"])
    names: Mapping[str, Sequence[str]] = {
        key: tuple(map(str, facts[key])) for key in ("outputs", "saved", "gradients")
    }
    reads = {str(name): tuple(map(str, of)) for name, of in facts["reads"].items()}
    return Halves(
        unpack(data[start:middle]),
        unpack(data[middle:]),
        tuple(names["outputs"]),
        tuple(names["saved"]),
        tuple(names["gradients"]),
        reads,
    )
