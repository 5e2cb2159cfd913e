// RUN: irc opt %s -p 'bind-sizes{sizes="B=4,S=16"}' | filecheck %s
// RUN: not irc opt %s -p 'bind-sizes{sizes="B=4"}' 2>&1 | filecheck %s --check-prefix=UNBOUND

// CHECK-LABEL: @forward
// CHECK-SAME:    !flow.tensor<[4, 65], f32>
// CHECK-NOT:   {{\[B|S\]}}
// UNBOUND: error[size-unbound]: no number for size 'S'
func.func @forward(%x: !flow.tensor<[B, 4*S + 1], f32>) -> !flow.tensor<[B, 4*S + 1], f32> {
  %0 = flow.pointwise(%x) {fn = "exp", loc = "m.py:3", id = "n0"}
      : (!flow.tensor<[B, 4*S + 1], f32>) -> !flow.tensor<[B, 4*S + 1], f32>
  func.return %0 : !flow.tensor<[B, 4*S + 1], f32>
}
