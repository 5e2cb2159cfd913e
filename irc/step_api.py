"""What users call from Python to train: ``irc.compile_step``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irc.choices import (
    MeshOption,
    checked,
    count_option,
    mesh_option,
    micro_batches_option,
    names_option,
    offload_option,
    programs_option,
    recipe_option,
)
from irc.constraints.pins import Pins, pins_option
from irc.constraints.steps import pinned_count
from irc.pipeline import Options
from irc.searched import (
    AUTO,
    choice_of_ranks,
    price_of_stored,
    refuse_beside_auto,
    refuse_example,
)
from irc.sharding.mesh import parse_mesh
from irc.training.precision import PrecisionOption, precision_of
from irc.training.recipe import OptimizerOption

if TYPE_CHECKING:
    import torch
    from torch import nn

    from irc.calls.feeding import BatchOption
    from irc.calls.step import TrainingStep


def compile_step(
    model: nn.Module,
    *,
    loss: str | Callable[..., Any] | None = None,
    optimizer: OptimizerOption | torch.optim.Optimizer = "adamw",
    mesh: MeshOption = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    pins: Pins = "",
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    frozen: str = "",
    micro_batches: int | None = None,
    accumulate: int | None = None,
    schedule: str | Path = "1f1b",
    stages: str = "",
    recompute: str = "none",
    memory_bytes: int | None = None,
    stored_bytes: int | None = None,
    regather: bool = False,
    offload: str = "",
    seed: int = 0,
    init: Callable[[nn.Module], Any] | None = None,
    batch: BatchOption = "global",
    check_every: int = 0,
    precision: PrecisionOption = None,
    example: Sequence[Any] | None = None,
) -> TrainingStep:
    """Return a step of training, to be called with each batch: ``loss = step(*batch, lr=1e-3)``.

    The first batch of a kind compiles forward, backward and optimiser as one program. On one device
    the module's own parameters move. With a mesh the program runs under torchrun with as many
    processes; each calls the step with the same, whole batch, or with its own part of the samples
    (``batch``), and keeps only its parts of parameters and optimiser states, while the module's
    parameters go to the meta device. Each call compares a checksum of the batch between the ranks,
    as calls of a module compiled for a mesh do: ranks that are given another one are named, and the
    argument, before a parameter moves. Weights are compared when parts are taken of them.
    ``IRC_CHECK_RANKS=off`` in the environment of all ranks leaves the comparison to the first call
    of a kind.
    ``step.state_dict()`` puts everything together, ``step.load_state_dict`` goes on from there, on
    any mesh. ``step.evaluate(*args)`` calls the module on the ranks' parts; ``step.materialize()``
    lets the module hold its values, whole, until the next step. The module itself, called in
    between, has no values and says so (``weights-apart``).

    Where parameters and states lie is the planner's choice, within the memory of the cluster's
    devices. ``stored_bytes`` (or a small device) makes it split what is stored: parameters and
    states over all ranks is ZeRO 3. ``pins`` fix it; of two the later holds: ``"* = [data = B];
    optimizer.exp* = [data = S(0)]"`` keeps parameters whole and splits states, which is ZeRO 1.
    States are named ``optimizer.exp_avg.NAME``, ``optimizer.exp_avg_sq.NAME`` or
    ``optimizer.momentum_buffer.NAME``; of an Adafactor, of a matrix ``optimizer.row_var.NAME``
    with one column and ``optimizer.col_var.NAME`` with one row.

    A mesh with an axis ``pipe`` makes the model a pipeline of as many ranks: the model is cut into
    stages, each with the parameters of its own layers on a mesh of the other axes, and a schedule
    says which stage works on which of the ``micro_batches`` when (``irc schedule list``). Values
    and gradients go between stages while others are computed. The step is that of one device: the
    loss is the mean over micro-batches, clipping counts all gradients, a weight that two stages
    read (tied embeddings) moves once.

    In training mode dropout draws from a counter: the same numbers under any sharding, others in
    each step. Parameters that do not require a gradient have no gradient, state or work.

    Args:
        model: the module; its training flag counts.
        loss: nothing, where the module gives one real number; the name of one of its results; or a
            function ``loss(output, *targets)``, whose targets are the last arguments of a batch.
        optimizer: adamw, adam, sgd, momentum, rmsprop, adagrad, adamax, adadelta, adafactor or
            lion, or ``{"kind": "adamw", "lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1,
            "no_decay": "*.bias", "clip_norm": 1.0}``, with ``"groups": [{"params": "head.*", "lr":
            1e-4}]`` for parameters that are told other numbers (of two groups the first counts),
            and torch's options (``amsgrad``, ``nesterov``, ``maximize``, ``centered``). A new
            optimiser of ``torch.optim`` of these kinds says the same by its groups, and so does a
            Lion that computes what that of ``lion-pytorch`` does; what it does not have stays as it
            is. Each step reads their numbers, as a scheduler changes them: other rates cost
            nothing, other betas or another decay compile the step again. Any other optimiser of
            torch, or a class of your own, runs eagerly after the compiled forward and backward, and
            one warning names it (``EagerOptimizerWarning``); so does one of those with hooks of its
            step, which are registered before. One that works element by element (RAdam, NAdam,
            Rprop, ASGD, SGD with dampening, or an object with ``elementwise = True``) runs on a
            rank's parts of parameters and of the gradients, called ``optimizer.gradient.NAME`` in
            pins; for others (Muon, your own) each rank puts parameters and gradients together in
            each step, and its states are whole. With an axis ``pipe`` a rank's optimiser moves the
            parameters of its own stages; a class of your own that is not ``elementwise`` is refused
            there, as it may look at all of them together. States are saved and loaded as those of
            compiled ones; those of another class are refused. LBFGS and SparseAdam, a step that
            wants a closure, masters, and plans that are exported are refused, and so are hooks that
            come later. One of a user's own class that draws random numbers draws the same on every
            rank of a mesh.
        mesh: axes of a mesh, ``data=2,tensor=2``. An axis of size ``auto`` takes the processes that
            the others leave, ``data=auto,tensor=2``, so that a job which torchrun starts again
            with fewer of them, or more, is planned for those; a function gives a mesh for a
            number of processes. ``auto`` alone searches mesh, micro-batches, schedule and recompute
            for as many devices as there are processes and the batch ``example``, as ``irc plan``
            does.
        backend: what writes the kernels: ``cpu``; ``triton`` or ``cuda`` for ranks with GPUs, whose
            collectives and transfers then go by NCCL. Ranks of a mesh hold their parts on the GPU;
            on one device, weights that lie on the host are copied there and back each step.
        cluster: a preset or TOML file that prices the plan and says how much memory a device has.
        pins: constraints, as :func:`compile` takes them.
        passes: names of plug-in passes to run; ``no-order`` leaves out one of irc's own.
        rules: files of rewrite rules (grammar/rewrite.lark), tried before irc's own.
        frozen: globs of further parameters that stay as they are.
        micro_batches: that a batch is cut into along its first dim; by default as many as ``pipe``
            has ranks. Gradients are added up where they are and reduced once. The loss is the mean
            of theirs; what it divides by a sum over targets (of tokens that are not ignored) is
            divided by that of the batch, and what is a sum over samples (``reduction="sum"``) is
            that over the whole batch. Without ``pipe`` they run one after the other: the plan
            does not grow with their number, nor does the memory. A batch that they do not share
            equally is cut as ``torch.tensor_split`` cuts it (10 samples are 3, 3, 2 and 2), and
            each counts in the mean by its number of samples.
        accumulate: another name of ``micro_batches``.
        schedule: its name, with the stages a rank has where it takes any (``1f1b``, ``zb-v``,
            ``interleaved:2``), or a file: torch's ``.csv``, or irc's notation; or ``search``
            (``search:2`` with two stages a rank): the order that takes the least time by what the
            stages and messages of this step take, within the memory of the devices.
        stages: where stages begin, by names of parameters, as in ``"tok, l.0-l.3; l.4-l.7,
            head"``; by default so that the slowest stage is as fast as can be.
        recompute: what the backward pass computes again instead of having it saved: ``none``,
            ``cheap``, ``selective``, ``full``, or globs.
        memory_bytes: the most that a device may hold at any moment.
        stored_bytes: the most that it may hold all the time.
        regather: do not save for backward what was gathered, but gather it again.
        offload: where what forward saves of a micro-batch lies while others are computed, until
            backward reads it: nothing for its place on the device; ``disk`` for a file of each
            rank, without a name, in the folder ``IRC_SCRATCH`` (by default that for temporary
            files); ``host`` for the pinned memory of a GPU's host. Values are moved while functions
            run, and the numbers stay the same. It pays where a schedule keeps many micro-batches
            (``gpipe``, the first stages of ``1f1b``): the device holds two or three of each value.
        seed: of random numbers.
        init: of a model that was made on the meta device, gives values to the parameters and
            buffers that are a layer's own, and is called for each of ``model.modules()``; by
            default the layer's ``reset_parameters()``. Each rank keeps its parts, and the numbers
            are the same on every mesh.
        batch: what a rank is given: the whole batch (``global``) or its own part of the samples
            (``local``), which the axes of the mesh that are called ``data`` (``dp``, ``fsdp``)
            divide; for all arguments, or by argument: ``{"tokens": "local", "mask": "global"}``.
            ``step.feeding()`` says which part a rank is to be given, and with whom;
            :func:`data_sampler` gives it.
        check_every: after so many steps, compare what several ranks hold copies of (parameters,
            buffers, states); one that differs is named, with its rank. 0: never.
        precision: dtypes that are stored and computed in: ``"bfloat16"`` computes in it, from
            float32 parameters, as under ``torch.autocast``; ``"float16"`` does, and scales the loss
            as ``torch.amp.GradScaler`` does; a :class:`irc.Precision` says also in what parameters
            are stored, whether they have masters, in what ranks add up gradients, and how the loss
            is scaled.
        example: a whole batch, for which ``mesh="auto"`` is searched.

    Raises:
        IrcError: for options that cannot be; on the first call, what capture and planning raise.
    """
    from irc.calls.feeding import axes_called_so, feeding_of
    from irc.calls.pipelined import PipelinedStep, Pipelining
    from irc.calls.step import TrainingStep
    from irc.runtime.given_optimizer import follow
    from irc.runtime.loss_scale import loss_scale_of

    asked, layout, stored_price = micro_batches_option(micro_batches, accumulate), "", 0.0
    refuse_example(mesh, example)
    if mesh == AUTO:
        refuse_beside_auto(asked, f"{schedule}", stages, recompute)
        chosen = choice_of_ranks(
            model, example, backend=backend, cluster=cluster, passes=passes, rules=rules,
            pins=pins, memory_bytes=memory_bytes, stored_bytes=stored_bytes, regather=regather,
            optimizer=optimizer, loss=loss, frozen=frozen, precision=precision,
        )  # fmt: skip
        mesh, schedule, recompute = str(chosen.mesh), chosen.schedule, chosen.recompute
        asked = chosen.micro_batches if chosen.is_staged else None
        layout, memory_bytes = chosen.layout, chosen.memory_bytes or memory_bytes
        stored_price = price_of_stored(cluster, chosen)
    whole = parse_mesh(mesh_option(mesh))
    count = programs_option(whole, pinned_count(asked, pins), f"{schedule}", stages)
    feeding = feeding_of(batch, whole)
    check_every = count_option("check_every", check_every)
    recipe = recipe_option(model, loss, optimizer, frozen, count or 1, recompute, precision, pins)
    options = Options(
        mesh=whole,
        backend=backend,
        cluster=cluster,
        passes=names_option("passes", passes),
        rules=names_option("rules", rules),
        pins=pins_option(pins),
        memory_bytes=memory_bytes,
        stored_bytes=stored_bytes,
        regather=regather,
        stored_price=stored_price,
        layout=layout,
        samples=() if count is not None else axes_called_so(whole),
        sums=recipe.precision.sums,
        offload=offload_option(offload, count, backend),
    )
    if backend != "cpu":
        checked(options)
    called = None if isinstance(loss, str) else loss
    followed = None if isinstance(optimizer, str | Mapping) else follow(optimizer, model, whole)
    scale = loss_scale_of(precision_of(precision))
    if count is not None:
        pipelining = Pipelining(f"{schedule}", stages)
        return PipelinedStep(
            model,
            recipe,
            options,
            pipelining,
            loss=called,
            seed=seed,
            init=init,
            feeding=feeding,
            check_every=check_every,
            optimizer=followed,
            scale=scale,
        )
    return TrainingStep(
        model,
        recipe,
        options,
        loss=called,
        seed=seed,
        init=init,
        feeding=feeding,
        check_every=check_every,
        optimizer=followed,
        scale=scale,
    )
