"""The loop of RNN, GRU and LSTM as a function by itself, for library ops.

The hidden state that a step reads is the row that the step before has written to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from irc.backends.cpu.features import Features, host
from irc.backends.cpu.jit import compile_module
from irc.backends.cpu.recurrent.cell import Cell
from irc.backends.cpu.recurrent.projection import project
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand

PARAMETERS = ("x", "w", "added", "p", "r", "bias", "h", "c", "y")
NUMBERS = ("steps", "batch", "backwards", "inputs", "stride")
NAME = "irc_recurrent"


@cache
def sweep(kind: str, hidden: int, activations: tuple[str, ...]) -> int:
    """Return the address of a compiled loop.

    Its arguments are the addresses of :data:`PARAMETERS` and the :data:`NUMBERS`, as i64. With P
    padded units, all float32, weights as :mod:`irc.ops.recurrent` has them:

    - ``x [steps, batch, inputs]``; ``w``, ``added``: the weights of the inputs, and what is added
      to their products; ``p [steps, batch, gates, P]``: memory for these;
    - ``r``: the recurrent weights; ``bias``: what is added to a GRU's product before the reset
      gate;
    - ``h [batch, P]``: the first state; ``c [batch, P]``: an LSTM's cell, the last one afterwards,
      or ``[2, P]`` for a GRU to work in;
    - ``y [steps, batch, P]``: all states, those of a step ``stride`` elements behind the last's.

    Args:
        kind: of cell.
        hidden: units.
        activations: names of flow: of the gates, of the new value, of the cell.
    """
    return compile_module(written(kind, hidden, activations, host()), NAME)


def written(kind: str, hidden: int, activations: Sequence[str], features: Features) -> str:
    """Return the text of the function."""
    b = Builder(fma=features.fma, half=features.half)
    at = {name: Operand(PTR, f"%{name}") for name in PARAMETERS}
    cell = Cell(b, kind, hidden, activations, features, at)
    steps, batch, back, inputs, stride = (Operand(I64, f"%{name}") for name in NUMBERS)
    project(b, kind, hidden, features, at, b.times(steps, batch), inputs)
    state = cell.elements(batch)
    last = b.add(steps, b.i64(-1))
    is_back = b.compare("icmp ne", back, b.i64(0))

    def step(n: Operand, before: list[Operand]) -> list[Operand]:
        t = b.select(is_back, b.binary("sub nsw", last, n), n)
        y = b.address(at["y"], "float", b.times(t, stride))
        p = b.address(at["p"], "float", b.scale(b.times(t, state), cell.gates))
        cell.advance(p, before[0], y, batch)
        return [y]

    b.loop(b.i64(0), steps, 1, [at["h"]], step)
    b.do("ret void")
    pointers = ", ".join(
        f"ptr %{name}" if name in ("h", "y") else f"ptr noalias %{name}" for name in PARAMETERS
    )
    numbers = ", ".join(f"i64 %{name}" for name in NUMBERS)
    header = f"define void @{NAME}({pointers}, {numbers})"
    return "\n".join([b.function(header), *b.functions.values(), ""])
