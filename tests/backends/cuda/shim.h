// Runs CUDA kernels on a CPU: one fiber per thread, which changes hands at barriers only; a warp runs as
// far as it can before another does, in an order that the test chooses. A result that depends on the order, or NaN from poisoned shared memory, shows a
// missing barrier; a barrier that not all threads reach is an error.
#pragma once
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(n)
#define __shared__ static __attribute__((section("irc_shared")))
#define IRC_LAUNCH(kernel, blocks, threads, stream, ...) \
  shim::run(blocks, threads, [=] { kernel(__VA_ARGS__); })

using cudaStream_t = void*;
constexpr int cudaErrorMisalignedAddress = 716;
struct Index { int x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
extern "C" __attribute__((weak, visibility("hidden"))) char __start_irc_shared[], __stop_irc_shared[];

namespace shim {
enum State { READY, AT_WARP, AT_BLOCK, DONE };
struct Fiber { ucontext_t context; State state; std::unique_ptr<char[]> stack; };
static std::vector<Fiber> fibers;
static std::function<void()> body;
static ucontext_t scheduler;
static int current, order, error;
static unsigned seed;
alignas(16) static char slots[1024][16];

static void wait(State state) {
  fibers[current].state = state;
  swapcontext(&fibers[current].context, &scheduler);
}
static void enter() { body(); wait(DONE); }

static int random(int bound) { return (seed = seed * 1664525 + 1013904223) / 65536 % bound; }
static bool release(int first, int last, State state) {
  for (int t = first; t < last; ++t) if (fibers[t].state != state) return false;
  for (int t = first; t < last; ++t) fibers[t].state = READY;
  return true;
}
static void run_block(int threads) {
  if (__start_irc_shared) memset(__start_irc_shared, 0xff, __stop_irc_shared - __start_irc_shared);
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get(), f.context.uc_stack.ss_size = 1 << 18;
    f.state = READY;
    makecontext(&f.context, enter, 0);
  }
  // One warp runs until it waits for the others: the first that can, the last, or any.
  std::vector<int> ready;
  do {
    ready.clear();
    for (int t = 0; t < threads; ++t) if (fibers[t].state == READY) ready.push_back(t);
    if (ready.empty()) continue;
    if (order == 1) std::reverse(ready.begin(), ready.end());
    if (order == 2) for (int i = ready.size() - 1; i > 0; --i) std::swap(ready[i], ready[random(i + 1)]);
    const int warp = ready[0] / 32;
    for (int t : ready) {
      if (t / 32 != warp) continue;
      current = t, threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
    }
    release(warp * 32, std::min(warp * 32 + 32, threads), AT_WARP);
  } while (!ready.empty() || release(0, threads, AT_BLOCK));
  for (int t = 0; t < threads; ++t) if (fibers[t].state != DONE) error = 999;
}
template <typename F> static void run(int blocks, int threads, F call) {
  body = call, error = 0, seed = 1, blockDim.x = threads, gridDim.x = blocks;
  while ((int)fibers.size() < threads) fibers.push_back({{}, DONE, std::make_unique<char[]>(1 << 18)});
  for (blockIdx.x = 0; blockIdx.x < blocks && !error; ++blockIdx.x) run_block(threads);
}
}  // namespace shim
extern "C" void shim_order(int order) { shim::order = order; }
static int cudaGetLastError() { return shim::error; }
static void __syncthreads() { shim::wait(shim::AT_BLOCK); }
static void __syncwarp() { shim::wait(shim::AT_WARP); }
template <typename T> static T __shfl_xor_sync(unsigned, T value, int distance) {
  memcpy(shim::slots[shim::current], &value, sizeof(T));
  __syncwarp();
  memcpy(&value, shim::slots[shim::current ^ distance], sizeof(T));
  __syncwarp();
  return value;
}

struct __half { _Float16 value = 0; };
struct __nv_bfloat16 { uint16_t bits = 0; };
static float __half2float(__half x) { return x.value; }
static __half __float2half_rn(float x) { return {(_Float16)x}; }
static __half __double2half(double x) { return {(_Float16)x}; }
static float __bfloat162float(__nv_bfloat16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  float found;
  memcpy(&found, &bits, 4);
  return found;
}
static __nv_bfloat16 __float2bfloat16_rn(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (x != x) return {0x7fff};
  return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static __nv_bfloat16 __double2bfloat16(double x) { return __float2bfloat16_rn((float)x); }
static float as_float(__half x) { return __half2float(x); }
static float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }
static double rsqrt(double x) { return 1 / std::sqrt(x); }

// What lanes hold is in the PTX ISA, section "Matrix Fragments for mma.m16n8k16".
template <bool TRANSPOSED> static void irc_ldmatrix(unsigned (&to)[4], const void* row) {
  if ((uintptr_t)row % 16) shim::error = 716;
  memcpy(shim::slots[shim::current], &row, sizeof(row));
  __syncwarp();
  const int warp = shim::current / 32 * 32, lane = shim::current % 32;
  for (int tile = 0; tile < 4; ++tile) {
    uint16_t pair[2];
    for (int h = 0; h < 2; ++h) {
      const int i = TRANSPOSED ? lane % 4 * 2 + h : lane / 4, j = TRANSPOSED ? lane / 4 : lane % 4 * 2 + h;
      const uint16_t* from;
      memcpy(&from, shim::slots[warp + tile * 8 + i], sizeof(from));
      pair[h] = from[j];
    }
    memcpy(&to[tile], pair, 4);
  }
  __syncwarp();
}
template <typename T> static void irc_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static unsigned a_all[1024][4], b_all[1024][2];
  memcpy(a_all[shim::current], a, 16);
  b_all[shim::current][0] = b0, b_all[shim::current][1] = b1;
  __syncwarp();
  const int warp = shim::current / 32 * 32, lane = shim::current % 32;
  const auto half = [](unsigned pair, int h) {
    T found;
    memcpy(&found, (char*)&pair + 2 * h, 2);
    return as_float(found);
  };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 16; ++k) {
      const unsigned left = a_all[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
      const unsigned right = b_all[warp + column * 4 + k % 8 / 2][k / 8];
      c[e] += half(left, k % 2) * half(right, k % 2);
    }
  }
  __syncwarp();
}
