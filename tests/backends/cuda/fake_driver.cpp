// The functions of the CUDA driver that launches use, on the host: a "module" is a shared library
// whose kernels run thread by thread (shim.h), and every call is checked against what the CUDA
// Driver API asks of its caller. Calls are noted as text, for tests to read.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
using Call = int (*)(void** given, int blocks, int threads, int shared);
struct Function { std::string name; Call call; int shared = 0; };
std::string notes;
bool initialised = false;
thread_local void* context = nullptr;
std::map<void*, Function> functions;
void* expected = nullptr;  // the stream
int order = 0;
struct Map { int rank; const char* memory; unsigned long long sizes[5], strides[5]; unsigned box[5]; };  // shim_group.h

template <typename... A> void note(const char* format, A... a) {
  char line[512];
  std::snprintf(line, sizeof(line), format, a...);
  notes += line, notes += "\n";
}
}  // namespace

extern "C" {
const char* fake_notes() { return notes.c_str(); }
void fake_reset(void* stream, int of_threads) { notes.clear(), expected = stream, order = of_threads; }

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : (initialised = true, SUCCESS); }
int cuCtxGetCurrent(void** found) { return initialised ? (*found = context, SUCCESS) : NOT_INITIALIZED; }
int cuCtxSetCurrent(void* given) { return context = given, SUCCESS; }
int cuDeviceGet(int* found, int ordinal) { return ordinal ? 101 : (*found = 0, SUCCESS); }
int cuDevicePrimaryCtxRetain(void** found, int) { return note("retain"), *found = &initialised, SUCCESS; }
int cuGetErrorString(int code, const char** text) {
  static const std::map<int, const char*> known = {
      {INVALID_VALUE, "invalid argument"}, {INVALID_IMAGE, "device kernel image is invalid"},
      {INVALID_CONTEXT, "invalid device context"}, {INVALID_HANDLE, "invalid resource handle"},
      {NOT_FOUND, "named symbol not found"}, {LAUNCH_FAILED, "unspecified launch failure"}};
  const auto found = known.find(code);
  return found == known.end() ? INVALID_VALUE : (*text = found->second, SUCCESS);
}
int cuModuleLoadData(void** module, const char* image) {
  if (!context) return INVALID_CONTEXT;
  *module = dlopen(image, RTLD_NOW | RTLD_LOCAL);
  if (!*module) note("%s", dlerror());
  return *module ? SUCCESS : INVALID_IMAGE;
}
int cuModuleGetFunction(void** found, void* module, const char* name) {
  *found = dlsym(module, (std::string("host_") + name).c_str());
  if (!*found) return NOT_FOUND;
  if (!functions.count(*found)) functions[*found] = {name, (Call)*found};
  return note("function %s", name), SUCCESS;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (!functions.count(function) || attribute != 8 || value > 227 * 1024) return INVALID_VALUE;
  functions[function].shared = value;
  return SUCCESS;
}
int cuLaunchKernel(void* at, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void* stream, void** given, void** extra) {
  if (!context) return INVALID_CONTEXT;
  if (!functions.count(at)) return INVALID_HANDLE;
  const Function& function = functions[at];
  if (!blocks || !threads || threads > 1024 || y != 1 || z != 1 || ty != 1 || tz != 1 || !given || extra) return INVALID_VALUE;
  if (stream != expected) return note("wrong stream"), INVALID_HANDLE;
  // Beyond 48 KiB a function must have been allowed them.
  if (shared > 48 * 1024 && (int)shared > function.shared) return INVALID_VALUE;
  void* image = nullptr;
  Dl_info info;
  if (dladdr(at, &info)) image = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  ((void (*)(int))dlsym(image, "shim_reset"))(order);
  const int error = function.call(given, blocks, threads, shared);
  note("launch %s %u %u %u %d", function.name.c_str(), blocks, threads, shared, error);
  return error ? LAUNCH_FAILED : SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (stream != expected) return note("wrong stream"), INVALID_HANDLE;
  return note("copy %zu", bytes), std::memmove((void*)to, (const void*)from, bytes), SUCCESS;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* memory, const uint64_t* sizes, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion, int fill) {
  if ((uintptr_t)map % 64 || (uintptr_t)memory % 16 || rank < 1 || rank > 5) return INVALID_VALUE;
  if ((type != 6 && type != 9) || interleave != 0 || swizzle != 3 || promotion != 3 || fill != 0) return INVALID_VALUE;
  Map made = {(int)rank, (const char*)memory, {}, {2}, {}};
  for (unsigned d = 0; d < rank; ++d) {
    if (!sizes[d] || sizes[d] > 1ull << 32 || !box[d] || box[d] > 256 || steps[d] != 1) return INVALID_VALUE;
    if (d && (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40)) return INVALID_VALUE;
    made.sizes[d] = sizes[d], made.box[d] = box[d];
    if (d) made.strides[d] = strides[d - 1];
  }
  if (box[0] * 2 > 128) return INVALID_VALUE;
  note("encode %d %u", type, rank);
  std::memcpy(map, &made, sizeof(made));
  return SUCCESS;
}
}
