// Reads the stacks of the interpreter that loads it, as a session's writer thread does.
#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "capture/stacks/python_stacks.h"
#include "interpreter.h"

extern "C" __attribute__((visibility("default"))) const char* probe() {
  static std::string out;
  LuffPythonLayout layout;
  LuffDescribeInterpreter(&layout);
  if (layout.version == 0) return (out = layout.why).c_str();
  luff::capture::ProcessMemory memory(getpid());
  out.clear();
  for (const luff::capture::PythonThread& thread : luff::capture::ReadStacksUntrusted(&memory, layout)) {
    out += "thread " + std::to_string(thread.native) + " " + std::to_string(thread.pthread_id) +
           (thread.has_gil ? " gil\n" : " -\n");
    for (const luff::capture::PythonFrame& frame : thread.frames)
      out += frame.function + "\t" + frame.file + "\t" + std::to_string(frame.line) + "\n";
  }
  return out.c_str();
}
