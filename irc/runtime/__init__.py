"""The executor of a plan on torch.distributed."""
