"""Matmuls on integer weights: dequantised in registers, or products of bytes."""
