"""What a native program is given and gives back: the checks of inputs, the memory of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from irc.errors import IrcError, did_you_mean
from irc.plan.native import Port, View
from irc.runtime.native.dtypes import dtype_of
from irc.runtime.native.memory import Array, row_major


@dataclass(frozen=True)
class Argument:
    """An input or output.

    Attributes:
        name: the user's.
        dtype: numpy's.
        shape: the sizes.
        written: whether a call writes to it, where it is an input.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    written: bool = False

    @classmethod
    def of(cls, port: Port) -> Argument:
        """Return what numpy knows of a port."""
        return cls(port.name, dtype_of(port.view.dtype), port.view.shape, port.written)

    def array(self, value: Any) -> Array:
        """Return an input as kernels read it: contiguous, copied only where it is not.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if type(value) is not np.ndarray:
            try:
                value = as_array(value)
            except TypeError as error:
                raise self._mismatch(str(error)) from None
        if value.dtype != self.dtype or value.shape != self.shape:
            raise self._mismatch(f"{list(value.shape)} {value.dtype}")
        # Equal dtypes are of this machine's byte order: it is part of a dtype.
        if not value.flags.c_contiguous:
            if self.written:
                raise self._mismatch("an array with gaps, and it is written in place")
            return np.ascontiguousarray(value)
        if self.written and not value.flags.writeable:
            raise self._mismatch("an array that cannot be written to")
        return value

    def _mismatch(self, actual: str) -> IrcError:
        return IrcError(
            "input-mismatch",
            f"input '{self.name}' is {actual}; the program takes {list(self.shape)} {self.dtype}",
            help="give a numpy array of this shape and dtype, or compile for another",
        )


def as_array(value: Any) -> Array:
    """Return what numpy reads as an array: its own, or through DLPack.

    Raises:
        TypeError: saying what it is instead.
    """
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise TypeError(f"not what numpy reads: {error}") from None
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(cast("Any", value))
    raise TypeError(f"of {type(value).__name__}")


def in_order(inputs: Mapping[str, Any] | Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    """Return the inputs in order.

    Args:
        inputs: by name, or in order already.
        names: of those that there are to be.

    Raises:
        IrcError: ``input-mismatch``: one is missing, or there is one too many.
    """
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(names):
            raise IrcError(
                "input-mismatch", f"the program takes {len(names)} inputs, not {len(inputs)}"
            )
        return inputs
    if len(inputs) != len(names) or any(name not in inputs for name in names):
        for name in (*inputs, *names):
            if name not in names or name not in inputs:
                what = "missing" if name in names else "not an input of the program"
                raise IrcError(
                    "input-mismatch", f"input '{name}' is {what}", help=did_you_mean(name, names)
                )
    return [inputs[name] for name in names]


def shown(fresh: Array, view: View) -> Array:
    """Return the part of an allocated result that an output is."""
    strides = row_major(view.shape) if view.strides is None else view.strides
    item = fresh.dtype.itemsize
    if 0 in view.shape:
        return np.empty(view.shape, dtype_of(view.dtype))
    flat = fresh.reshape(-1).view(np.uint8)[view.offset :]
    return np.ndarray(
        view.shape, dtype_of(view.dtype), flat.data, 0, tuple(s * item for s in strides)
    )
