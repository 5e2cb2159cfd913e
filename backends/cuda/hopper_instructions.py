"""What compute capability 9.0a does that C++ has no word for: barriers in memory, TMA, wgmma.

PTX ISA, sections "mbarrier", "cp.async.bulk.tensor", "Asynchronous warpgroup-level matrix
instructions"; the order of operands is CUTLASS's. An emulator defines functions of the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PTX_TYPES: Mapping[str, str] = {"__half": "f16", "__nv_bfloat16": "bf16"}

BARRIERS = """
#ifdef __CUDACC__
// Barriers in shared memory. A phase ends when COUNT threads have arrived and all expected bytes
// are there; a wait for parity p returns once a phase of parity p has ended.
__device__ inline unsigned irc_shared(const void* at) {
  return (unsigned)__cvta_generic_to_shared(at);
}
__device__ inline void irc_barrier_init(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :: "r"(irc_shared(barrier)), "r"(count) : "memory");
}
// What was initialised is seen by the unit that copies.
__device__ inline void irc_barrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void irc_barrier_expect(unsigned long long* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(irc_shared(barrier)), "r"(bytes) : "memory");
}
__device__ inline void irc_barrier_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :: "r"(irc_shared(barrier)) : "memory");
}
__device__ inline void irc_barrier_wait(unsigned long long* barrier, int parity) {
  unsigned done = 0;
  while (!done) {
    asm volatile("{\\n.reg .pred p;\\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
                 "selp.u32 %0, 1, 0, p;\\n}"
                 : "=r"(done) : "r"(irc_shared(barrier)), "r"(parity) : "memory");
  }
}
#endif
"""

TENSOR_MAP = """
#ifdef __CUDACC_RTC__
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
#elif defined(__CUDACC__)
#include <cuda.h>
// Describe a tensor of halves for TMA: sizes and box in elements, strides (of all dims but the
// first, which is contiguous) in bytes; tiles are swizzled by 128 bytes, zero outside.
static int irc_tensor_map(CUtensorMap* map, CUtensorMapDataType type, int rank, const void* memory,
                          const unsigned long long* sizes, const unsigned long long* strides,
                          const unsigned* box) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t code =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
  if (code != cudaSuccess) return (int)code;
  if (found != cudaDriverEntryPointSuccess) return (int)cudaErrorNotSupported;
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult done = ((Encode)entry)(
      map, type, (cuuint32_t)rank, (void*)memory, (const cuuint64_t*)sizes,
      (const cuuint64_t*)strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return done == CUDA_SUCCESS ? 0 : (int)cudaErrorInvalidValue;
}
#endif
"""

PRODUCTS = """
#ifdef __CUDACC__
// What a product reads: where a tile begins in shared memory (swizzled by 128 bytes), and the bytes
// from one block of 64 along m or n to the next (leading) and from eight rows to the next (stride).
__device__ inline unsigned long long irc_descriptor(const void* at, int leading, int stride) {
  return (unsigned long long)((__cvta_generic_to_shared(at) & 0x3ffff) >> 4) |
         (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
         1ull << 62;
}
// Registers of sums are the products' from the fence until irc_products_left.
__device__ inline void irc_products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void irc_products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ inline void irc_products_left() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
// From here on sums are plain registers: a compiler that knows nothing of the wait must not read
// them earlier.
template <int N> __device__ inline void irc_products_done(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i]) :: "memory");
}
// A warpgroup gives registers back, or takes them.
template <int N> __device__ inline void irc_registers_less() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N> __device__ inline void irc_registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
#endif
"""


def hopper_helpers(text: str) -> str:
    """Return the definitions that a kernel on 9.0a uses, for the ranks and widths that it names."""
    if "irc_tensor_map" not in text:
        return ""
    ranks = sorted({int(n) for n in re.findall(r"irc_copy_tile_(\d)d\(", text)})
    widths = sorted({(m[0], int(m[1])) for m in re.findall(r"irc_product<(\w+), (\d+),", text)})
    return (
        TENSOR_MAP
        + BARRIERS
        + "".join(_copy(rank) for rank in ranks)
        + PRODUCTS
        + "".join(_product(kind, n) for kind, n in widths)
    )


def _copy(rank: int) -> str:
    """Return the copy of a tile of a tensor of some rank by TMA."""
    coordinates = ", ".join(f"int c{d}" for d in range(rank))
    places = ", ".join(f"%{d + 3}" for d in range(rank))
    values = ", ".join(f'"r"(c{d})' for d in range(rank))
    return f"""
#ifdef __CUDACC__
// Begin the copy of one tile of a tensor, by one thread; the barrier counts its bytes.
__device__ inline void irc_copy_tile_{rank}d(
    void* to, const CUtensorMap* map, unsigned long long* barrier, {coordinates}) {{
  asm volatile(
      "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {{{places}}}], [%2];"
      :: "r"(irc_shared(to)), "l"(map), "r"(irc_shared(barrier)), {values} : "memory");
}}
#endif
"""


def _product(kind: str, n: int) -> str:
    """Return the product of 64 x 16 by 16 x n elements of a type, by a warpgroup."""
    count = n // 2
    sums = ",\n      ".join(
        ", ".join(f'"+f"(c[{i}])' for i in range(start, start + 8)) for start in range(0, count, 8)
    )
    places = ",".join(f"%{i}" for i in range(count))
    lines = [places[i : i + 80] for i in range(0, len(places), 80)]
    text = "\n      ".join(f'"{line}"' for line in lines)
    ptx = PTX_TYPES[kind]
    return f"""
#ifdef __CUDACC__
// Begin c += a * b, 64 x 16 by 16 x {n}; A_ROWS, B_ROWS: the operand runs along m or n, not k.
template <typename T, int N, int A_ROWS, int B_ROWS> __device__ inline void irc_product(
    float (&c)[{count}], unsigned long long a, unsigned long long b) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx}.{ptx} {{"
      {text}
      "}}, %{count}, %{count + 1}, p, 1, 1, %{count + 2}, %{count + 3};\\n}}"
      : {sums}
      : "l"(a), "l"(b), "n"(A_ROWS), "n"(B_ROWS));
}}
#endif
"""
