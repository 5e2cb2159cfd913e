"""From ONNX files to flow programs: :func:`load_onnx`."""

from irc.frontends.onnx.load import load_onnx

__all__ = ["load_onnx"]
