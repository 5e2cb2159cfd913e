"""Kernels as CUDA C++ source, one file each."""
