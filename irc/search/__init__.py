"""The search for a plan: the graph of choices, the integer program, its bounds, the meshes."""
