// Reads the stacks of the interpreter that loads it, as a session's writer thread does.
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "capture/stacks/python_stacks.h"
#include "interpreter.h"

namespace {

std::string Look(const LuffPythonLayout& layout) {
  std::string out;
  luff::capture::ProcessMemory memory(getpid());
  for (const luff::capture::PythonThread& thread : luff::capture::ReadStacksUntrusted(&memory, layout)) {
    out += "thread " + std::to_string(thread.native) + " " + std::to_string(thread.pthread_id) +
           (thread.has_gil ? " gil\n" : " -\n");
    for (const luff::capture::PythonFrame& frame : thread.frames)
      out += frame.function + "\t" + frame.file + "\t" + std::to_string(frame.line) + "\n";
  }
  return out;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* probe() {
  static std::string out;
  LuffPythonLayout layout;
  LuffDescribeInterpreter(&layout);
  out = layout.version == 0 ? layout.why : Look(layout);
  return out.c_str();
}

/// Looks ten times a second, in a thread without Python's lock, and writes what it sees, with a line "end"
/// after it. Ends when nobody reads.
extern "C" __attribute__((visibility("default"))) void watch(int fd) {
  LuffPythonLayout layout;
  LuffDescribeInterpreter(&layout);
  std::thread([layout, fd] {
    for (;;) {
      const std::string text =
          (layout.version == 0 ? std::string(layout.why) + "\n" : Look(layout)) + "end\n";
      if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }).detach();
}
