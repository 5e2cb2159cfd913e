"""The state of a program that is being written: its inputs, statements, and values so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tests.fuzz.bounded import HALVES, Bounded
from tests.fuzz.program import LAYOUTS, Input, Node, Program
from tests.fuzz.reference import BoundMeaning, is_usable
from tests.fuzz.vocabulary import OPS

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 48, 64, 65, 100, 127, 130)
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
MOST_ELEMENTS = 20_000


class Writer:
    """Writes one program, evaluating as it goes.

    Args:
        seed: of everything that is drawn.
        simple: no empty sizes and no large ones (for targets that interpret).
    """

    def __init__(self, seed: int, *, simple: bool = False) -> None:
        self.seed, self.rng, self.simple = seed, random.Random(seed), simple
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.pool: dict[str, Bounded] = {}
        kinds = ("f32", "f32", "f32", "bf16", "f16", "f64")
        self.float = self.rng.choice(kinds)
        self.most = 300.0 if self.float in HALVES else 1e4

    # drawing

    def size(self, *, least: int = 0) -> int:
        """Return a size: 0 seldom, odd ones often."""
        most = 33 if self.simple else 1000
        size = self.rng.choice([n for n in SIZES if least <= n <= most])
        if size == 0 and (self.simple or self.rng.random() < 0.8):
            return self.size(least=least)
        return size

    def shape(self, ndim: int | None = None, *, least: int = 0) -> tuple[int, ...]:
        """Return a shape of at most :data:`MOST_ELEMENTS` elements."""
        count = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if ndim is None else ndim
        limit = 3000 if self.simple else MOST_ELEMENTS
        while True:
            shape = tuple(self.size(least=least) for _ in range(count))
            if prod(shape) <= limit:
                return shape

    def input(self, shape: Sequence[int], dtype: str = "", **attrs: Any) -> str:
        """Add an argument, in some layout; now and then it is the tensor of an earlier one."""
        dtype, shape = dtype or self.float, tuple(shape)
        layout = self.rng.choice(LAYOUTS) if self.rng.random() < 0.35 else "plain"
        layout = "plain" if attrs.get("below", 0) < 0 else layout
        alike = [
            x.name for x in self.inputs
            if (x.shape, x.dtype, x.below) == (shape, dtype, attrs.get("below", 0)) and not x.alike
        ]  # fmt: skip
        name = f"x{len(self.inputs)}"
        if alike and self.rng.random() < 0.3:
            first = next(x for x in self.inputs if x.name == alike[0])
            new_input = Input(name, shape, dtype, first.layout, first.below, first.name)
            self.pool[name] = self.pool[first.name]
        else:
            new_input = Input(name, shape, dtype, layout, **attrs)
            self.pool[name] = Bounded.exact(new_input.draw(self.seed))
        self.inputs.append(new_input)
        return name

    def pick(self, fits: Callable[[Bounded], bool], *, fresh: float = 0.15) -> str | None:
        """Return a value that fits, late ones more often; None: make an input instead."""
        candidates = [name for name, value in self.pool.items() if fits(value)]
        if not candidates or self.rng.random() < fresh:
            return None
        late = candidates[-4:]
        return self.rng.choice(late if self.rng.random() < 0.6 else candidates)

    def floating(self, least: int = 0) -> str:
        """Return a float value of at least so many dims."""
        name = self.pick(lambda v: v.is_float and v.value.ndim >= least)
        return name or self.input(self.shape(max(least, self.rng.randint(least, 3))))

    def integer(self, least: int = 0) -> str:
        """Return an integer value of at least so many dims."""
        name = self.pick(lambda v: v.dtype in INTEGERS and v.value.ndim >= least)
        return name or self.input(
            self.shape(max(least, self.rng.randint(least, 3))), self.rng.choice(INTEGERS)
        )

    def truth(self, shape: Sequence[int]) -> str:
        """Return a bool value of a shape."""
        wanted = tuple(shape)
        name = self.pick(lambda v: v.dtype == "i1" and v.shape == wanted)
        return name or self.input(wanted, "i1")

    def partner(self, name: str) -> str:
        """Return a value of the same dtype that broadcasts with another."""
        shape, dtype = self.pool[name].shape, self.pool[name].dtype
        partner = self.pick(lambda v: v.dtype == dtype and _broadcasts(v.shape, shape), fresh=0.4)
        if partner:
            return partner
        cut = self.rng.randint(0, len(shape)) if self.rng.random() < 0.5 else 0
        return self.input([1 if self.rng.random() < 0.2 else n for n in shape[cut:]], dtype)

    # writing

    def emit(self, op: str, *args: str, **attrs: Any) -> str | None:
        """Append a statement and return its name; None where too little is known of its value."""
        value = OPS[op].meaning(BoundMeaning(), *[self.pool[a] for a in args], **attrs)
        assert isinstance(value, Bounded)
        if prod(value.shape) > 4 * MOST_ELEMENTS or not is_usable(value, most=self.most):
            return None
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(name, op, args, attrs))
        self.pool[name] = value
        return name

    def of(self, name: str) -> Bounded:
        """Return a value so far."""
        return self.pool[name]

    def finish(self) -> Program:
        """Choose the results: what nobody read, and now and then an input or a value twice."""
        read = {a for node in self.nodes for a in node.args}
        ends = [node.name for node in self.nodes if node.name not in read]
        inner = [node.name for node in self.nodes if node.name in read]
        outputs = ends[-4:] or [self.inputs[-1].name]
        if inner and self.rng.random() < 0.3:
            outputs.append(self.rng.choice(inner))
        if self.rng.random() < 0.1:
            outputs.append(self.rng.choice(self.inputs).name)
        if self.rng.random() < 0.1:
            outputs.append(outputs[0])
        return Program(self.seed, tuple(self.inputs), tuple(self.nodes), tuple(outputs))


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))
