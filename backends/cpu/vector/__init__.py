"""Vector code: the text of LLVM functions, dtypes in memory, and pointwise functions."""
