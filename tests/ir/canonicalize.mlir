// RUN: irc opt %s -p canonicalize | filecheck %s

// Two transposes that undo each other vanish, and so does what nobody reads.
// CHECK-LABEL: @undone
// CHECK-SAME:    (%[[X:[^:]*]]: !flow.tensor
// CHECK-NEXT:    func.return %[[X]]
func.func @undone(%x: !flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32> {
  %0 = flow.transpose(%x) {perm = array<i64: 1, 0>, loc = "m.py:3", id = "n0"}
      : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[5, 3], f32>
  %1 = flow.transpose(%0) {perm = array<i64: 1, 0>, loc = "m.py:3", id = "n1"}
      : (!flow.tensor<[5, 3], f32>) -> !flow.tensor<[3, 5], f32>
  %2 = flow.pointwise(%0) {fn = "exp", loc = "m.py:4", id = "n2"}
      : (!flow.tensor<[5, 3], f32>) -> !flow.tensor<[5, 3], f32>
  func.return %1 : !flow.tensor<[3, 5], f32>
}

// -0 + 0 is 0, so the addition stays.
// CHECK-LABEL: @keeps_add_of_zero
// CHECK:         flow.pointwise{{.*}}fn = "add"
func.func @keeps_add_of_zero(%x: !flow.tensor<[3], f32>) -> !flow.tensor<[3], f32> {
  %0 = flow.constant() {value = array<f64: 0.0>, loc = "m.py:3", id = "n0"}
      : () -> !flow.tensor<[], f32>
  %1 = flow.pointwise(%x, %0) {fn = "add", loc = "m.py:3", id = "n1"}
      : (!flow.tensor<[3], f32>, !flow.tensor<[], f32>) -> !flow.tensor<[3], f32>
  func.return %1 : !flow.tensor<[3], f32>
}
