"""A native program with open sizes: bound to those of a call when they first come."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from irc.dialects.size import Size
from irc.errors import InternalError, IrcError
from irc.plan.native import Code, Port
from irc.plan.open_sizes import Symbol, example_or
from irc.runtime.driver import BySizes
from irc.runtime.native.arguments import as_array, in_order
from irc.runtime.native.driver import Bound, NativeDriver
from irc.runtime.native.dtypes import dtype_of
from irc.runtime.native.folder import Native
from irc.runtime.native.memory import Array
from irc.runtime.native.sized import SizedProgram


@dataclass(frozen=True)
class OpenArgument:
    """An input or output whose sizes are open.

    Attributes:
        name: the user's.
        dtype: numpy's.
        shape: a number, or for an open size its formula in the model's names.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]

    def array(self, value: Any) -> Array:
        """Return an input as numpy has it, whatever its shape.

        Raises:
            IrcError: ``input-mismatch``.
        """
        try:
            return as_array(value)
        except TypeError as error:
            raise IrcError(
                "input-mismatch",
                f"input '{self.name}' is {error}; it takes {list(self.shape)} {self.dtype}",
                help="give a numpy array",
            ) from None


class OpenProgram:
    """A loaded program for all sizes that its plan was checked for.

    Args:
        native_folder: the verified folder.
        code: which of its codes.
        threads: that a call uses.
        mapped: leave weights in the file.

    Attributes:
        inputs: what :meth:`run` takes, in order.
        outputs: what it gives.
        sizes: which are open, and from which to which number the plan was checked.
        code: the name of the code that runs.
        threads: that a call uses.
        hash: names program and weights.
    """

    def __init__(self, native_folder: Native, code: Code, threads: int, *, mapped: bool) -> None:
        if native_folder.sizes is None:
            raise InternalError("the sizes of the program are fixed")
        self.hash, self.code, self.threads = native_folder.hash, code.name, threads
        # First what says that the code is this program's: its numbers are worked with after that.
        self._driver = NativeDriver(native_folder, code, threads, mapped=mapped)
        self._sized = SizedProgram(native_folder.program, native_folder.sizes, code)
        self._names = self._sized.names
        self.sizes: tuple[Symbol, ...] = native_folder.sizes.given.symbols
        form = self._sized.form
        self.inputs = tuple(map(self._argument, form.inputs))
        self.outputs = tuple(map(self._argument, form.outputs))
        self._bound = BySizes(self._bind)

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Array]:
        """Run once; any thread may call it at any time.

        Args:
            inputs: by name, or in order: numpy arrays, or what numpy reads through DLPack.

        Returns:
            The outputs, in order, each in memory of its own.

        Raises:
            IrcError: ``input-mismatch``; ``size-outside``; ``index-out-of-range`` where an input is
                an index.
        """
        arrays = [
            value if type(value) is np.ndarray else wanted.array(value)
            for wanted, value in zip(self.inputs, in_order(inputs, self._names), strict=True)
        ]
        return self._bound.at(tuple([array.shape for array in arrays]))(*arrays)

    def __call__(self, *inputs: Any) -> list[Array]:
        """Run once on the inputs in order; see :meth:`run`."""
        return self.run(inputs)

    def ports(self, sizes: Mapping[str, int]) -> tuple[Port, ...]:
        """Return the inputs at some sizes.

        Args:
            sizes: numbers by the model's names; others are those of the example.

        Raises:
            IrcError: ``size-unknown``, ``size-outside``.
        """
        full = self._sized.given.extended(example_or(self.sizes, sizes))
        self._sized.given.check(full, self._names)
        return self._sized.at(full).inputs

    def _bind(self, shapes: tuple[tuple[int, ...], ...]) -> Bound:
        sized = self._sized
        return self._driver.bind(sized.at(sized.given.values(shapes, self._names)))

    def _argument(self, port: Port) -> OpenArgument:
        names = {each.symbol: each.name for each in self.sizes}
        shape = (
            re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), str(dim))
            if isinstance(dim, Size)
            else dim
            for dim in port.view.shape
        )
        return OpenArgument(port.name, dtype_of(port.view.dtype), tuple(shape))
