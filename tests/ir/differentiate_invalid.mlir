// RUN: not irc opt %s -p differentiate 2>&1 | filecheck %s

// All that has no derivative is named at once, with its line.
// CHECK: error[not-differentiable]: no gradient can pass aten::rrelu (n1)
// CHECK-NEXT: m.py:2
// CHECK: error[not-differentiable]: no gradient can pass aten::dropout (n0)
// CHECK-NEXT: m.py:1
func.func @forward(%w: !flow.tensor<[5], f32> {role = "parameter", name = "w"})
    -> (!flow.tensor<[], f32> {role = "output", name = "loss"}) {
  %a = flow.extern(%w) {target = "aten::dropout", loc = "m.py:1", id = "n0",
      arguments = "[[{\22operand\22: 0}, 0.5, true], {}]"}
      : (!flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
  %b = flow.extern(%a) {target = "aten::rrelu", loc = "m.py:2", id = "n1",
      arguments = "[[{\22operand\22: 0}, 0.1, 0.3, true], {}]"}
      : (!flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
  %l = flow.reduce(%b) {fn = "sum", dims = array<i64: 0>, keep_dims = false, loc = "m.py:3",
      id = "n2"} : (!flow.tensor<[5], f32>) -> !flow.tensor<[], f32>
  func.return %l : !flow.tensor<[], f32>
}
