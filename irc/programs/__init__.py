"""Plans of several programs: a model cut into stages, each with functions that a schedule runs."""
