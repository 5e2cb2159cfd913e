"""The interface that onnx defines for what runs its models, over a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend as BackendBase
from onnx.backend.base import BackendRep as BackendRepBase
from onnx.backend.base import namedtupledict

from irc.errors import IrcError
from irc.onnx.session import InferenceSession


class BackendRep(BackendRepBase):
    """A model that is ready to run.

    Args:
        session: runs it.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._names = [argument.name for argument in session.get_inputs()]
        outputs = [argument.name for argument in session.get_outputs()]
        self._result = namedtupledict("Outputs", outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run once.

        Args:
            inputs: an array for each input, in order; or by name; or the one there is.
            kwargs: none has a meaning here.

        Returns:
            The outputs, in order and by name.

        Raises:
            IrcError: ``input-mismatch``.
        """
        feed: Any = inputs
        if not isinstance(inputs, dict):
            arrays: list[Any] = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
            if len(arrays) != len(self._names):
                raise IrcError(
                    "input-mismatch",
                    f"the model takes {len(self._names)} inputs, not {len(arrays)}",
                )
            feed = dict(zip(self._names, arrays, strict=True))
        return self._result(*self.session.run(None, feed))


class Backend(BackendBase):
    """Runs ONNX models on the CPU.

    >>> from onnx import parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Abs(x)}'
    >>> import numpy as np
    >>> Backend.run_model(parser.parse_model(text), [np.array([-1, 2], np.float32)])[0]
    array([1., 2.], dtype=float32)
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True for the CPU: what a model holds that irc cannot run, `prepare` says by name."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Compile a model, given decoded, as bytes or as a path.

        Raises:
            IrcError: ``backend-unknown`` for another device; what reading and compiling raise.
        """
        if not cls.supports_device(device):
            raise IrcError("backend-unknown", f"device '{device}' is none of ONNX models in irc")
        return BackendRep(InferenceSession(model))

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node of the newest opset on arrays, in the order of its inputs."""
        import numpy as np

        arrays = [np.asarray(each) for each in inputs]
        names = [name for name in node.input if name]
        typed = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        graph = onnx.helper.make_graph([node], "node", typed, results)
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        if node.domain:
            opsets.append(onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version()))
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        return cls.run_model(infer(model), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU."""
        return device.partition(":")[0] == "CPU"


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the types of its outputs, as onnx infers them."""
    return onnx.shape_inference.infer_shapes(model)
