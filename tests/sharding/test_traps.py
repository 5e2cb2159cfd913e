# ruff: noqa: E501 - one trap is one line, and one test one more
"""What makes toy auto-sharders wrong: 43 traps, and for each the tests that catch it.

The numbers are those of issues and papers on OneFlow, DTensor, Alpa, AutoParallel, Mist, Galvatron
and nnScaler. The table cannot rot: a test that is renamed or dropped is missed below.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNT = 43


@dataclass(frozen=True)
class Trap:
    """One way to be wrong.

    Attributes:
        is_that: what goes wrong, in a sentence.
        tests: node ids of the tests that catch it, from the root of the project.
        not_built: what of irc the trap waits for; empty where all of it is there.
    """

    is_that: str
    tests: tuple[str, ...]
    not_built: str = ""


def trap(is_that: str, *tests: str, not_built: str = "") -> Trap:
    return Trap(is_that, tests, not_built)


TRAPS: dict[int, Trap] = {
    1: trap(
        "ceil-sized and balanced chunks have different boundaries, and one side uses the other",
        "tests/sharding/test_shards.py::test_chunks_are_those_of_torch",
        "tests/sharding/test_traps_shards.py::test_boundaries_are_those_of_ceil_chunks_for_every_size",
        "tests/sharding/test_traps_shards.py::test_shards_of_one_rule_are_not_joined_by_another",
    ),
    2: trap(
        "a rank without rows takes the maximum, or the mean, of nothing",
        "tests/sharding/test_signatures.py::test_a_maximum_is_never_taken_of_nothing",
        "tests/sharding/test_traps_shards.py::test_tiny_and_empty_shards_reduce_right_or_not_at_all",
        "tests/sharding/test_property.py::test_uneven_shards_compute_the_op",
    ),
    3: trap(
        "padding of shards leaks into maxima, products, norms and counts",
        "tests/sharding/test_traps_shards.py::test_shards_padded_with_zeros_would_be_seen",
        "tests/sharding/test_property.py::test_uneven_shards_compute_the_op",
    ),
    4: trap(
        "the collective that is priced is not the one that runs",
        "tests/sharding/test_traps_programs.py::test_the_price_of_a_boxing_is_that_of_the_collectives_that_run",
        "tests/cost/test_model.py::test_collectives_off_the_outermost_dim_pay_for_packing",
        "tests/cost/test_collectives.py::test_what_the_runtime_lacks_is_priced_as_what_it_runs",
        "tests/ops/test_experts.py::test_an_exchange_is_priced_by_what_is_expected_to_travel",
    ),
    5: trap(
        "the order in which axes split one dim is lost, or counts as equal",
        "tests/sharding/test_property.py::test_a_swapped_order_of_application_is_caught",
        "tests/sharding/test_traps_shards.py::test_orders_of_application_are_different_placements",
        "tests/sharding/test_dtensor.py::test_a_strided_shard_holds_what_dtensor_says",
    ),
    6: trap(
        "two mesh axes on one dim are taken for one axis of their product",
        "tests/sharding/test_traps_shards.py::test_two_axes_on_one_dim_are_not_one_axis",
    ),
    7: trap(
        "(B, S0) to (S0, S0) is priced as a free slice, axis by axis",
        "tests/cost/test_model.py::test_slicing_an_outer_axis_under_an_inner_one_is_not_free",
        "tests/sharding/test_boxing.py::test_only_the_last_applied_axis_of_a_dim_moves",
    ),
    8: trap(
        "a reshape carries a shard through a factor that does not lead",
        "tests/sharding/test_property.py::test_a_split_of_the_minor_factor_is_caught",
        "tests/sharding/test_signatures.py::test_a_merged_dim_is_never_uneven",
        "tests/sharding/test_traps_shards.py::test_only_the_major_factor_of_a_reshape_carries_a_shard",
    ),
    9: trap(
        "an op that walks along a dim takes the shard's index for the tensor's",
        "tests/sharding/test_property.py::test_a_rank_that_forgets_its_offset_is_caught",
        "tests/sharding/test_property.py::test_a_wrong_rule_is_caught",
        "tests/sharding/test_exchanges.py::test_what_is_found_is_what_one_device_finds",
        "tests/sharding/test_local.py::test_causal_rows_are_masked_by_their_logical_number",
    ),
    10: trap(
        "a function that is not linear runs on each part of a sum",
        "tests/sharding/test_traps_shards.py::test_functions_that_pass_partial_values_are_linear_or_monotone",
        "tests/sharding/test_traps_shards.py::test_functions_that_are_not_linear_take_no_sums",
        "tests/sharding/test_property.py::test_a_wrong_rule_is_caught",
    ),
    11: trap(
        "every rank adds the bias to its part of a sum",
        "tests/interpret/test_sharded.py::test_a_bias_on_a_partial_sum_is_refused_with_its_place",
        "tests/sharding/test_property.py::test_a_wrong_rule_is_caught",
        "tests/sharding/test_traps_shards.py::test_partial_sums_add_and_scale_and_nothing_else",
    ),
    12: trap(
        "two sums are multiplied part by part, or one divides",
        "tests/sharding/test_traps_shards.py::test_partial_sums_add_and_scale_and_nothing_else",
        "tests/sharding/test_property.py::test_a_wrong_rule_is_caught",
    ),
    13: trap(
        "parts of a sum are rounded before they are added",
        "tests/sharding/test_traps_shards.py::test_a_partial_sum_is_only_widened_never_rounded",
        "tests/sharding/test_traps_shards.py::test_rounding_parts_is_not_rounding_the_sum",
    ),
    14: trap(
        "a whole value is made partial by an even share, which rounds",
        "tests/sharding/test_boxing.py::test_nothing_makes_a_partial_value",
        "tests/sharding/test_traps_shards.py::test_a_whole_value_becomes_a_sum_on_the_first_rank_alone",
    ),
    15: trap(
        "a host reads one rank's part: of a result, or of a norm over shards and copies",
        "tests/sharding/test_traps_programs.py::test_no_value_that_a_host_reads_is_partial",
        "tests/sharding/test_traps_programs.py::test_a_norm_counts_shards_once_and_copies_once",
    ),
    16: trap(
        "the mean of the ranks' means stands for the mean over all rows",
        "tests/sharding/test_traps_programs.py::test_a_mean_over_rows_is_that_of_all_ranks_whatever_they_ignore",
    ),
    17: trap(
        "without latency, many small collectives look free",
        "tests/cost/test_collectives.py::test_latency_grows_with_the_ring",
        "tests/cost/test_collectives.py::test_one_rank_is_free_and_an_empty_payload_is_not",
        "tests/cost/test_algorithms.py::test_a_ring_through_nodes_pays_the_slow_latency_once_per_node",
    ),
    18: trap(
        "where algorithms switch, a larger message is cheaper",
        "tests/cost/test_collectives.py::test_more_bytes_never_cost_less",
        "tests/cost/test_algorithms.py::test_no_cluster_makes_a_larger_collective_cheaper",
        "tests/dialects/test_permute.py::test_the_price_rises_with_the_size",
    ),
    19: trap(
        "groups that leave a node together are priced as if each had the port alone",
        "tests/cluster/test_topology.py::test_an_axis_that_leaves_the_node_shares_its_ports_with_the_other_groups",
        "tests/cost/test_published.py::test_a_strided_group_of_two_a_node_has_twice_the_speed_of_one_a_node",
        "tests/dialects/test_permute.py::test_the_price_follows_the_wires_that_messages_take",
    ),
    20: trap(
        "bytes of all ranks are added to seconds of one",
        "tests/cost/test_collectives.py::test_bytes_that_a_rank_sends",
        "tests/cost/test_published.py::test_every_point_is_within_a_factor_of_1_8",
    ),
    21: trap(
        "only the forward pass is planned, so that column-parallel looks free",
        "tests/search/test_judgement_training.py::test_training_pairs_columns_with_rows",
        "tests/search/test_judgement_long.py::test_training_crosses_over_at_tokens_equal_features",
        "tests/sharding/test_property.py::test_backward_ops_compute_under_every_signature",
        "tests/test_train.py::test_a_sharded_step_moves_parameters_as_a_whole_one",
    ),
    22: trap(
        "the gradients of weights are reduced for every micro-batch, or in the wrong dtype",
        "tests/programs/test_accumulation.py::test_sharded_gradients_are_reduced_once_a_step",
        "tests/test_train.py::test_a_sharded_step_moves_parameters_as_a_whole_one",
    ),
    23: trap(
        "overlap is taken for free, and for possible where nothing is to be computed",
        "tests/simulate/test_plan.py::test_ranks_that_share_cores_slow_each_other_down",
        "tests/simulate/test_engine.py::test_processor_sharing",
        "tests/passes/test_order.py::test_independent_compute_goes_between_start_and_wait",
        "tests/passes/test_order.py::test_with_prices_a_wait_comes_when_its_collective_has_ended",
    ),
    24: trap(
        "ops that cost nothing make ties, and absurd plans",
        "tests/cost/test_model.py::test_no_signature_of_any_op_is_free",
    ),
    25: trap(
        "a large number stands for what cannot be",
        "tests/sharding/test_traps_programs.py::test_what_cannot_be_has_no_column",
        "tests/search/test_program.py::test_a_budget_that_nothing_fits_is_infeasible",
    ),
    26: trap(
        "what is not known is priced as zero, and attracts the optimiser",
        "tests/ops/test_custom.py::test_what_is_left_out_is_assumed_and_reported_never_zero",
        "tests/ops/test_own_ops.py::test_work_is_what_is_declared_and_what_is_left_out_is_estimated",
    ),
    27: trap(
        "ops without a rule are replicated, and nobody says so",
        "tests/report/test_explain.py::test_what_is_planned_by_fall_back_is_listed",
        "tests/ops/test_own_ops.py::test_the_explanation_of_a_plan_lists_what_was_assumed",
        "tests/frontends/torch/test_attention_forms.py::test_flex_attention_is_split_and_right_on_virtual_ranks",
    ),
    28: trap(
        "recomputing runs the collectives of the region again",
        "tests/search/test_memory.py::test_recompute_costs_time_and_its_collectives",
    ),
    29: trap(
        "memory is that of the parameters alone",
        "tests/passes/test_auto_shard.py::test_a_budget_bounds_what_is_held_at_the_worst_moment",
        "tests/cost/test_memory.py::test_the_peak_is_inside_the_block",
        "tests/search/test_memory.py::test_tensor_parallelism_alone",
        "tests/search/test_memory.py::test_full_recompute",
        "tests/sharding/test_exchanges.py::test_the_memory_of_an_exchange_is_counted",
    ),
    30: trap(
        "what is allocated is less than what the allocator reserves",
        "tests/sharding/test_traps_training.py::test_a_part_of_a_devices_memory_is_left_to_its_allocator",
        "tests/passes/test_recompute.py::test_recompute_makes_the_arena_smaller",
    ),
    31: trap(
        "the sum over devices fits, and one device does not",
        "tests/passes/test_auto_shard.py::test_the_memory_of_the_device_is_the_budget",
        "tests/cluster/test_unequal.py::test_an_even_split_runs_at_the_slowest_device_that_it_uses",
        "tests/passes/test_recompute.py::test_recompute_makes_the_arena_smaller",
    ),
    32: trap(
        "with memory, the program is too hard to solve, or its budget is rounded away",
        "tests/search/test_program.py::test_the_optimum_under_a_budget",
        "tests/passes/test_auto_shard.py::test_the_smallest_budget_works_and_less_does_not",
    ),
    33: trap(
        "an impossible request is refused without the reason",
        "tests/passes/test_auto_shard.py::test_an_impossible_budget_says_what_works",
        "tests/constraints/test_constraints.py::test_constraints_that_leave_nothing_name_themselves_and_what_there_was",
    ),
    34: trap(
        "two uses of one weight get two placements, or one of two gradients",
        "tests/frontends/torch/test_capture.py::test_tied_weights_are_one_argument",
        "tests/test_train.py::test_requires_grad_of_a_tied_weight_and_of_one_that_is_not_read",
        "tests/search/test_judgement_training.py::test_the_training_loss_is_vocabulary_parallel",
    ),
    35: trap(
        "a state lies otherwise than what it is updated with",
        "tests/passes/test_auto_shard.py::test_a_state_lies_as_its_buffer",
        "tests/plan/test_build.py::test_states_are_written_back_last_and_may_swap",
    ),
    36: trap(
        "ranks draw the numbers of the wrong places",
        "tests/runtime/test_library.py::test_random_numbers_do_not_depend_on_the_shape_drawn",
        "tests/sharding/test_property.py::test_a_rank_that_forgets_its_offset_is_caught",
        "tests/frontends/torch/test_dropping.py::test_gradients_are_those_of_the_mask_that_was_drawn",
    ),
    37: trap(
        "recomputing draws other numbers, or one rank skips a collective",
        "tests/sharding/test_traps_training.py::test_what_is_computed_again_draws_the_same_numbers_and_collectives_on_all_ranks",
        "tests/sharding/test_traps_training.py::test_other_numbers_would_be_seen",
        "tests/passes/test_recompute.py::test_random_ops_draw_the_same_again",
        "tests/passes/test_recompute.py::test_every_rank_runs_the_same_collectives_again",
        "tests/passes/test_recompute.py::test_what_a_library_draws_is_saved",
    ),
    38: trap(
        "layers that differ are planned as one, or repeating them changes the optimum",
        "tests/frontends/torch/test_capture.py::test_layers_that_behave_differently_are_not_shared",
        "tests/passes/test_auto_shard.py::test_a_block_is_priced_as_often_as_it_runs",
        "tests/search/test_outlining.py::test_outlined_blocks_cost_less_than_one_percent_more",
        "tests/search/test_outlining.py::test_outlined_blocks_of_a_training_step",
    ),
    39: trap(
        "mesh axes are solved one by one, and all split the batch",
        "tests/search/test_program.py::test_the_optimum_is_the_best_of_all_choices",
        "tests/search/test_judgement.py::test_a_mixture_of_experts_is_expert_parallel",
        "tests/passes/test_auto_shard.py::test_where_links_are_slow_every_rank_does_all",
    ),
    40: trap(
        "a pipeline's time leaves out sends, the first and last micro-batch, and unequal stages",
        "tests/simulate/test_engine.py::test_published_schedules",
        "tests/simulate/test_engine.py::test_bounds",
        not_built="the choice of stages (`plan-parallel`): the simulator has the actions of a pipeline",
    ),
    41: trap(
        "ranks issue collectives in different orders, and wait for each other for ever",
        "tests/sharding/test_collectives.py::test_what_does_not_fit_is_named",
        "tests/sharding/test_collectives.py::test_a_start_that_nobody_waits_for_is_named",
        "tests/sharding/test_collectives.py::test_the_order_goes_through_calls",
        "tests/simulate/test_engine.py::test_a_deadlock_is_a_bug_of_ours_and_is_named",
        "tests/dialects/test_permute.py::test_a_rank_receives_once_and_exists",
        "tests/distributed/test_run.py::test_ranks_that_disagree_all_end_and_name_each_other",
        not_built="plans that differ from stage to stage: all ranks run one text",
    ),
    42: trap(
        "another order of adding is taken for a bug, or a bug for rounding",
        "tests/sharding/test_traps_programs.py::test_rounding_is_told_from_bugs_by_float64",
        "tests/interpret/test_check.py::test_a_planted_fault_is_named",
    ),
    43: trap(
        "a saved plan is used for another program, mesh or machine",
        "tests/sharding/test_traps_programs.py::test_a_plan_is_known_by_program_mesh_and_prices",
        "tests/plan/test_files.py::test_damage_is_found_and_named",
        "tests/distributed/test_run.py::test_ranks_that_disagree_all_end_and_name_each_other",
    ),
}  # fmt: skip


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions of a file, without importing it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_all_traps_are_here() -> None:
    assert list(TRAPS) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("number", TRAPS)
def test_a_trap_has_tests_that_exist(number: int) -> None:
    entry = TRAPS[number]
    assert entry.tests or entry.not_built, f"nothing catches trap {number}: {entry.is_that}"
    for node in entry.tests:
        path, _, name = node.partition("::")
        assert (ROOT / path).is_file(), f"trap {number}: {path} is gone"
        assert name in names_in(path), f"trap {number}: {path} has no {name}"
