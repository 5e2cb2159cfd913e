// What a warpgroup of sm_90a does: barriers in memory, TMA copies of tiles, wgmma.
#pragma once

enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 };
struct CUtensorMap {
  int rank;
  const char* memory;
  unsigned long long sizes[5], strides[5];  // strides in bytes; the first is an element
  unsigned box[5];
};
// The limits of cuTensorMapEncodeTiled for tiles of halves, swizzled by 128 bytes.
static int irc_tensor_map(CUtensorMap* map, CUtensorMapDataType, int rank, const void* memory,
                          const unsigned long long* sizes, const unsigned long long* strides, const unsigned* box) {
  if (rank < 2 || rank > 5 || (uintptr_t)memory % 16 || box[0] * 2 > 128) return shim::MISUSE;
  *map = {rank, (const char*)memory, {}, {2}, {}};
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] == 0 || sizes[d] > 1ull << 32 || box[d] == 0 || box[d] > 256) return shim::MISUSE;
    if (d > 0 && (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40)) return shim::MISUSE;
    map->sizes[d] = sizes[d], map->box[d] = box[d];
    if (d > 0) map->strides[d] = strides[d - 1];
  }
  return 0;
}

namespace shim {
// A barrier in its eight bytes: arrivals still wanted, arrivals of a phase, the parity of the phase
// under way, and the bytes still wanted.
struct Barrier { int16_t wanted, count; int32_t state; };
constexpr int32_t MADE = 0x40000000, ODD = 0x20000000, ZERO = 0x10000000;  // bytes are counted from ZERO
static Barrier* barrier_at(unsigned long long* at) {
  static Barrier nowhere;
  Barrier* found = (Barrier*)at;
  if ((uintptr_t)at % 8 || !inside_shared(at, 8)) return nowhere = {1, 1, MADE + ZERO}, &nowhere;
  if (found->state < 0 || !(found->state & MADE)) return fail(MISUSE), nowhere = {1, 1, MADE + ZERO}, &nowhere;
  return found;
}
static void change(Barrier* b, int arrivals, int bytes) {
  b->wanted -= arrivals, b->state += bytes;
  if (b->wanted < 0) fail(MISUSE);
  if (b->wanted == 0 && (b->state & (ODD - 1)) == ZERO) b->wanted = b->count, b->state ^= ODD;
}
static void begin_copy(std::function<void()> copy) {
  if (at_once()) copy();
  else in_flight.push_back(copy);
}
static void copy_tile(unsigned char* to, const CUtensorMap map, unsigned long long* barrier, std::vector<int> start) {
  unsigned total = 1;
  for (int d = 0; d < map.rank; ++d) total *= map.box[d];
  if ((to - dynamic) % 1024) return fail(UNALIGNED);
  if (!inside_shared(to, total * 2)) return;
  for (unsigned e = 0; e < total; ++e) {
    unsigned rest = e;
    long long at = 0;
    bool within = true;
    for (int d = 0; d < map.rank; ++d) {
      const long long c = start[d] + (long long)(rest % map.box[d]);
      rest /= map.box[d];
      within &= c >= 0 && c < (long long)map.sizes[d];
      at += c * (long long)map.strides[d];
    }
    const unsigned place = (to - dynamic) + e / map.box[0] * 128 + e % map.box[0] * 2;
    unsigned char* const target = dynamic + (place ^ (place >> 7 & 7) << 4);
    if (!within) memset(target, 0, 2);
    else if (inside(map.memory + at, 2)) memcpy(target, map.memory + at, 2);
  }
  change(barrier_at(barrier), 0, -(int)(total * 2));
}

// A product that has begun: until its group has been waited for, its sums are NaN to see.
struct Product { float* sums; int n; bool a_rows, b_rows, bf16; unsigned long long a, b; };
struct Sums { float* at; std::vector<float> value; };
struct Group { std::vector<std::vector<Product>> groups{1}; std::vector<Sums> sums; };
static std::vector<Group> products(1024);
static void started(int thread) { products[thread] = {}; }
static const unsigned char* operand(unsigned long long descriptor, bool rows, int r, int k) {
  const int start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const int stride = (descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) fail(MISUSE);
  const int at = start + (rows ? r / 64 * leading + r % 64 * 2 + k / 8 * stride + k % 8 * 128
                               : r / 8 * stride + r % 8 * 128 + k * 2);
  const unsigned char* found = dynamic + (at ^ (at >> 7 & 7) << 4);
  return inside_shared(found, 2) ? found : dynamic;
}
static float half_at(const unsigned char* at, bool bf16) {
  if (bf16) { __nv_bfloat16 x; memcpy(&x, at, 2); return as_float(x); }
  __half x;
  memcpy(&x, at, 2);
  return as_float(x);
}
static void multiply(const Product& p, float* sums, int thread) {
  const int warp = thread / 32 % 4, lane = thread % 32;
  float a[2][16], b[16];
  for (int h = 0; h < 2; ++h) for (int k = 0; k < 16; ++k) {
    a[h][k] = half_at(operand(p.a, p.a_rows, warp * 16 + h * 8 + lane / 4, k), p.bf16);
  }
  for (int j = 0; j < p.n / 8; ++j) for (int e = 0; e < 2; ++e) {
    for (int k = 0; k < 16; ++k) b[k] = half_at(operand(p.b, p.b_rows, j * 8 + lane % 4 * 2 + e, k), p.bf16);
    for (int h = 0; h < 2; ++h) for (int k = 0; k < 16; ++k) sums[j * 4 + h * 2 + e] += a[h][k] * b[k];
  }
}
static void finish_products(Group& g, int left) {
  while ((int)g.groups.size() - 1 > left) {
    for (const Product& p : g.groups.front()) {
      for (Sums& s : g.sums) if (s.at == p.sums) multiply(p, s.value.data(), current);
    }
    g.groups.erase(g.groups.begin());
  }
  if (g.groups.size() > 1) return;
  for (const Sums& s : g.sums) std::copy(s.value.begin(), s.value.end(), s.at);
  g.sums.clear();
}
}  // namespace shim

static void irc_barrier_init(unsigned long long* barrier, int count) {
  if (!shim::inside_shared(barrier, 8)) return;
  *(shim::Barrier*)barrier = {(int16_t)count, (int16_t)count, shim::MADE + shim::ZERO};
}
static void irc_barrier_fence() {}
static void irc_barrier_expect(unsigned long long* barrier, int bytes) { shim::change(shim::barrier_at(barrier), 1, bytes); }
static void irc_barrier_arrive(unsigned long long* barrier) { shim::change(shim::barrier_at(barrier), 1, 0); }
static void irc_barrier_wait(unsigned long long* barrier, int parity) {
  const shim::Barrier* b = shim::barrier_at(barrier);
  shim::wait_until([=] { return (b->state & shim::ODD ? 1 : 0) != parity; });
}
#define IRC_COPY_TILE(rank, parameters, ...) \
  static void irc_copy_tile_##rank##d parameters { \
    const CUtensorMap copied = *map; \
    shim::begin_copy([=] { shim::copy_tile((unsigned char*)to, copied, barrier, {__VA_ARGS__}); }); \
  }
#define IRC_TO void *to, const CUtensorMap *map, unsigned long long *barrier
IRC_COPY_TILE(2, (IRC_TO, int c0, int c1), c0, c1)
IRC_COPY_TILE(3, (IRC_TO, int c0, int c1, int c2), c0, c1, c2)
IRC_COPY_TILE(4, (IRC_TO, int c0, int c1, int c2, int c3), c0, c1, c2, c3)
IRC_COPY_TILE(5, (IRC_TO, int c0, int c1, int c2, int c3, int c4), c0, c1, c2, c3, c4)

static unsigned long long irc_descriptor(const void* at, int leading, int stride) {
  const unsigned long long place = (const unsigned char*)at - shim::dynamic;
  return (place & 0x3ffff) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
static void irc_products_begin() {}
static void irc_products_commit() { shim::products[shim::current].groups.emplace_back(); }
template <int N> static void irc_products_left() {
  // A warpgroup is past its products when all its threads are.
  shim::finish_products(shim::products[shim::current], N);
  shim::wait(shim::AT_GROUP);
}
template <typename T, int N, int A_ROWS, int B_ROWS>
static void irc_product(float (&c)[N / 2], unsigned long long a, unsigned long long b) {
  auto& group = shim::products[shim::current];
  bool known = false;
  for (const auto& s : group.sums) known |= s.at == c;
  if (!known) {
    group.sums.push_back({c, std::vector<float>(c, c + N / 2)});
    std::fill(c, c + N / 2, NAN);
  }
  group.groups.back().push_back({c, N, A_ROWS != 0, B_ROWS != 0, sizeof(T) == 2 && std::is_same<T, __nv_bfloat16>::value, a, b});
}
template <int N> static void irc_products_done(float (&)[N]) {}
template <int N> static void irc_registers_less() {}
template <int N> static void irc_registers_more() {}
