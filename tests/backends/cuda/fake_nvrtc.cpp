// The functions of NVRTC that irc calls: the "machine code" of a file is its options and its text,
// and a file that says so is rejected.
#include <cstring>
#include <string>

namespace {
struct Program { std::string source, options, log; };
int programs = 0, compiled = 0;
}  // namespace

extern "C" {
int fake_programs() { return programs; }
int fake_compiled() { return compiled; }
const char* nvrtcGetErrorString(int code) { return code == 5 ? "NVRTC_ERROR_INVALID_OPTION" : "NVRTC_ERROR_COMPILATION"; }
int nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 9, 0; }
int nvrtcCreateProgram(Program** made, const char* source, const char*, int headers, const char**, const char**) {
  return ++programs, *made = new Program{source, "", ""}, headers;
}
int nvrtcCompileProgram(Program* program, int count, const char** options) {
  ++compiled;
  for (int i = 0; i < count; ++i) program->options += std::string(options[i]) + "\n";
  if (program->source.find("#error") == std::string::npos) return 0;
  return program->log = "kernel.cu(1): error: as the file says", 6;
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) { return *size = program->log.size() + 1, 0; }
int nvrtcGetProgramLog(Program* program, char* to) { return std::strcpy(to, program->log.c_str()), 0; }
int nvrtcGetCUBINSize(Program* program, size_t* size) { return *size = program->options.size() + program->source.size(), 0; }
int nvrtcGetCUBIN(Program* program, char* to) {
  const std::string both = program->options + program->source;
  return std::memcpy(to, both.data(), both.size()), 0;
}
int nvrtcDestroyProgram(Program** program) { return --programs, delete *program, *program = nullptr, 0; }
}
