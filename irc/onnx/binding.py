"""Inputs and outputs that are bound before a call, by ONNX Runtime's names, in main memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import IrcError

if TYPE_CHECKING:
    from irc.onnx.described import Described


class OrtValue:
    """An array, as calls with bound values take and give it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return the array itself, without a copy.

        Raises:
            IrcError: ``backend-unknown`` for another device.
        """
        _check_device(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """Return memory for results.

        Raises:
            IrcError: ``backend-unknown`` for another device.
        """
        _check_device(device_type)
        return OrtValue(np.empty(tuple(shape), element_type))

    def numpy(self) -> Any:
        """Return the array."""
        return self._value

    def shape(self) -> list[int]:
        """Return its sizes."""
        return list(self._value.shape)

    def element_type(self) -> int:
        """Return its type as onnx numbers them."""
        import onnx

        return int(onnx.helper.np_dtype_to_tensor_dtype(self._value.dtype))

    def data_type(self) -> str:
        """Return its type as text, ``tensor(float)``."""
        import onnx

        from irc.onnx.boundary import type_text

        kind = onnx.helper.make_tensor_type_proto(self.element_type(), None)
        return type_text(kind)

    def device_name(self) -> str:
        """Return where it lies."""
        return "cpu"

    def has_value(self) -> bool:
        """True unless it is an optional that is empty."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """True for an array."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """True for a list of arrays."""
        return isinstance(self._value, list)

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Write other numbers into the array."""
        self._value[...] = np_arr


class IOBinding:
    """The inputs of a call, and the outputs that are wanted of it."""

    def __init__(self, session: Described) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Give an input."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Give an input."""
        self._inputs[name] = ortvalue.numpy()

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Want an output, in memory that the call makes.

        Raises:
            IrcError: ``backend-unknown`` for another device, ``option-value`` for an address.
        """
        _check_device(device_type)
        if buffer_ptr is not None:
            raise IrcError(
                "option-value",
                f"output '{name}' is bound to an address",
                help="bind it by bind_ortvalue_output",
            )
        self._outputs[name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Want an output, written into an array."""
        self._outputs[name] = ortvalue

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget which outputs are wanted."""
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Return at once: everything lies in main memory."""

    def synchronize_outputs(self) -> None:
        """Return at once: a call has ended when it returns."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last call, in the order in which they were bound."""
        return self._results

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the arrays of the last call's outputs."""
        return [each.numpy() for each in self._results]

    def run(self) -> None:
        """Run the session once."""
        names = list(self._outputs)
        results = self._session.run(names, self._inputs)
        self._results = []
        for value, into in zip(results, self._outputs.values(), strict=True):
            if into is not None:
                into.update_inplace(value)
            self._results.append(into or OrtValue(value))


def _check_device(name: str) -> None:
    if name.lower() != "cpu":
        raise IrcError("backend-unknown", f"irc's sessions have no device '{name}'", help="use cpu")
