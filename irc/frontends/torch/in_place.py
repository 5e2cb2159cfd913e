"""From a program that gives new values of what it was given to one that writes them in place."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp, ReturnOp

from irc.dialects.builder import argument_attrs, arguments, entry, results
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.outputs import Output
from irc.training.entry import set_results

CACHE = "cache"
"""The role of an argument that the caller holds between calls and a call writes to, and of a result
that the caller will give back so: on a mesh each rank holds its part of it."""


def in_place(captured: Captured) -> Captured:
    """Return a capture whose program writes to the caller's tensors; its module is changed.

    An argument that the module writes to or that belongs to a cache gets role ``cache``; what is
    returned of it is the argument itself and no result any more. New tensors of a cache that comes
    back are results of role ``cache``.
    """
    func = entry(captured.program.module)
    inputs = captured.input_names
    _name_arguments(func, {*captured.mutated_inputs, *(inputs[i] for i in captured.cached_inputs)})
    position: dict[int, int] = {}
    for output in captured.outputs:
        if output.position is not None and output.input_index is None:
            position.setdefault(output.position, len(position))
    back = {output.position for output in captured.outputs if output.input_index is not None}
    _drop_results(func, back - position.keys(), _in_caches(captured))
    outputs = tuple(_moved(output, position) for output in captured.outputs)
    return replace(captured, outputs=outputs)


def _name_arguments(func: FuncOp, held: set[str]) -> None:
    if func.arg_attrs:
        func.arg_attrs = ArrayAttr(
            argument_attrs(CACHE, name) if role == "input" and name in held else attrs
            for attrs, (role, name, _) in zip(func.arg_attrs, arguments(func), strict=True)
        )


def _drop_results(func: FuncOp, dropped: set[int | None], cached: set[int]) -> None:
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    kept = [
        (value, argument_attrs(CACHE if i in cached else role, name))
        for i, ((role, name), value) in enumerate(zip(results(func), end.operands, strict=True))
        if role != "output" or i not in dropped
    ]
    set_results(func, [value for value, _ in kept], [attrs for _, attrs in kept])


def _in_caches(captured: Captured) -> set[int]:
    """Return the positions of outputs that belong to a cache."""
    leaves = [leaf for p in captured.parts if p.spec is not None for leaf in range(p.start, p.stop)]
    positions = (captured.outputs[leaf].position for leaf in leaves)
    return {position for position in positions if position is not None}


def _moved(output: Output, position: dict[int, int]) -> Output:
    if output.position is None or output.input_index is not None:
        return output
    return replace(output, position=position[output.position])
