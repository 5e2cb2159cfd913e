// RUN: irc opt %s -p fuse,map-tasks | filecheck %s
// RUN: irc opt %s -p fuse,map-tasks | irc opt - | filecheck %s

// Attention reads heads where they lie in one width, and writes them so; no copy on either side.
// CHECK-LABEL: @attention
// CHECK-NEXT:    %[[Y:[0-9]+]] = task.launch(%{{.*}}kernel = @k0_attention
// CHECK:         %[[V:[0-9]+]] = task.view(%[[Y]]) {{.*}}strides = array<i64: 20, 4, 1>
// CHECK-NEXT:    func.return %[[V]]
// CHECK:       task.kernel @k0_attention {{.*}}template = "attention"
// CHECK-SAME:    space = array<i64: 1, 2, 1, 5, 1, 5>, parallel = 5
// CHECK:         task.attention(%[[X:[0-9]+]], %[[X]], %[[X]], %{{.*}}roles = ["q", "k", "v", "y"]
// CHECK-SAME:    keys = 5 : i64, features = array<i64: 2, 2>, scale = 5.000000e-01 : f64, causal = true
func.func @attention(%x: !flow.tensor<[1, 5, 4], f32>) -> !flow.tensor<[1, 5, 4], f32> {
  %0 = flow.reshape(%x) {loc = "m.py:1", id = "n0"}
      : (!flow.tensor<[1, 5, 4], f32>) -> !flow.tensor<[1, 5, 2, 2], f32>
  %1 = flow.transpose(%0) {perm = array<i64: 0, 2, 1, 3>, loc = "m.py:2", id = "n1"}
      : (!flow.tensor<[1, 5, 2, 2], f32>) -> !flow.tensor<[1, 2, 5, 2], f32>
  %2 = flow.attention(%1, %1, %1) {is_causal = true, scale = 0.5 : f64, loc = "m.py:3", id = "n2"}
      : (!flow.tensor<[1, 2, 5, 2], f32>, !flow.tensor<[1, 2, 5, 2], f32>,
         !flow.tensor<[1, 2, 5, 2], f32>) -> !flow.tensor<[1, 2, 5, 2], f32>
  %3 = flow.transpose(%2) {perm = array<i64: 0, 2, 1, 3>, loc = "m.py:4", id = "n3"}
      : (!flow.tensor<[1, 2, 5, 2], f32>) -> !flow.tensor<[1, 5, 2, 2], f32>
  %4 = flow.reshape(%3) {loc = "m.py:5", id = "n4"}
      : (!flow.tensor<[1, 5, 2, 2], f32>) -> !flow.tensor<[1, 5, 4], f32>
  func.return %4 : !flow.tensor<[1, 5, 4], f32>
}
