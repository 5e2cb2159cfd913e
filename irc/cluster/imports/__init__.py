"""Clusters from what machines say of themselves: nvidia-smi, NCCL's topology, Slurm's switches."""
