"""What a GPU of compute capability 8.0 does that C++ has no word for, one function each.

Each wraps one PTX instruction (PTX ISA, sections "ldmatrix", "mma", "cp.async"), under
``__CUDACC__``; an emulator defines functions of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

INSTRUCTIONS: Mapping[str, str] = {
    "irc_ldmatrix": """
#ifdef __CUDACC__
// Four 8 x 8 tiles of halves from shared memory; lane l gives the place of row l % 8 of tile l / 8.
template <bool TRANSPOSED> __device__ inline void irc_ldmatrix(unsigned (&to)[4], const void* row) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
  }
}
#endif
""",
    "irc_mma": """
#ifdef __CUDACC__
// c += a * b: 16 x 16 by 16 x 8 halves (float: 16 x 8 by 8 x 8 tf32), float sums; a warp together.
template <typename T> __device__ inline void irc_mma(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <> __device__ inline void irc_mma<__half>(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void irc_mma<__nv_bfloat16>(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void irc_mma<float>(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
""",
    "irc_tf32": """
#ifdef __CUDACC__
// The bits of a float, rounded to the ten of mantissa that tf32 products read.
__device__ inline unsigned irc_tf32(unsigned bits) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}
#endif
""",
    "irc_copy_async": """
#ifdef __CUDACC__
// Start a copy of BYTES from global to shared memory, or zeros; all copies before a commit are a
// group, and irc_copies_left<N> waits until at most N groups of this thread are under way.
template <int BYTES> __device__ inline void irc_copy_async(
    void* to, const void* from, bool inside) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  const int size = inside ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at), "l"(from), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(at), "l"(from), "n"(BYTES), "r"(size) : "memory");
  }
}
#endif
""",
    "irc_commit": """
#ifdef __CUDACC__
__device__ inline void irc_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#endif
""",
    "irc_copies_left": """
#ifdef __CUDACC__
template <int N> __device__ inline void irc_copies_left() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
#endif
""",
    "irc_place": """
// The byte of a tile in shared memory: 16-byte chunks of a row of BYTES change places by the row,
// so that eight rows at one column (SCALAR: four rows at eight words) lie in different banks.
template <int BYTES, bool SCALAR> __device__ inline int irc_place(int row, int byte) {
  constexpr int chunks = BYTES / 16;
  const int turn =
      SCALAR ? row % 4 * 2 : chunks >= 8 ? row % chunks : row / (8 / chunks) % chunks;
  return row * BYTES + (byte ^ turn * 16);
}
""",
}
