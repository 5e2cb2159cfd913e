"""The levels of the IR: one xDSL dialect per file, and the notations that their types are written in."""
