"""Training graphs: the backward sweep, blocks cut into forward and backward, optimiser formulas."""
