"""What an op means: its rule, its strategies, its derivative and the name of its reference."""
