"""What is known of entries beforehand."""

from __future__ import annotations

from collections.abc import Mapping

NOT_ON_CPU = frozenset(
    {
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
    }
)
"""Entries that say they take float32 on the CPU, and refuse it when they are called."""

UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)
"""Their results hold whatever was in memory: shape and dtype are compared."""

TIES: Mapping[str, int] = {"topk": 1}
"""Their second result says where an element of the first was taken from, any of those that are
equal; by position of the dim behind the input, the last where it is not given."""

UNTOLD = frozenset({"unsafe_chunk", "unsafe_split"})
"""Their results are parts of one memory, of which torch's schema says nothing: here each has its
own."""

TRACED_OTHERWISE = frozenset({"tensordot"})
"""In half types torch traces a gradient with other strides than the gradient then has: a product
with an operand that repeats one element, of which the trace loses that it does."""

VALUES = "a size of its result depends on the values of a tensor"
NUMBER = "it takes a number out of a tensor"
SPARSE = "Dynamo takes no sparse tensor"
WARNS = "it warns, which Dynamo does not trace"
RECURS = "Dynamo takes recurrent layers where torch._dynamo.config.allow_rnn is set"
RESIZES = "Dynamo does not trace resize_"

LEFT: Mapping[str, str] = {
    "__getitem__": VALUES,
    "allclose": NUMBER,
    "argwhere": VALUES,
    "bincount": VALUES,
    "combinations": VALUES,
    "corrcoef": NUMBER,
    "cov": NUMBER,
    "equal": NUMBER,
    "item": NUMBER,
    "linalg.lstsq": VALUES,
    "linalg.lstsq.grad_oriented": VALUES,
    "masked_select": VALUES,
    "nn.BatchNorm1d": NUMBER,
    "nn.BatchNorm2d": NUMBER,
    "nn.BatchNorm3d": NUMBER,
    "nn.CTCLoss": VALUES,
    "nn.GRU": RECURS,
    "nn.GaussianNLLLoss": NUMBER,
    "nn.LinearCrossEntropyLoss": WARNS,
    "nn.LSTM": RECURS,
    "nn.RNN": RECURS,
    "nn.Transformer": NUMBER,
    "nn.TransformerEncoder": NUMBER,
    "nn.functional.ctc_loss": VALUES,
    "nn.functional.gaussian_nll_loss": NUMBER,
    "nn.functional.linear_cross_entropy": WARNS,
    "nn.functional.linear_cross_entropy.chunked": WARNS,
    "nn.functional.linear_cross_entropy.chunked_none": WARNS,
    "nonzero": VALUES,
    "repeat_interleave": VALUES,
    "resize_": RESIZES,
    "resize_as_": RESIZES,
    "sparse.mm.reduce": SPARSE,
    "sparse.sampled_addmm": SPARSE,
    "tensor_split": NUMBER,
    "to_sparse": SPARSE,
    "unique": VALUES,
    "unique_consecutive": VALUES,
}
"""Entries and modules that torch's capture leaves to Python, in part or in whole; and why.

It does so with any backend: the same run with ``backend="eager"`` decides. A run fails where
capture leaves one that is not here.
"""
