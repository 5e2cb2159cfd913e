"""Operators of ``com.microsoft``, as ONNX Runtime's optimiser writes them, in terms of ONNX's own.

Each row says which ops of one fixed opset a fused op stands for (:mod:`compose`), so the graph that
comes out is the one that was fused: it shards, fuses and runs like any other.
"""
