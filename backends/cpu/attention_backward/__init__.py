"""Gradients of attention on the CPU."""
