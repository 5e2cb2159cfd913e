"""Kernels as Triton source, one function each."""
