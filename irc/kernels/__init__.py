"""The lowering of task kernels that several backends share."""
