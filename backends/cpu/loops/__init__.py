"""Loop nests: what a kernel computes, and the templates for pointwise chains and reductions."""
