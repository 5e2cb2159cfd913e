"""From an ONNX file to flow."""
