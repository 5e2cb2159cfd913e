"""Predicted seconds and bytes of kernels and collectives."""
