"""The passes of irc, one per file; this table is their register.

A row is ``"pass-name": "irc.passes.pass_name:PassNamePass"``. Rows are text, so that naming one
pass imports one module.
"""

from collections.abc import Mapping

BUILTIN: Mapping[str, str] = {
    "add-optimizer": "irc.passes.add_optimizer:AddOptimizerPass",
    "auto-shard": "irc.passes.auto_shard:AutoShardPass",
    "verify-pins": "irc.passes.verify_pins:VerifyPinsPass",
    "insert-sum-casts": "irc.passes.insert_sum_casts:InsertSumCastsPass",
    "lower-externs": "irc.passes.lower_externs:LowerExternsPass",
    "plan-rings": "irc.passes.plan_rings:PlanRingsPass",
    "lower-boxing": "irc.passes.lower_boxing:LowerBoxingPass",
    "map-tasks": "irc.passes.map_tasks:MapTasksPass",
    "bind-sizes": "irc.passes.bind_sizes:BindSizesPass",
    "canonicalize": "irc.passes.canonicalize:CanonicalizePass",
    "differentiate": "irc.passes.differentiate:DifferentiatePass",
    "fuse": "irc.passes.fuse:FusePass",
    "pack-quantized": "irc.passes.pack_quantized:PackQuantizedPass",
    "merge-launches": "irc.passes.merge_launches:MergeLaunchesPass",
    "merge-matmuls": "irc.passes.merge_matmuls:MergeMatmulsPass",
    "bucket-collectives": "irc.passes.bucket_collectives:BucketCollectivesPass",
    "chunk-collectives": "irc.passes.chunk_collectives:ChunkCollectivesPass",
    "chunk-experts": "irc.passes.chunk_experts:ChunkExpertsPass",
    "slice-batch": "irc.passes.slice_batch:SliceBatchPass",
    "hoist-collectives": "irc.passes.hoist_collectives:HoistCollectivesPass",
    "split-projections": "irc.passes.split_projections:SplitProjectionsPass",
    "pad-parameters": "irc.passes.pad_parameters:PadParametersPass",
    "order": "irc.passes.order:OrderPass",
    "cut-stages": "irc.passes.cut_stages:CutStagesPass",
    "rewrite": "irc.passes.rewrite:RewritePass",
    "stream-cross-entropy": "irc.passes.stream_cross_entropy:StreamCrossEntropyPass",
    "split-reduction": "irc.passes.split_reduction:SplitReductionPass",
    "tune-tiles": "irc.passes.tune_tiles:TuneTilesPass",
    "recompute": "irc.passes.recompute:RecomputePass",
    "inline-blocks": "irc.passes.inline_blocks:InlineBlocksPass",
    "update-caches": "irc.passes.update_caches:UpdateCachesPass",
    "insert-copies": "irc.passes.insert_copies:InsertCopiesPass",
    "update-in-place": "irc.passes.update_in_place:UpdateInPlacePass",
    "prepare-weights": "irc.passes.prepare_weights:PrepareWeightsPass",
    "reuse-memory": "irc.passes.reuse_memory:ReuseMemoryPass",
    "plan-memory": "irc.passes.plan_memory:PlanMemoryPass",
}
