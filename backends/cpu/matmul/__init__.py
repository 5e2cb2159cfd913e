"""Matmuls: register tiles, packed weights, few rows, and what follows a product."""
