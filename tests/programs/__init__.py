"""Plans of several programs: stages, functions, registers, and their numbers against eager's."""
