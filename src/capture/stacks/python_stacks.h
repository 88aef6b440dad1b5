#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "capture/stacks/process_memory.h"
#include "luff/capture/python_layout.h"

/// Stacks of Python's threads, read from memory: neither Python's lock nor any of its functions is needed, so
/// a thread that hangs with the lock held is seen, too.
namespace luff::capture {

struct PythonFrame {
  std::string function, file;
  int line = -1;  // -1: not known
  friend bool operator==(const PythonFrame&, const PythonFrame&) = default;
};

struct PythonThread {
  std::int64_t native = 0;          // the system's number; 0: this version of Python does not keep it
  std::uint64_t pthread_id = 0;     // of pthread_self()
  bool has_gil = false;             // it holds Python's lock
  bool cut = false;                 // deeper frames are left out
  std::vector<PythonFrame> frames;  // the innermost first
};

inline constexpr std::size_t kMaxFrames = 64, kMaxPythonThreads = 64;

/// Reads the frames of all threads, each at most `most_frames` deep. A thread that runs meanwhile is read
/// again twice, and then left out if its stack is not twice the same at its top.
[[nodiscard]] std::vector<PythonThread> ReadStacksUntrusted(ProcessMemory* memory,
                                                            const LuffPythonLayout& layout,
                                                            std::size_t most_frames = kMaxFrames);
/// The same of one thread. `native`: the system's number; `pthread_id` is used where Python does not keep it.
/// Without frames if there is none.
[[nodiscard]] PythonThread ReadStackUntrusted(ProcessMemory* memory, const LuffPythonLayout& layout,
                                              std::int64_t native, std::uint64_t pthread_id,
                                              std::size_t most_frames = kMaxFrames);

}  // namespace luff::capture
