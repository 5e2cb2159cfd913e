"""Schedules of kernels on a GPU: the space, its limits, and kernels in two parts."""
