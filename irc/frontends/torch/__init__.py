"""From a PyTorch module to flow."""
