"""Convolutions: windows as rows of a product behind a table of pointers."""
