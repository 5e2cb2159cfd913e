"""Pass ``bind-sizes``: named sizes become numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.dialects.bound_sizes import bind_module, size_names
from irc.errors import IrcError, did_you_mean


@dataclass(frozen=True)
class BindSizesPass(ModulePass):
    """Replace the names in all sizes by numbers, so that sharding and kernels can be planned.

    Run: bind-sizes{sizes="B=4,S=16"}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[B, 4*S], f32>) -> !flow.tensor<[B, 4*S], f32> {
      %0 = flow.pointwise(%x) {fn = "exp", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[B, 4*S], f32>) -> !flow.tensor<[B, 4*S], f32>
      func.return %0 : !flow.tensor<[B, 4*S], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 64], f32>) -> !flow.tensor<[4, 64], f32> {
      %0 = flow.pointwise(%x) {fn = "exp", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[4, 64], f32>) -> !flow.tensor<[4, 64], f32>
      func.return %0 : !flow.tensor<[4, 64], f32>
    }
    ```

    A name that the program has and ``sizes`` lacks is an error, and so is one the program lacks.
    """

    name = "bind-sizes"
    level: ClassVar[str] = "flow"

    sizes: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values = parse_sizes(self.sizes)
        wanted = size_names(op)
        _check(values, wanted)
        bind_module(op, values)


def parse_sizes(text: str) -> dict[str, int]:
    """Parse ``B=4,S=16``.

    Raises:
        IrcError: ``option-value``, with the part that is wrong.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, number = (p.strip() for p in part.partition("="))
        if not (equals and name.isidentifier() and number.isascii() and number.isdigit()):
            raise IrcError(
                "option-value",
                f"cannot read the size '{part}'",
                because="a size is name=number",
                help='write: bind-sizes{sizes="B=4,S=16"}',
            )
        if sizes.setdefault(name, int(number)) != int(number):
            raise IrcError("option-value", f"size '{name}' is given as {sizes[name]} and {number}")
    return sizes


def _check(values: Mapping[str, int], wanted: frozenset[str]) -> None:
    if missing := sorted(wanted - set(values)):
        raise IrcError(
            "size-unbound",
            f"no number for size {', '.join(map(repr, missing))}",
            because="every size must be a number before the program is sharded",
            help=f"add {','.join(f'{name}=8' for name in missing)} (with your numbers) to sizes",
        )
    if unknown := sorted(set(values) - wanted):
        help_line = did_you_mean(unknown[0], wanted) if wanted else "all its sizes are numbers"
        raise IrcError(
            "option-value",
            f"the program has no size {', '.join(map(repr, unknown))}",
            help=help_line,
        )
