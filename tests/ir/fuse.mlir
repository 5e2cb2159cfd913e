// RUN: irc opt %s -p fuse | filecheck %s
// RUN: irc opt %s -p fuse | irc opt - | filecheck %s

// The bias and the activation happen where the matmul leaves its result.
// CHECK-LABEL: @epilogue
// CHECK:         flow.fusion{{.*}}kind = "matmul"
// CHECK:           flow.contract
// CHECK-NEXT:      flow.pointwise{{.*}}fn = "add"
// CHECK-NEXT:      %[[R:.*]] = flow.pointwise{{.*}}fn = "relu"
// CHECK-NEXT:      flow.yield(%[[R]])
func.func @epilogue(%x: !flow.tensor<[5, 7], f32>, %w: !flow.tensor<[7, 3], f32>,
    %b: !flow.tensor<[3], f32>) -> !flow.tensor<[5, 3], f32> {
  %0 = flow.contract(%x, %w) {spec = "mk,kn->mn", loc = "m.py:3", id = "n0"}
      : (!flow.tensor<[5, 7], f32>, !flow.tensor<[7, 3], f32>) -> !flow.tensor<[5, 3], f32>
  %1 = flow.pointwise(%0, %b) {fn = "add", loc = "m.py:3", id = "n1"}
      : (!flow.tensor<[5, 3], f32>, !flow.tensor<[3], f32>) -> !flow.tensor<[5, 3], f32>
  %2 = flow.pointwise(%1) {fn = "relu", loc = "m.py:4", id = "n2"}
      : (!flow.tensor<[5, 3], f32>) -> !flow.tensor<[5, 3], f32>
  func.return %2 : !flow.tensor<[5, 3], f32>
}

// A library op stands between: one kernel would wait for itself.
// CHECK-LABEL: @cycle
// CHECK:         flow.fusion
// CHECK:           fn = "neg"
// CHECK:         flow.sort
// CHECK:         flow.fusion
// CHECK:           fn = "add"
func.func @cycle(%x: !flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32> {
  %0 = flow.pointwise(%x) {fn = "neg", loc = "m.py:3", id = "m0"}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  %1, %2 = flow.sort(%0) {dim = 1, descending = false, loc = "m.py:4", id = "m1"}
      : (!flow.tensor<[5, 7], f32>) -> (!flow.tensor<[5, 7], f32>, !flow.tensor<[5, 7], i64>)
  %3 = flow.pointwise(%0, %1) {fn = "add", loc = "m.py:5", id = "m2"}
      : (!flow.tensor<[5, 7], f32>, !flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  func.return %3 : !flow.tensor<[5, 7], f32>
}
