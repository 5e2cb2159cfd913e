"""Plans that models are trained under, each as a loop says it and as ``compile_step`` does."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.benchmarks.training_models import MODELS, Model

WAYS = ("loop", "step")
DTYPES = ("float32", "float64", "bfloat16")
ROUNDED = ("data", "tensor", "zero3", "pipe")
"""Plans that are trained in bfloat16, on two processes: it takes ten times as many steps."""


def _divided(model: Model) -> str:
    """Samples in parts, the rest whole; of two pins the later holds."""
    return "; ".join(["* = [data = B]", *(f"{name} = [data = S(0)]" for name in model.inputs)])


def _matrices(model: Model) -> str:
    globs = [(glob, 0) for glob in (*model.columns, *model.tables)]
    globs += [(glob, 1) for glob in model.rows]
    return "; ".join(f'"{glob}" = [tensor = S({dim})]' for glob, dim in globs)


def _experts(model: Model) -> str:
    return "; ".join(f'"{glob}" = [expert = S(0)]' for glob in model.experts)


@dataclass(frozen=True)
class Plan:
    """How a model is trained.

    Attributes:
        axes: of the mesh, by the number of processes.
        layout: that the loop asks for.
        pins: that the step has, and the loop where it has no layout; of a model.
        loop_pins: the loop has them, too.
        between: how what layers hand on lies.
        states_split: the loop's optimizer is torch's ``ZeroRedundancyOptimizer``.
        regather: the step gathers parameters again for backward.
        micro_batches: of the step.
        suits: the models that it says something of.
        refused: the errors with which a way is to refuse it.
    """

    axes: dict[int, str]
    layout: str = ""
    pins: Callable[[Model], str] = lambda _: ""
    loop_pins: bool = False
    between: str = ""
    states_split: bool = False
    regather: bool = False
    micro_batches: int = 1
    suits: Callable[[Model], bool] = lambda _: True
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    def options(self, model: Model, way: str, ranks: int) -> dict[str, Any]:
        """Return what ``irc.compile`` or ``irc.compile_step`` is given of it."""
        options: dict[str, Any] = {"mesh": self.axes[ranks], "cluster": "demo-gpus"}
        if way == "loop":
            options["layout"] = self.layout
        if way == "step" or self.loop_pins:
            options["pins"] = self.pins(model)
        if way == "step":
            options["regather"] = self.regather
            if self.micro_batches > 1:
                options["micro_batches"] = self.micro_batches
        return options


def _over(axis: str) -> dict[int, str]:
    return {ranks: f"{axis}={ranks}" for ranks in (2, 4)}


LOOP = {"loop": "op-unsupported"}
"""A backward pass that autograd asks for cannot begin before all micro-batches went forward, and
stages have no loss of their own: pipelines are for the step."""

PLANS: dict[str, Plan] = {
    "data": Plan(_over("data"), "ddp", _divided),
    "tensor": Plan(_over("tensor"), "tp", _matrices),
    "sequence": Plan(
        _over("tensor"), "tp+sp", _matrices, between="[tensor = S(1)]",
        suits=lambda m: m.has_sequence and m.is_chain,
    ),
    "zero1": Plan(
        _over("data"), "ddp", lambda m: f"{_divided(m)}; optimizer.* = [data = S(0)]",
        states_split=True,
    ),
    "zero2": Plan(
        _over("data"), "", lambda _: "* = [data = S(0)]", loop_pins=True,
    ),
    "zero3": Plan(_over("data"), "fsdp", lambda _: "* = [data = S(0)]", regather=True),
    "mixed": Plan({4: "data=2,tensor=2"}, "fsdp+tp", _matrices),
    "expert": Plan(
        _over("expert"), "", _experts, loop_pins=True, suits=lambda m: bool(m.experts)
    ),
    "search": Plan({2: "data=2", 4: "data=2,tensor=2"}),
    "pipe": Plan(_over("pipe"), micro_batches=4, suits=lambda m: m.is_chain, refused=LOOP),
    "pipe+data": Plan(
        {4: "pipe=2,data=2"}, micro_batches=4, suits=lambda m: m.is_chain, refused=LOOP
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A cell of the table."""

    model: str
    plan: str
    way: str
    ranks: int
    dtype: str

    @property
    def facts(self) -> dict[str, Any]:
        """Its name in the results."""
        return {
            "model": self.model, "plan": self.plan, "way": self.way, "ranks": self.ranks,
            "dtype": self.dtype,
        }  # fmt: skip


def cases(
    ranks: Sequence[int],
    models: Sequence[str],
    plans: Sequence[str],
    ways: Sequence[str],
    dtypes: Sequence[str],
) -> Iterator[Case]:
    """Yield the cells of the table that mean something, those of as many processes together."""
    for count in ranks:
        for name in models:
            model = MODELS[name]
            for plan_name in plans:
                plan = PLANS[plan_name]
                if count not in plan.axes or not plan.suits(model):
                    continue
                for way, dtype in product(ways, dtypes):
                    skipped = dtype == "float64" and not model.is_double
                    skipped |= dtype == "bfloat16" and (plan_name not in ROUNDED or count > 2)
                    if not skipped:
                        yield Case(name, plan_name, way, count, dtype)
