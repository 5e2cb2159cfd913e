"""Configurations of a step: mesh, stages, micro-batches, schedule, recompute; and their prices.

A closed form says in microseconds about what a configuration takes, so that all of them can be put
in order. It is a guide, not an answer: the first few are planned (:mod:`irc.search.everything`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.schedule.named import SEARCH
from irc.training.layer_policies import EVERY, FIRST, LayerPolicy, parse_policies, policies_text

PIPE = "pipe"
PLAIN = "1f1b"
"""The schedule of a pipeline that says no other."""

APART, ORDERED = "zb-h1", SEARCH
"""The schedule whose weight gradients fill bubbles, and the order that a search finds."""

NOTHING, SELECTIVE, EVERY_SECOND, FULL = "none", "selective", "every-second-matmul", "full"
"""Policies of recompute, each of which keeps less than the one before."""

FORWARDS = {NOTHING: 3.0, SELECTIVE: 3.1, EVERY_SECOND: 3.5, FULL: 4.0}
"""Forward passes that a step takes about as long as; backward is two of them."""

IN_PARTS = ("what is fastest", "sums in parts", "weights in parts")
"""What lies in parts over the ranks of a stage: of the second and third gradients' sums and states,
of the third weights too, which are gathered where they are used."""

TIGHTER = 0.9
"""Of what a plan holds: prices and arenas count a little differently."""

MOST_SEARCHED = 256
"""Stages times micro-batches of a pipeline whose order is searched: that takes a second or so."""

MOST_MICRO_BATCHES = 256
"""So many micro-batches of a step at most are looked at."""


@dataclass(frozen=True)
class Configuration:
    """What a search chooses, or a user states.

    Attributes:
        mesh: all axes; ``pipe`` outermost where the model is cut into stages.
        micro_batches: of a step.
        schedule: of a pipeline, by name.
        recompute: what backward computes again, by policy.
        layout: what the axes are for, by name; empty: what is fastest.
        memory_bytes: that a device may hold at most, where a plan within less than the user allows
            is looked for: parameters may then lie in parts. None: as much as the user allows.
        in_parts: what lies in parts for the memory, though that takes longer (``IN_PARTS``).
    """

    mesh: Mesh
    micro_batches: int = 1
    schedule: str = PLAIN
    recompute: str = NOTHING
    layout: str = ""
    memory_bytes: int | None = None
    in_parts: int = 0

    @property
    def pipe(self) -> int:
        """The ranks along ``pipe``: 1 where the model is one stage."""
        return self.mesh.size(PIPE) if PIPE in self.mesh.names else 1

    @property
    def is_staged(self) -> bool:
        """Several programs: stages, or micro-batches one after the other."""
        return self.micro_batches > 1 or self.pipe > 1

    @property
    def inner(self) -> Mesh:
        """The mesh of a stage."""
        return Mesh(tuple(axis for axis in self.mesh.axes if axis[0] != PIPE))

    def __str__(self) -> str:
        words = [str(self.mesh) or "one device"]
        if self.micro_batches > 1:
            words.append(f"{self.micro_batches} micro-batches")
        if self.pipe > 1:
            words.append(self.schedule)
        if self.recompute != NOTHING:
            words.append(f"recompute {self.recompute}")
        if self.layout:
            words.append(self.layout)
        if self.in_parts:
            words.append(IN_PARTS[self.in_parts])
        if self.memory_bytes is not None:
            words.append(f"within {self.memory_bytes} bytes")
        return ", ".join(words)


@dataclass(frozen=True)
class Outline:
    """What a closed form knows of a model and its batch (:mod:`irc.search.outline`).

    Attributes:
        flops: of one forward pass of the whole batch.
        dtype: in which most of them are computed.
        parameter_bytes: of all parameters.
        boundary_bytes: that go from one layer to the next, for the whole batch.
        layers: that are alike; 1 where none are.
        samples: of the batch; 1 where nothing says.
        launches: kernels of a forward pass, about.
        products: flops of matrix products by the dtype that they are computed in: of a call; of a
            step of training with those of backward (:mod:`irc.search.products`).
        again: of these, of one layer, what backward computes again at least where it computes all
            of the layer again (:mod:`irc.search.again`).
    """

    flops: float
    dtype: str
    parameter_bytes: float
    boundary_bytes: float
    layers: int
    samples: int
    launches: int
    products: tuple[tuple[str, float], ...] = ()
    stored_bytes: float = 0.0
    sums_bytes: float = 0.0
    again: tuple[tuple[str, float], ...] = ()


def estimated_s(outline: Outline, cluster: Cluster, configuration: Configuration) -> float:
    """Return about what a step of training takes.

    With p stages, m micro-batches and T the time of all micro-batches in a stage:
        step = T (m + p - 1) / m + gradients
    T is arithmetic (backward takes two forwards), launches, and the four all-reduces of a layer
    whose matrices are divided over ``tensor`` (arXiv:1909.08053). Gradients are summed over
    ``data``, half of it under backward where there is one micro-batch. Prices are of whole links.
    """
    mesh, pipe, count = configuration.mesh, configuration.pipe, configuration.micro_batches
    fitted = cluster.fit(mesh)
    data, tensor = _size(mesh, "data"), _size(mesh, "tensor")
    again = _forwards(configuration.recompute, outline.layers / pipe)
    work_s = again * outline.flops / (mesh.num_ranks * fitted.device.flops(outline.dtype))
    launch_s = again * count * outline.launches / pipe * fitted.device.launch_s
    sums_s = 0.0
    if tensor > 1:
        link = cluster.axis_link(mesh, "tensor")
        moved = 2 * (tensor - 1) / tensor * outline.boundary_bytes / data / link.bytes_per_s
        each = moved + count * (link.launch_s + 2 * (tensor - 1) * link.latency_s)
        sums_s = 4 * outline.layers / pipe * each
    gradients_s = 0.0
    if data > 1:
        link = cluster.axis_link(mesh, "data")
        held = outline.parameter_bytes / (pipe * tensor)
        gradients_s = 2 * (data - 1) / data * held / link.bytes_per_s * (0.5 if pipe == 1 else 1.0)
    busy_s = max(work_s, launch_s) + sums_s
    return busy_s * (count + pipe - 1) / count + gradients_s


def with_first_again(policy: str, number: int) -> str:
    """Return a policy that computes the first so many layers of each stage again as a whole.

    >>> with_first_again("none", 3)
    'none; first 3 = full'
    """
    return policies_text(policy, [LayerPolicy(f"{FIRST} {number}", FULL)])


def first_again(policy: str) -> tuple[str, int]:
    """Return the policy of all layers, and of how many in each stage all is computed again instead.

    >>> first_again("selective; first 3 = full"), first_again("none; every 2 = full")
    (('selective', 3), ('none; every 2 = full', 0))
    """
    base, own = parse_policies(policy)
    if len(own) == 1 and own[0].policy == FULL:
        word, _, number = own[0].word.partition(" ")
        if word == FIRST and number.isdigit():
            return base, int(number)
    return policy, 0


def _forwards(policy: str, layers: float) -> float:
    """Return what a step of stages of so many layers takes, in forward passes.

    >>> _forwards("full", 4.0), _forwards("none; first 1 = full", 4.0)
    (4.0, 3.25)
    """
    base, own = parse_policies(policy)
    forwards = FORWARDS.get(base, FORWARDS[NOTHING])
    for each in own:
        word, _, number = each.word.partition(" ")
        # How many layers a name means is not known here; it is a guess that they are half.
        part = 0.5
        if word in (FIRST, EVERY) and number.isdigit():
            part = min(1.0, int(number) / layers if word == FIRST else 1 / max(int(number), 1))
        forwards += part * (FORWARDS.get(each.policy, FORWARDS[NOTHING]) - forwards)
    return forwards


def configurations(outline: Outline, devices: int) -> Iterator[Configuration]:
    """Yield configurations of a step with stages or micro-batches, on so many devices.

    Inside a stage there are at most two axes, ``data`` and ``tensor``; each micro-batch divides
    equally over ``data``, and there are as many of them as stages at least; where the batch has no
    so many for the ranks of ``data``, as many as it has.

    >>> small = Outline(1.0, "f32", 1.0, 1.0, layers=2, samples=4, launches=1)
    >>> [str(each) for each in configurations(small, 4)][:3]
    ['data=2,tensor=2, 2 micro-batches', 'tensor=4, 2 micro-batches', 'tensor=4, 4 micro-batches']
    """
    for pipe in divisors(devices):
        if pipe > max(outline.layers, 1):
            break
        for tensor in divisors(devices // pipe):
            data = devices // pipe // tensor
            mesh = staged_mesh(pipe, data, tensor)
            counts = [
                count
                for count in divisors(outline.samples)
                if 1 < count <= MOST_MICRO_BATCHES and outline.samples // count % data == 0
            ]
            enough = [count for count in counts if count >= pipe]
            for count in enough or counts[-1:]:
                yield Configuration(mesh, count)


def customary(outline: Outline, cluster: Cluster, devices: int) -> Iterator[Configuration]:
    """Yield steps of one program as they are commonly laid out by hand.

    The search of meshes adds up what a step overlaps, so that it passes over these where they
    communicate much beside compute: replicas (``ddp``), the same with parameters in parts
    (``fsdp``), and matrices divided inside of a node, samples and parameters over nodes.

    >>> from irc.cluster.presets import PRESETS
    >>> small = Outline(1.0, "f32", 1.0, 1.0, layers=2, samples=16, launches=1)
    >>> [str(each) for each in customary(small, PRESETS["2x8xH100"], 16)]
    ['data=16, ddp', 'data=16, fsdp', 'data=2,tensor=8, fsdp+tp+sp']
    """
    if devices < 2:
        return
    if outline.samples % devices == 0:
        mesh = staged_mesh(1, devices, 1)
        yield Configuration(mesh, layout="ddp")
        yield Configuration(mesh, layout="fsdp")
    node = cluster.links[0].devices if cluster.links else 1
    if 1 < node < devices and devices % node == 0 and outline.samples % (devices // node) == 0:
        yield Configuration(staged_mesh(1, devices // node, node), layout="fsdp+tp+sp")


def at_once(outline: Outline, devices: int) -> Iterator[Configuration]:
    """Yield steps of one program, the whole batch at once, on axes ``data`` and ``tensor``.

    >>> small = Outline(1.0, "f32", 1.0, 1.0, layers=2, samples=4, launches=1)
    >>> [str(each) for each in at_once(small, 8)]
    ['data=4,tensor=2', 'data=2,tensor=4', 'tensor=8']
    """
    for tensor in divisors(devices):
        data = devices // tensor
        if outline.samples % data == 0:
            yield Configuration(staged_mesh(1, data, tensor))


def neighbours(configuration: Configuration, outline: Outline) -> Iterator[Configuration]:
    """Yield configurations that differ in one choice, or in two axes."""
    mesh, pipe, count = configuration.mesh, configuration.pipe, configuration.micro_batches
    known = {str(each): each for each in configurations(outline, mesh.num_ranks)}
    for other in (count * 2, count // 2):
        if (own := Configuration(mesh, other)).is_staged and str(own) in known:
            yield _like(own, configuration)
    if configuration.recompute == FULL or first_again(configuration.recompute)[1]:
        yield replace(configuration, recompute=EVERY_SECOND)
        yield replace(configuration, recompute=SELECTIVE)
    if pipe > 1:
        for schedule in ("interleaved:2", APART):
            if schedule != configuration.schedule:
                yield replace(configuration, schedule=schedule)
    data, tensor = _size(mesh, "data"), _size(mesh, "tensor")
    for p, d, t in (
        (pipe, data * 2, tensor / 2), (pipe, data / 2, tensor * 2),
        (pipe * 2, data / 2, tensor), (pipe / 2, data * 2, tensor),
        (pipe * 2, data, tensor / 2), (pipe / 2, data, tensor * 2),
    ):  # fmt: skip
        if all(size == int(size) for size in (p, d, t)):
            own = Configuration(staged_mesh(int(p), int(d), int(t)), count)
            if str(own) in known:
                yield _like(own, configuration)


def can_search(configuration: Configuration) -> bool:
    """Return whether the order of a pipeline can be searched in a second or so."""
    return configuration.pipe * configuration.micro_batches <= MOST_SEARCHED


def can_divide(configuration: Configuration) -> bool:
    """Return whether more may lie in parts: nothing says how states lie, nor do they already.

    >>> can_divide(Configuration(Mesh.parse("data=8"))), can_divide(Configuration(Mesh(())))
    (True, False)
    """
    own = configuration
    return not own.layout and not own.in_parts and own.inner.num_ranks > 1


def tighter(configuration: Configuration, num_bytes: int) -> Configuration | None:
    """Return a configuration within a little less than its plan holds; None of what was so before.

    Where a plan fits, weights lie as what reads them wants it. One that has to hold less may keep
    them in parts, which can be faster, too: updates are divided, and gathers hidden.

    Args:
        configuration: of a plan.
        num_bytes: that a device holds in it.
    """
    if configuration.memory_bytes is not None or not can_divide(configuration):
        return None
    return replace(configuration, memory_bytes=int(TIGHTER * num_bytes))


def stored_split(configuration: Configuration) -> Configuration | None:
    """Return the same step with parameters in parts over its samples; None where they are.

    >>> str(stored_split(Configuration(Mesh.parse("data=8"), layout="ddp")))
    'data=8, fsdp'
    """
    mesh = configuration.mesh
    if configuration.is_staged or _size(mesh, "data") < 2 or "fsdp" in configuration.layout:
        return None
    if any(name not in ("data", "tensor") for name in mesh.names):
        return None
    layout = "fsdp+tp+sp" if _size(mesh, "tensor") > 1 else "fsdp"
    return replace(configuration, layout=layout, memory_bytes=None)


def _like(own: Configuration, other: Configuration) -> Configuration:
    schedule = other.schedule if own.pipe > 1 else PLAIN
    if schedule == ORDERED and not can_search(own):
        schedule = APART
    # How many layers have to be computed again is another number elsewhere.
    base, first = first_again(other.recompute)
    recompute = base if first else other.recompute
    return Configuration(own.mesh, own.micro_batches, schedule, recompute)


def staged_mesh(pipe: int, data: int, tensor: int) -> Mesh:
    """Return the mesh of these sizes; an axis of one rank is left out.

    >>> str(staged_mesh(2, 1, 4))
    'pipe=2,tensor=4'
    """
    sizes = ((PIPE, pipe), ("data", data), ("tensor", tensor))
    return Mesh(tuple((name, size) for name, size in sizes if size > 1))


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _size(mesh: Mesh, axis: str) -> int:
    return mesh.size(axis) if axis in mesh.names else 1
