// RUN: irc opt %s -p differentiate{frozen=v} | filecheck %s

// The block is called twice: one forward and one backward function serve both calls, and the frozen
// argument %v has no gradient in either.
// CHECK-LABEL: @block_0_forward
// CHECK:         flow.contract
// CHECK:         %[[Y:.*]] = flow.pointwise{{.*}}fn = "tanh"
// CHECK:         func.return %[[Y]] :
func.func @block_0(%x: !flow.tensor<[3, 5], f32>, %w: !flow.tensor<[5, 5], f32>,
                   %v: !flow.tensor<[5], f32>) -> !flow.tensor<[3, 5], f32> {
  %h = flow.contract(%x, %w) {spec = "bk,kn->bn", loc = "m.py:1", id = "b0n0"}
      : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>) -> !flow.tensor<[3, 5], f32>
  %s = flow.pointwise(%h, %v) {fn = "add", loc = "m.py:2", id = "b0n1"}
      : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[3, 5], f32>
  %t = flow.pointwise(%s) {fn = "tanh", loc = "m.py:3", id = "b0n2"}
      : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
  func.return %t : !flow.tensor<[3, 5], f32>
}

// CHECK-LABEL: @block_0_backward
// CHECK-NOT:     flow.reduce
// CHECK-DAG:     flow.contract{{.*}}grad = "weight"{{.*}}spec = "bn,bk->kn"
// CHECK-DAG:     flow.contract{{.*}}grad = "input"{{.*}}spec = "bn,kn->bk"
// CHECK-NOT:     flow.reduce
// CHECK:         func.return

// The tied weight's gradients are added up.
// CHECK-LABEL: @forward
// CHECK-SAME:    {role = "output", name = "loss"}
// CHECK-SAME:    {role = "gradient", name = "e"}
// CHECK-SAME:    {role = "gradient", name = "w"}) {
// CHECK:         func.call @block_0_forward{{.*}}phase = "forward"
// CHECK:         func.call @block_0_forward
// CHECK:         %{{.*}}, %[[SECOND:.*]] = func.call @block_0_backward{{.*}}phase = "backward"
// CHECK:         %{{.*}}, %[[FIRST:.*]] = func.call @block_0_backward
// CHECK:         flow.pointwise(%[[SECOND]], %[[FIRST]]){{.*}}fn = "add"
func.func @forward(%i: !flow.tensor<[3, 1], f32> {role = "input", name = "i"},
                   %e: !flow.tensor<[5], f32> {role = "parameter", name = "e"},
                   %w: !flow.tensor<[5, 5], f32> {role = "parameter", name = "w"},
                   %v: !flow.tensor<[5], f32> {role = "parameter", name = "v"})
    -> (!flow.tensor<[], f32> {role = "output", name = "loss"}) {
  %x = flow.pointwise(%i, %e) {fn = "mul", loc = "m.py:4", id = "m0"}
      : (!flow.tensor<[3, 1], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[3, 5], f32>
  %a = func.call @block_0(%x, %w, %v) {loc = "m.py:5", id = "n0"}
      : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>, !flow.tensor<[5], f32>)
      -> !flow.tensor<[3, 5], f32>
  %b = func.call @block_0(%a, %w, %v) {loc = "m.py:5", id = "n1"}
      : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5, 5], f32>, !flow.tensor<[5], f32>)
      -> !flow.tensor<[3, 5], f32>
  %l = flow.reduce(%b) {fn = "sum", dims = array<i64: 0, 1>, keep_dims = false, loc = "m.py:6",
      id = "n2"} : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[], f32>
  func.return %l : !flow.tensor<[], f32>
}
