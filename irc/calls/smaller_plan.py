"""A plan of the same model with fewer layers, planned as the whole one was.

The mesh, the schedule, the recipe and the cluster are the plan's; every weight that stays lies as
it did, and stages begin at the same layers. What the plan's folder does not say (a layout, passes
and rules of one's own) is left to the search again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from irc.calls.feeding import axes_called_so
from irc.calls.step_plan import training_plan
from irc.cluster.load import THIS_HOST, of_all_kinds
from irc.dialects.builder import arguments, entry
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan, with_files
from irc.plan.schema import Plan
from irc.plan.training import (
    FORWARD,
    STAGED,
    forward_text,
    recipe_of_plan,
    trained_by,
    training_files,
)
from irc.program import Program
from irc.programs.fewer_layers import Left, leave_layers
from irc.programs.held_pins import names_by_stage, stage_pins, weight_pins
from irc.programs.in_order import budgets_of, within
from irc.programs.make import make_parts_plan
from irc.runtime.code import load_program


def smaller_plan(
    loaded: LoadedPlan | PartsPlan, layers: int
) -> tuple[LoadedPlan | PartsPlan, Left]:
    """Plan a model with fewer layers as a plan has it.

    Args:
        loaded: the plan, with the program that it was made from.
        layers: equal layers that are left, of each block; of a plan of stages, in each stage.

    Returns:
        The plan, and what is left. Weights are those of the other's folder.

    Raises:
        IrcError: ``rehearsal-layers`` where no layers can be left out; ``plan-corrupt``;
            ``rehearsal-unsupported``; what planning raises.
    """
    if isinstance(loaded, PartsPlan):
        return _smaller_parts(loaded, layers)
    recipe = recipe_of_plan(loaded)
    if recipe is None:
        name = next(iter(loaded.ir()), "")
        if not name:
            raise without_program()
        module = load_program(loaded, loaded.ir()[name], name)
        left = leave_layers(module, layers)
        plan = make_plan(Program(module), _options(loaded.plan, left.gone))
        return replace(plan, folder=loaded.folder), left
    module = load_program(loaded, _forward(loaded), FORWARD)
    left = leave_layers(module, layers)
    moved = set(trained_by(loaded.plan))
    still = [n for role, n, _ in arguments(entry(module)) if role == "parameter" and n not in moved]
    options = replace(
        _options(loaded.plan, left.gone),
        sums=recipe.precision.sums,
        samples=axes_called_so(loaded.plan.device_mesh),
    )
    frozen = ",".join([*filter(None, [recipe.frozen]), *still])
    plan = training_plan(
        Program(module), replace(recipe, frozen=frozen), options, "*", keep_ir=True
    )
    return replace(plan, folder=loaded.folder), left


def without_program() -> IrcError:
    """Return the error for a plan that was written without the program of its model."""
    return IrcError(
        "rehearsal-unsupported",
        "the plan does not hold its model's program, of which layers could be left out",
        because="it was written without the text after each pass",
        help="rehearse it as it is: leave out --layers; or compile it again",
    )


def _forward(loaded: LoadedPlan | PartsPlan) -> str:
    if FORWARD not in loaded.texts:
        raise without_program()
    return forward_text(loaded)


def _smaller_parts(plan: PartsPlan, layers: int) -> tuple[PartsPlan, Left]:
    if plan.facts.samples:
        raise IrcError(
            "rehearsal-unsupported",
            "--layers is of plans whose micro-batches are equal, and some of this one are smaller",
            help="rehearse the plan as it is: leave out --layers; or compile it for a batch that "
            "micro-batches share equally",
        )
    recipe = recipe_of_plan(plan)
    if recipe is None or STAGED not in plan.texts:
        raise without_program()
    module = load_program(plan, _forward(plan), FORWARD)
    staged = load_program(plan, plan.texts[STAGED].decode("utf-8", "replace"), STAGED)
    stages = names_by_stage(staged)
    stage_of = {name: stage for stage, names in stages.items() for name in names}
    left = leave_layers(module, layers, stage_of)
    sliced = plan.facts.slices
    gone = left.gone.union(*(sliced[name].names for name in left.gone if name in sliced))
    names = {name for _, name, _ in arguments(entry(module))}
    cut = stage_pins({stage: [n for n in own if n in names] for stage, own in stages.items()})
    first = next(iter(plan.parts[0].values())).plan
    each = [loaded.plan for part in plan.parts for loaded in part.values()]
    options = replace(
        _options(first, gone, each),
        mesh=plan.mesh,
        sums=recipe.precision.sums,
        offload=plan.facts.offload,
        keep_ir=True,
        passes=() if _is_split(plan) else ("no-split-projections",),
    )
    files = training_files(recipe, dump(module))
    smaller = make_parts_plan(Program(module), recipe, options, plan.written, cut=cut)
    smaller = within(smaller, plan.written, plan.facts.ahead, budgets_of(options))
    return replace(with_files(smaller, files), folder=plan.folder), left


def _is_split(plan: PartsPlan) -> bool:
    """Whether the plan has projections in slices: what is left of it has them so, too."""
    return not all(map(plan.is_of_vocabulary, plan.facts.slices.values()))


def _options(plan: Plan, gone: Collection[str], plans: Sequence[Plan] = ()) -> Options:
    """Return the options of a pipeline by which a plan of fewer weights lies as plans do."""
    return Options(
        mesh=plan.device_mesh,
        backend=plan.backend,
        cluster=of_all_kinds(plan.cluster or THIS_HOST),
        pins="\n".join(weight_pins(plans or [plan], gone)),
    )
