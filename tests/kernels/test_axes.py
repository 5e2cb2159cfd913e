"""Unification of loop axes."""

from irc.kernels.axes import Axis, leaves, unify


def sizes(*axes: Axis) -> list[int]:
    return [axis.size for axis in leaves(axes)]


def test_a_split_axis_is_split_for_all_who_use_it() -> None:
    whole, other = Axis(12), Axis(12)
    assert unify([whole], [other])
    assert unify([other], [Axis(3), Axis(4)])
    assert leaves([whole]) == leaves([other]) and sizes(whole) == [3, 4]


def test_overlapping_factors_meet_in_their_parts() -> None:
    left, right = [Axis(4), Axis(6)], [Axis(2), Axis(12)]
    assert unify(left, right)
    assert leaves(left) == leaves(right) and sizes(*left) == [2, 2, 6]


def test_sizes_that_do_not_nest_are_refused() -> None:
    assert not unify([Axis(4), Axis(6)], [Axis(3), Axis(8)])
    assert not unify([Axis(4)], [Axis(5)])
    assert not unify([Axis(4)], [])


def test_an_axis_split_twice_in_one_list() -> None:
    axis = Axis(6)
    assert unify([axis, axis], [Axis(2), Axis(3), Axis(2), Axis(3)])
    first, second = leaves([axis])
    assert leaves([axis, axis]) == [first, second, first, second]
