// A thread of the kernel as a fiber: its own stack, and a change of stacks. ucontext would do; on
// x86-64 the change is written out, since ucontext asks the kernel for the signal mask each time.
#pragma once
#include <cstddef>
#include <cstdint>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {
#if defined(__x86_64__)
struct Context { void* stack; };
// Saves what a call must keep (System V ABI, section 3.2.1), takes the other stack, and returns there.
asm(R"(
.text
.local shim_change
.type shim_change, @function
shim_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" __attribute__((visibility("hidden"))) void shim_change(void** from, void* to);
static void change(Context& from, Context& to) { shim_change(&from.stack, to.stack); }
static void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
  // As after a call: the stack is 8 bytes off a multiple of 16 when the entry begins.
  auto** top = (void**)((uintptr_t)(stack + bytes) & ~(uintptr_t)15) - 1;
  *top = nullptr, *--top = (void*)entry;
  for (int r = 0; r < 6; ++r) *--top = nullptr;
  context.stack = top;
}
#else
struct Context { ucontext_t context; };
static void change(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
static void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack, context.context.uc_stack.ss_size = bytes;
  makecontext(&context.context, entry, 0);
}
#endif
}  // namespace shim
