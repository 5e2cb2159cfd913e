"""One of each thing that a package can add to irc; ``pyproject.toml`` registers them.

============  ==========================  =======================================================
module        a user writes               it is
============  ==========================  =======================================================
gelu          --pass approximate-gelu     a pass: exact GELU becomes the tanh form
ops           irc_example.gated(x, y)     an op with its rule, work, CPU reference and derivative
rules         (nothing)                   the sharding rule of an op that another library brings
listing       --backend listing           a backend that writes kernels as text
schedule      --schedule gpipe-last-first a pipeline schedule
policy        --recompute keep-products   a policy of what backward computes again
============  ==========================  =======================================================

Nothing of it is imported before a user writes one of these names.
"""
