"""Files that start a plan: torchrun, Slurm and other launchers."""
