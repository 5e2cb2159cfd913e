// Runs CUDA kernels on a CPU: one fiber per thread. A warp runs as far as it can before another
// does, in an order that the test chooses. A result that depends on the order, or NaN from
// poisoned memory, shows a missing barrier or wait; a barrier that not all threads reach is an
// error, and so is an access outside the buffers that the test has registered.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "shim_fiber.h"

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("irc_shared")))
#define IRC_POINTER(type) shim::Checked<type>
#define IRC_DYNAMIC_SHARED(name) unsigned char* const name = shim::dynamic
#define IRC_LAUNCH(kernel, blocks, threads, shared, stream, ...) \
  shim::run(blocks, threads, shared, [=] { kernel(__VA_ARGS__); })

using cudaStream_t = void*;
constexpr int cudaErrorMisalignedAddress = 716;
struct Index { int x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
extern "C" __attribute__((weak, visibility("hidden"))) char __start_irc_shared[], __stop_irc_shared[];

namespace shim {
enum Error { NONE = 0, OUTSIDE = 700, UNALIGNED = 716, DEADLOCK = 999, SHARED_OUTSIDE = 998, MISUSE = 997 };
enum State { READY, AT_WARP, AT_GROUP, AT_BLOCK, AT_MEMORY, DONE };
struct Copy { void* to; const void* from; int bytes; };
struct Fiber {
  Context context;
  State state;
  std::unique_ptr<char[]> stack;
  std::function<bool()> ready;            // AT_MEMORY: what it waits for
  std::vector<std::vector<Copy>> groups;  // cp.async, oldest first; the last is not committed
};
constexpr int STACK = 1 << 18, MAX_SHARED = 227 * 1024;
static std::vector<Fiber> fibers;
static std::function<void()> body;
static Context scheduler;
static int current, order, error;
static long conflicts;  // cycles of shared memory beyond the least
static unsigned seed;
alignas(16) static char slots[1024][16];
alignas(1024) static unsigned char dynamic[MAX_SHARED];
static int dynamic_bytes;
static std::vector<std::function<void()>> in_flight;  // TMA copies, done when it suits the order

static void fail(Error found) { if (!error) error = found; }
static void wait(State state) {
  fibers[current].state = state;
  change(fibers[current].context, scheduler);
}
static void wait_until(std::function<bool()> ready) {
  fibers[current].ready = ready;
  wait(AT_MEMORY);
}
static void enter() { body(); wait(DONE); }

// Memory that a kernel may touch.
struct Range { const char* begin; const char* end; };
static std::vector<Range> ranges;
static Range range_of(const void* pointer) {
  // Buffers may lie behind one another: where one ends, another begins.
  for (const Range& r : ranges) if ((const char*)pointer == r.begin) return r;
  for (const Range& r : ranges) if ((const char*)pointer > r.begin && (const char*)pointer <= r.end) return r;
  fail(OUTSIDE);
  return {(const char*)pointer, (const char*)pointer};
}
static bool inside(const void* pointer, int bytes) {
  for (const Range& r : ranges) if ((const char*)pointer >= r.begin && (const char*)pointer + bytes <= r.end) return true;
  fail(OUTSIDE);
  return false;
}
static bool inside_shared(const void* pointer, int bytes) {
  const unsigned char* at = (const unsigned char*)pointer;
  if (at >= dynamic && at + bytes <= dynamic + dynamic_bytes) return true;
  fail(SHARED_OUTSIDE);
  return false;
}
template <typename T> struct Checked {
  T* pointer;
  long long count;
  Checked(T* given) : pointer(given), count(((T*)range_of(given).end) - given) {}
  T& operator[](long long i) const {
    alignas(16) static char nowhere[16];
    if (i >= 0 && i < count) return pointer[i];
    fail(OUTSIDE);
    memset(nowhere, 0xff, sizeof(nowhere));
    return *(T*)nowhere;
  }
};

static int random(int bound) { return (seed = seed * 1664525 + 1013904223) / 65536 % bound; }
// Whether what is asynchronous happens at once (a later writer is then seen too early), or as late
// as it may (a reader that does not wait sees what was there).
static bool at_once() { return order == 0 || (order == 2 && random(2)); }
static bool release(int first, int last, State state) {
  for (int t = first; t < last; ++t) if (fibers[t].state != state) return false;
  for (int t = first; t < last; ++t) fibers[t].state = READY;
  return true;
}
static bool release_memory(int threads) {
  bool any = false;
  for (int t = 0; t < threads; ++t) {
    if (fibers[t].state == AT_MEMORY && fibers[t].ready()) fibers[t].state = READY, any = true;
  }
  return any;
}
static void do_one(size_t which) {
  auto copy = in_flight[which];
  in_flight.erase(in_flight.begin() + which);
  copy();
}
static bool release_any(int threads) {
  if (release_memory(threads)) return true;
  for (int t = 0; t < threads; t += 128) if (release(t, std::min(t + 128, threads), AT_GROUP)) return true;
  if (release(0, threads, AT_BLOCK)) return true;
  // Threads that have returned count at a barrier of the block no more than on a device.
  if (in_flight.empty()) return false;
  do_one(order == 2 ? random(in_flight.size()) : 0);
  release_memory(threads);
  return true;
}
static void started(int thread);  // forgets what the last block left in flight
static void run_block(int threads) {
  if (__start_irc_shared) memset(__start_irc_shared, 0xff, __stop_irc_shared - __start_irc_shared);
  memset(dynamic, 0xff, dynamic_bytes);
  in_flight.clear();
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    f.state = READY, f.groups.assign(1, {}), started(t);
    prepare(f.context, f.stack.get(), STACK, enter);
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
      change(scheduler, fibers[t].context);
    }
    release(warp * 32, std::min(warp * 32 + 32, threads), AT_WARP);
  } while (!error && (!ready.empty() || release_any(threads)));
  for (int t = 0; t < threads; ++t) if (fibers[t].state != DONE) fail(DEADLOCK);
}
template <typename F> static void run(int blocks, int threads, int shared, F call) {
  if (error) return;
  if (shared > MAX_SHARED || threads > 1024) return fail(MISUSE);
  body = call, seed = 1, blockDim.x = threads, gridDim.x = blocks, dynamic_bytes = shared;
  while ((int)fibers.size() < threads) {
    fibers.emplace_back();
    fibers.back().stack = std::make_unique<char[]>(STACK);
  }
  for (blockIdx.x = 0; blockIdx.x < blocks && !error; ++blockIdx.x) run_block(threads);
}
}  // namespace shim

// What the test calls: the order of threads, and the memory of the next launch.
extern "C" void shim_reset(int order) {
  shim::order = order, shim::error = 0, shim::conflicts = 0;
  shim::ranges.clear();
}
extern "C" void shim_buffer(const char* memory, long long bytes) { shim::ranges.push_back({memory, memory + bytes}); }
extern "C" long shim_conflicts() { return shim::conflicts; }

static int cudaGetLastError() { return shim::error; }
static int cudaMallocAsync(void** found, size_t bytes, cudaStream_t) {
  *found = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(*found, 0xff, bytes);
  shim_buffer((char*)*found, bytes);
  return 0;
}
static int cudaFreeAsync(void* memory, cudaStream_t) {
  shim::ranges.pop_back();
  std::free(memory);
  return 0;
}
enum { cudaMemcpyHostToDevice = 1 };
static int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) { return memcpy(to, from, bytes), 0; }
static int cudaMallocManaged(void** found, size_t bytes) { return cudaMallocAsync(found, bytes, nullptr); }
static int cudaDeviceSynchronize() { return shim::error; }
using cudaEvent_t = double;
static void cudaEventCreate(cudaEvent_t*) {}
static void cudaEventRecord(cudaEvent_t&, cudaStream_t) {}
static void cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { *milliseconds = 0; }
static void __syncthreads() { shim::wait(shim::AT_BLOCK); }
static void __syncwarp() { shim::wait(shim::AT_WARP); }
template <typename T> static T __shfl_xor_sync(unsigned, T value, int distance) {
  memcpy(shim::slots[shim::current], &value, sizeof(T));
  __syncwarp();
  memcpy(&value, shim::slots[shim::current ^ distance], sizeof(T));
  __syncwarp();
  return value;
}
template <typename T> static T __shfl_sync(unsigned, T value, int lane) {
  memcpy(shim::slots[shim::current], &value, sizeof(T));
  __syncwarp();
  memcpy(&value, shim::slots[shim::current / 32 * 32 + lane], sizeof(T));
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
static float as_float(float x) { return x; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }
static double rsqrt(double x) { return 1 / std::sqrt(x); }

#include "shim_warp.h"
#include "shim_group.h"
