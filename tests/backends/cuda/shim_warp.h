// What a warp does together: ldmatrix, mma.sync, and cp.async.
#pragma once

namespace shim {
// Cycles that 32 lanes need for 16 bytes each, in phases of eight lanes, over the least (4).
static void count_conflicts(const void* const (&rows)[32]) {
  for (int phase = 0; phase < 4; ++phase) {
    int most = 0, words[8] = {};
    for (int l = 0; l < 8; ++l) {
      const uintptr_t at = (uintptr_t)rows[phase * 8 + l];
      bool seen = false;
      for (int other = 0; other < l; ++other) seen |= (uintptr_t)rows[phase * 8 + other] == at;
      if (!seen) most = std::max(most, ++words[at / 16 % 8]);
    }
    conflicts += most - 1;
  }
}
}  // namespace shim

// What lanes hold is in the PTX ISA, section "Matrix Fragments for mma.m16n8k16".
template <bool TRANSPOSED> static void irc_ldmatrix(unsigned (&to)[4], const void* row) {
  if ((uintptr_t)row % 16) shim::fail(shim::UNALIGNED);
  if (!shim::inside_shared(row, 16)) return;
  memcpy(shim::slots[shim::current], &row, sizeof(row));
  __syncwarp();
  const int warp = shim::current / 32 * 32, lane = shim::current % 32;
  const void* rows[32];
  for (int l = 0; l < 32; ++l) memcpy(&rows[l], shim::slots[warp + l], sizeof(row));
  if (lane == 0) shim::count_conflicts(rows);
  for (int tile = 0; tile < 4; ++tile) {
    uint16_t pair[2];
    for (int h = 0; h < 2; ++h) {
      const int i = TRANSPOSED ? lane % 4 * 2 + h : lane / 4, j = TRANSPOSED ? lane / 4 : lane % 4 * 2 + h;
      memcpy(&pair[h], (const char*)rows[tile * 8 + i] + 2 * j, 2);
    }
    memcpy(&to[tile], pair, 4);
  }
  __syncwarp();
}
template <typename T> static float irc_element(unsigned bits, int h) {
  T found;
  memcpy(&found, (char*)&bits + sizeof(T) * h, sizeof(T));
  return as_float(found);
}
template <typename T> static void irc_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static unsigned a_all[1024][4], b_all[1024][2];
  memcpy(a_all[shim::current], a, 16);
  b_all[shim::current][0] = b0, b_all[shim::current][1] = b1;
  __syncwarp();
  const int warp = shim::current / 32 * 32, lane = shim::current % 32;
  constexpr int each = 4 / sizeof(T);  // elements of k in one register
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 8 * each; ++k) {
      const int at = k / each % 4, far = k / each / 4;
      const unsigned left = a_all[warp + row % 8 * 4 + at][row / 8 + far * 2];
      const unsigned right = b_all[warp + column * 4 + at][far];
      c[e] += irc_element<T>(left, k % each) * irc_element<T>(right, k % each);
    }
  }
  __syncwarp();
}
static unsigned irc_tf32(unsigned bits) { return (bits + 0x1000) & 0xffffe000u; }

// A copy is done when it is issued, or not before this thread waits for its group.
template <int BYTES> static void irc_copy_async(void* to, const void* from, bool inside) {
  static const char zeros[16] = {};
  if ((uintptr_t)to % BYTES || (inside && (uintptr_t)from % BYTES)) shim::fail(shim::UNALIGNED);
  if (!shim::inside_shared(to, BYTES) || (inside && !shim::inside(from, BYTES))) return;
  const shim::Copy copy{to, inside ? from : zeros, BYTES};
  if (shim::at_once()) memcpy(copy.to, copy.from, BYTES);
  else shim::fibers[shim::current].groups.back().push_back(copy);
}
static void irc_commit() { shim::fibers[shim::current].groups.emplace_back(); }
template <int N> static void irc_copies_left() {
  auto& groups = shim::fibers[shim::current].groups;
  while ((int)groups.size() - 1 > N) {
    for (const shim::Copy& copy : groups.front()) memcpy(copy.to, copy.from, copy.bytes);
    groups.erase(groups.begin());
  }
}
