"""Plans for every size: one structure, whose numbers are polynomials of the sizes of a call."""
