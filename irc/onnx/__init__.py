"""ONNX models run from Python: the backend interface of onnx, and a session as others have it.

Code written for ONNX Runtime changes one import::

    import irc.onnx as ort

    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {session.get_inputs()[0].name: array})
"""

from irc.onnx.backend import Backend, BackendRep
from irc.onnx.options import (
    GraphOptimizationLevel,
    NodeArg,
    SessionOptions,
    get_available_providers,
    get_device,
)
from irc.onnx.session import InferenceSession

__all__ = [
    "Backend",
    "BackendRep",
    "GraphOptimizationLevel",
    "InferenceSession",
    "NodeArg",
    "SessionOptions",
    "get_available_providers",
    "get_device",
]
