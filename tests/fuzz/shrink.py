"""Making a failing program small: fewer results, statements, inputs, sizes, stranger layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.bounded import NAMES, Bounded
from tests.fuzz.program import Input, Node, Program, pruned
from tests.fuzz.reference import BoundMeaning, is_usable

Fails = Callable[[Program], bool]
MOST_TRIES = 400


def shrunk(program: Program, fails: Fails) -> Program:
    """Return a smaller program that still fails (delta debugging, greedily, to a fixed point).

    Args:
        program: one that fails.
        fails: says whether another program fails in the same way; must not raise.
    """
    tries = 0
    again = True
    while again and tries < MOST_TRIES:
        again = False
        for candidate in _smaller(program):
            tries += 1
            if tries > MOST_TRIES:
                break
            if _is_sound(candidate) and fails(candidate):
                program, again = candidate, True
                break
    return program


def _is_sound(program: Program) -> bool:
    """True where the program still means something, and something is known of its results."""
    try:
        inputs = program.draw()
        bounded = {x.name: Bounded.exact(t) for x, t in zip(program.inputs, inputs, strict=True)}
        values = program.walk(BoundMeaning(), bounded)
        eager = program.function()(*inputs)
    except (RuntimeError, IndexError, ValueError, AssertionError, KeyError):
        return False
    wanted = [values[name] for name in program.outputs]
    if any(NAMES[x.dtype] != y.dtype for x, y in zip(eager, wanted, strict=True)):
        return False
    return all(is_usable(values[name], most=1e6) for name in program.outputs)


def _smaller(program: Program) -> Iterator[Program]:
    """Yield simpler programs, those that take most away first."""
    if len(program.outputs) > 1:
        for name in dict.fromkeys(program.outputs):
            yield pruned(replace(program, outputs=(name,)))
    for node in reversed(program.nodes):
        for operand in node.args:
            yield pruned(_without(program, node, operand))
    for node in program.nodes:
        if node.name not in program.outputs:
            yield pruned(_as_input(program, node))
    for x in program.inputs:
        if x.layout != "plain" or x.alike:
            yield _changed(program, x, replace(x, layout="plain", alike=""))
    for size in sorted({n for x in program.inputs for n in x.shape if n > 1}, reverse=True):
        for less in (1, 2, size // 2, size - 1):
            if 0 < less < size:
                yield _resized(program, size, less)
    for to in ("f32",):
        if any(x.dtype in ("f16", "bf16", "f64") for x in program.inputs):
            yield _retyped(program, to)


def _without(program: Program, node: Node, operand: str) -> Program:
    """Drop a statement: who read it reads one of its operands."""

    def renamed(name: str) -> str:
        return operand if name == node.name else name

    nodes = tuple(
        replace(n, args=tuple(map(renamed, n.args))) for n in program.nodes if n is not node
    )
    return replace(program, nodes=nodes, outputs=tuple(map(renamed, program.outputs)))


def _as_input(program: Program, node: Node) -> Program:
    """Give a value from outside instead of computing it."""
    values = program.walk(
        BoundMeaning(),
        {x.name: Bounded.exact(t) for x, t in zip(program.inputs, program.draw(), strict=True)},
    )
    value = values[node.name]
    name = f"x{max(int(x.name[1:]) for x in program.inputs) + 1}"
    new_input = Input(name, value.shape, value.dtype)
    nodes = tuple(
        replace(n, args=tuple(name if a == node.name else a for a in n.args))
        for n in program.nodes
        if n is not node
    )
    return replace(program, inputs=(*program.inputs, new_input), nodes=nodes)


def _changed(program: Program, old: Input, new: Input) -> Program:
    return replace(program, inputs=tuple(new if x is old else x for x in program.inputs))


def _resized(program: Program, size: int, less: int) -> Program:
    """Change a size wherever it occurs, in shapes and in attributes."""

    def number(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(number(v) for v in value)
        return less if type(value) is int and value == size else value

    inputs = tuple(
        replace(
            x,
            shape=tuple(less if n == size else n for n in x.shape),
            below=less if x.below == size else x.below,
        )
        for x in program.inputs
    )
    nodes = tuple(
        replace(n, attrs={k: number(v) if k != "dim" else v for k, v in n.attrs.items()})
        for n in program.nodes
    )
    return replace(program, inputs=inputs, nodes=nodes)


def _retyped(program: Program, to: str) -> Program:
    halves = ("f16", "bf16", "f64")
    return replace(
        program,
        inputs=tuple(replace(x, dtype=to) if x.dtype in halves else x for x in program.inputs),
    )
