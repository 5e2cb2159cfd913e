"""The one list of passes: from a captured program to one that a plan is written from.

What a pass runs on, its scope: the whole captured ``model``; each ``stage`` of it; each
``function`` of a stage (forward, backward, update). A program that is not cut has one stage, and
one that is not split has one function: then all three are the same program.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Scope: TypeAlias = Literal["model", "stage", "function"]


class Row(NamedTuple):
    """A pass in the list.

    Attributes:
        name: of the pass.
        scope: what it runs on.
        when: of which programs; empty: of all.
    """

    name: str
    scope: Scope
    when: str = ""


# fmt: off
ORDER: tuple[Row, ...] = (
    # A step of training is made of a program that gives a loss.
    Row("canonicalize",         "model",    "training"),
    Row("pad-parameters",       "model",    "training, a mesh, no stages"),
    Row("stream-cross-entropy", "model",    "training"),
    Row("split-projections",    "model",    "training, a mesh, stages or micro-batches"),
    Row("cut-stages",           "model",    "stages"),
    Row("differentiate",        "stage",    "training"),
    Row("recompute",            "stage",    "training"),
    Row("add-optimizer",        "stage",    "training with an optimizer"),
    # What is computed.
    Row("bind-sizes",           "stage",    "named sizes that are given"),
    Row("canonicalize",         "stage"),
    Row("rewrite",              "stage"),
    Row("recompute",            "stage",    "recomputation that a search chooses"),
    Row("stream-cross-entropy", "stage",    "fixed sizes"),
    # Where: on which ranks, by which collectives.
    Row("auto-shard",           "stage",    "a mesh"),
    Row("verify-pins",          "stage",    "a mesh of one rank, constraints"),
    Row("insert-sum-casts",     "stage",    "a mesh, gradients with a dtype for their sums"),
    Row("plan-rings",           "stage",    "a mesh"),
    Row("lower-boxing",         "stage",    "a mesh"),
    Row("chunk-experts",        "function", "a mesh"),
    Row("lower-externs",        "function"),
    Row("hoist-collectives",    "function", "a mesh"),
    Row("slice-batch",          "function", "a mesh, fixed sizes"),
    Row("chunk-collectives",    "function", "a mesh"),
    Row("bucket-collectives",   "function", "a mesh"),
    # How: by which kernels.
    Row("pack-quantized",       "function"),
    Row("merge-matmuls",        "function"),
    Row("fuse",                 "function"),
    Row("map-tasks",            "function"),
    Row("split-reduction",      "function", "GPUs"),
    Row("tune-tiles",           "function", "a GPU at hand"),
    Row("merge-launches",       "function", "irc's own backends, fixed sizes"),
    # When.
    Row("order",                "function", "a mesh"),
    # In which memory.
    Row("inline-blocks",        "function"),
    Row("update-caches",        "function"),
    Row("insert-copies",        "function"),
    Row("update-in-place",      "function"),
    Row("prepare-weights",      "function"),
    Row("reuse-memory",         "function", "fixed sizes"),
    Row("plan-memory",          "function", "fixed sizes"),
)
# fmt: on

OPTIONAL = (
    "stream-cross-entropy",
    "split-projections",
    "plan-rings",
    "hoist-collectives",
    "chunk-experts",
    "slice-batch",
    "chunk-collectives",
    "bucket-collectives",
    "merge-matmuls",
    "merge-launches",
    "order",
)
"""Passes that make a program faster or smaller and nothing else: ``no-NAME`` leaves one out."""
