"""A host program as steps: what the host does between the regions, without names of values.

Values are numbered within a function. A step runs an op of ONNX on arrays, calls a region or
another function, or makes a constant whose sizes the call decides. Bodies of If, Loop and Scan are
functions, named in the arguments of the op that calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from irc.plan.open_sizes import HostSize, Polynomial, QuotientSize, SizeCondition

ENTRY = "forward"


@dataclass(frozen=True)
class Stated:
    """What the program says of a tensor; of other values it says nothing."""

    dtype: str
    shape: tuple[Polynomial, ...]


@dataclass(frozen=True)
class Fill:
    """Make a tensor whose elements are all one number.

    ``data`` is that element, base64.
    """

    kind: Literal["fill"]
    output: int
    stated: Stated
    data: str


@dataclass(frozen=True)
class Node:
    """Run an op of ONNX; its target and arguments are those of ``flow.extern``."""

    kind: Literal["node"]
    target: str
    arguments: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stated: tuple[Stated | None, ...]
    loc: str = ""


@dataclass(frozen=True)
class Call:
    """Call a region, or a function of the host; stored arrays are not among the inputs."""

    kind: Literal["call"]
    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stated: tuple[Stated | None, ...]


@dataclass(frozen=True)
class Library:
    """Run an op of flow that depends on sizes of the call; torch has the one form of it."""

    kind: Literal["library"]
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stated: tuple[Stated | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    loc: str = ""


Step: TypeAlias = Fill | Node | Call | Library


@dataclass(frozen=True)
class Function:
    """A function of the host.

    Attributes:
        inputs: what callers give; value 0 is the first.
        stored: a value, and the number of the stored array that it is.
        steps: in order.
        outputs: values that the function gives.
        values: how many there are.
    """

    inputs: tuple[Stated | None, ...]
    stored: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    values: int


@dataclass(frozen=True)
class HostCode:
    """A host program.

    Attributes:
        inputs: names, in order.
        outputs: names, in order.
        functions: by name; a call begins with :data:`ENTRY`.
        regions: names of what is compiled.
        symbols: sizes of inputs that are open.
        quotients: sizes that follow from others.
        conditions: what the sizes of inputs have to meet.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: Mapping[str, Function]
    regions: tuple[str, ...]
    symbols: tuple[HostSize, ...] = ()
    quotients: tuple[QuotientSize, ...] = ()
    conditions: tuple[SizeCondition, ...] = ()
