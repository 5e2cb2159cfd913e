"""Kernels along one dim: scans, scatters, sorts and the largest few."""
