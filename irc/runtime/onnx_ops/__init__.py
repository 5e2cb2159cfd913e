"""ONNX ops computed one at a time, in numpy and torch: what has no flow form runs here.

One file for each of ONNX's own categories; each has a table from op type to kernel, and
:mod:`irc.runtime.onnx_ops.run` joins the tables. Nothing here needs onnx, xdsl or lark.
"""
