// RUN: irc opt %s -p fuse,map-tasks | filecheck %s
// RUN: irc opt %s -p fuse,map-tasks{target=sm_90} | filecheck %s --check-prefix=GPU
// RUN: not irc opt %s -p map-tasks{target=tpu} 2>&1 | filecheck %s --check-prefix=TARGET
// RUN: irc opt %s -p fuse,map-tasks --verify-each=exec | irc opt - | filecheck %s

// The transpose is a stride of the load; all of it is one loop over five rows.
// CHECK-LABEL: @forward
// CHECK-NEXT:    task.launch{{.*}}results = ["n5"], kernel = @k0_softmax
// CHECK-NEXT:    func.return
// CHECK:       task.kernel @k0_softmax
// CHECK-SAME:    space = array<i64: 5, 7>, parallel = 1
// CHECK-SAME:    mapping = #task.map<spatial(1) * repeat(5)>
// CHECK:         task.load(%{{.*}}strides = array<i64: 1, 5>
// CHECK-NEXT:    task.reduce{{.*}}fn = "max"
// CHECK:         task.store{{.*}}strides = array<i64: 7, 1>
// GPU: mapping = #task.map<spatial(1) * repeat(8)>
// TARGET: error[target-unknown]: no target 'tpu'
func.func @forward(%x: !flow.tensor<[7, 5], f32>) -> !flow.tensor<[5, 7], f32> {
  %0 = flow.transpose(%x) {perm = array<i64: 1, 0>, loc = "m.py:3", id = "n0"}
      : (!flow.tensor<[7, 5], f32>) -> !flow.tensor<[5, 7], f32>
  %1 = flow.reduce(%0) {fn = "max", dims = array<i64: 1>, keep_dims = true, loc = "m.py:4", id = "n1"}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 1], f32>
  %2 = flow.pointwise(%0, %1) {fn = "sub", loc = "m.py:4", id = "n2"}
      : (!flow.tensor<[5, 7], f32>, !flow.tensor<[5, 1], f32>) -> !flow.tensor<[5, 7], f32>
  %3 = flow.pointwise(%2) {fn = "exp", loc = "m.py:5", id = "n3"}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  %4 = flow.reduce(%3) {fn = "sum", dims = array<i64: 1>, keep_dims = true, loc = "m.py:6", id = "n4"}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 1], f32>
  %5 = flow.pointwise(%3, %4) {fn = "div", loc = "m.py:6", id = "n5"}
      : (!flow.tensor<[5, 7], f32>, !flow.tensor<[5, 1], f32>) -> !flow.tensor<[5, 7], f32>
  func.return %5 : !flow.tensor<[5, 7], f32>
}
