"""Kernels as LLVM IR, compiled in process by llvmlite."""
