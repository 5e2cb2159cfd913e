"""RNN, GRU and LSTM as native loops read them: kinds, gates, and how weights are laid out.

A loop computes :data:`UNIT` hidden units at once, whatever the machine: a vector of AVX-512, two of
AVX2. So weights that are packed once serve every kind of processor. Hidden units are padded to
whole units, with weights of zero. With P padded units and H hidden ones, all float32:

- the inputs' weights, ``[gates * P / columns, inputs, columns]``;
- what is added to their products, ``[gates * P]``;
- the recurrent weights, ``[P / UNIT, gates, rows, UNIT]``, rows padded to whole chains of sums:
  what is read for a gate of some units is one run of memory;
- what is added to a GRU's product before the reset gate, ``[P]``.

An LSTM of 8 bits (ONNX Runtime's ``DynamicQuantizeLSTM``) has bytes in place of the first and the
third, each multiplied with four units of an input at once (:data:`QUAD`). Weights of u8 are stored
less 128, and so are their zero points. With D an input's or a state's units padded to
:func:`depth`:

- the inputs' weights, i8 ``[gates * P / UNIT, D / QUAD, UNIT, QUAD]``;
- the recurrent weights, i8 ``[P / UNIT, gates, D / QUAD, UNIT, QUAD]``;
- of each of both, ``[gates * P]``: the scale of a column (f32), its sum less D zero points, and its
  zero point (i32). So ``(x - x_zero) (w - zero)`` summed is
  ``sum(x w) - x_zero * sums - zero * sum(x)``.

The inputs of all steps are rounded to bytes by one range, as ONNX Runtime does it. A state is
rounded by its own, and so is each row of a batch: what a row gives does not depend on others.

Gates lie as ONNX has them: z, r, n of a GRU, i, o, f, g of an LSTM. A GRU's reset gate is applied
after its product, or (``GRU before``) before it: then the new value is a second product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GATES: Mapping[str, int] = {"RNN": 1, "GRU": 3, "GRU before": 3, "LSTM": 4}
"""Parts of a row of the weights, for each kind of loop."""
FUNCTIONS: Mapping[str, int] = {"RNN": 1, "GRU": 2, "GRU before": 2, "LSTM": 3}
"""Activations of a direction: of the gates, of the new value, of the cell."""
CHAINS: Mapping[str, int] = {"RNN": 8, "GRU": 2, "GRU before": 4, "LSTM": 2}
"""Rows of the matrix that are added up apart, so that no sum waits for the one before."""
SIMPLE: Mapping[str, str] = {"Tanh": "tanh", "Sigmoid": "sigmoid", "Relu": "relu"}
"""Activations without parameters, and flow's name for each."""
UNIT = 16
"""Hidden units that are computed at once."""
MOST_ROWS = 32
"""Of a batch: a library reads a matrix once for all rows of a larger one."""
ROWS = 4
"""Rows of a batch that a loop does together."""
QUAD = 4
"""Bytes that one lane of a dot-product instruction multiplies."""
BYTE_CHAINS = 2
"""Quads that are summed apart, so that no sum waits for the one before."""
MOST_BYTES = (1 << 31) // (255 * 255)
"""So many products of two numbers of 8 bits, less their zero points, sum to less than i32 holds."""


def padded(hidden: int) -> int:
    """Return what hidden units are padded to.

    >>> padded(1), padded(16), padded(33)
    (16, 16, 48)
    """
    return -(-hidden // UNIT) * UNIT


def rows(kind: str, hidden: int) -> int:
    """Return how many rows the recurrent weights are padded to; not more than :func:`padded`."""
    return -(-hidden // CHAINS[kind]) * CHAINS[kind]


def depth(units: int) -> int:
    """Return what the units of an input or a state in bytes are padded to.

    >>> depth(1), depth(8), depth(33)
    (8, 8, 40)
    """
    whole = QUAD * BYTE_CHAINS
    return -(-units // whole) * whole


def columns(kind: str, hidden: int) -> int:
    """Return how many gates' units lie beside each other in the weights of the inputs."""
    return UNIT * (2 if GATES[kind] * padded(hidden) // UNIT % 2 == 0 else 1)


def loop_of(kind: str, *, resets_after: bool) -> str:
    """Return the kind of loop of an op of ONNX, which says when a GRU's reset gate is applied."""
    return "GRU before" if kind == "GRU" and not resets_after else kind


def simple(activations: Sequence[str]) -> bool:
    """True where loops know all activations, by ONNX's names."""
    return all(name in SIMPLE for name in activations)
