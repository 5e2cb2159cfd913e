"""The levels of the IR: one xDSL dialect per file, and the notations of their types."""
