"""Weights that stay from call to call, and the panels in which kernels read them."""
