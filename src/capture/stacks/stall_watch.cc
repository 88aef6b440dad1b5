#include "capture/stacks/stall_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/text_escape.h"
#include "capture/json_text.h"
#include "capture/phase_clock.h"
#include "capture/stacks/kernel_view.h"
#include "luff/capture/stacks.h"
#include "luff/format/names.h"

namespace luff::capture {
namespace {

constexpr std::int64_t kTimesMedian = 20;
constexpr int kMostLooks = 12;
// A training that pauses in each epoch must not fill its run: after so many pauses the next must be twice as
// long, at most 64 times.
constexpr int kPauses = 16, kMostDoublings = 6;
constexpr std::size_t kMostThreads = 24, kMostProcesses = 16;

std::string Quoted(const std::string& text) { return JsonQuoted(ValidUtf8(text)); }

void AppendFrames(const PythonThread& stack, std::string* json) {
  *json += ",\"frames\":[";
  for (std::size_t i = 0; i < stack.frames.size(); ++i) {
    const PythonFrame& frame = stack.frames[i];
    *json += (i == 0 ? "{\"function\":" : ",{\"function\":") + Quoted(frame.function) +
             ",\"file\":" + Quoted(frame.file) + ",\"line\":" + std::to_string(frame.line) +
             (IsOwnFile(frame.file) ? ",\"own\":true}" : "}");
  }
  *json += "]";
  if (stack.cut) *json += ",\"cut\":true";
  if (stack.has_gil) *json += ",\"gil\":true";
}

void AppendKernel(const KernelThread& kernel, std::string* json) {
  *json += "\"thread\":" + std::to_string(kernel.thread) + ",\"name\":" + Quoted(kernel.name) +
           ",\"state\":" + Quoted(std::string(1, kernel.state)) + ",\"call\":" + Quoted(kernel.call) +
           ",\"place\":" + Quoted(kernel.place) + ",\"on\":" + Quoted(kernel.on);
}

/// A process that this one has started: its first thread. Its stack is read if it is a copy of this process.
std::string DescribeChild(pid_t child, const LuffPythonLayout* python) {
  std::string json = "{\"process\":" + std::to_string(child) + ",";
  AppendKernel(ThreadOf(child, child), &json);
  if (python != nullptr && python->version != 0) {
    ProcessMemory memory(child);
    const auto stacks = ReadStacksUntrusted(&memory, *python);
    // Python lists the newest first, and not every version corrects the number of the one that forked.
    const auto first = std::ranges::find(stacks, child, &PythonThread::native);
    if (!stacks.empty()) AppendFrames(first == stacks.end() ? stacks.back() : *first, &json);
  }
  return json + "}";
}

}  // namespace

void StallWatch::OnStep(std::int64_t global_step, std::int64_t took_ns) noexcept {
  last_step_ = global_step;
  took_ns_[took_++ % took_ns_.size()] = took_ns;
}

std::int64_t StallWatch::Limit() const noexcept {
  const std::size_t known = std::min(took_, took_ns_.size());
  const std::int64_t least = after_ns_ << std::min(pauses_ / kPauses, kMostDoublings);
  if (known == 0) return least;
  auto sorted = took_ns_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(known / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  return std::max(least, kTimesMedian * *middle);
}

void StallWatch::Look(std::int64_t now_ns, std::uint64_t steps, std::int32_t thread,
                      std::vector<std::pair<std::string, std::string>>* documents) {
  if (steps != steps_) {
    steps_ = steps;
    if (looks_ != 0) ++pauses_;
    progress_ns_ = now_ns;
    looks_ = same_ = 0;
    last_frames_.clear();
    return;
  }
  const std::int64_t stood = now_ns - progress_ns_;
  if (looks_ >= kMostLooks || stood < after_ns_ << looks_ || stood < Limit() << looks_) return;
  ++looks_;
  documents->emplace_back("stall", Describe(now_ns, thread));
}

std::string StallWatch::Describe(std::int64_t now_ns, std::int32_t thread) {
  const pid_t process = getpid();
  const auto self = static_cast<std::int32_t>(syscall(SYS_gettid));
  if (thread == 0) thread = process;
  const LuffPythonLayout* python = PythonHere();
  ProcessMemory memory(process);
  std::vector<PythonThread> stacks;
  if (python != nullptr) stacks = ReadStacksUntrusted(&memory, *python);
  const auto now = NowOf(thread);
  for (PythonThread& stack : stacks) {  // 3.10 keeps no numbers: only the thread that trains is known
    if (stack.native == 0 && now && stack.pthread_id == now->pthread_id) stack.native = thread;
  }
  const auto stack_of = [&](std::int32_t number) -> const PythonThread* {
    const auto at =
        std::ranges::find_if(stacks, [&](const PythonThread& stack) { return stack.native == number; });
    return at == stacks.end() ? nullptr : &*at;
  };
  const PythonThread* training = stack_of(thread);
  if (training != nullptr && !training->frames.empty()) {
    same_ = training->frames == last_frames_ ? same_ + 1 : 1;
    last_frames_ = training->frames;
  }
  std::string why;
  if (python == nullptr)
    why = "there is no Python in this process";
  else if (python->version == 0)
    why = python->why;
  else if (memory.refused())
    why = "the system does not let a process read its memory (/proc/self/mem)";
  else if (training == nullptr || training->frames.empty())
    why = "the thread that trains has no frames of Python";
  std::string json = "{\"after_step\":" + std::to_string(last_step_) +
                     ",\"seconds\":" + std::to_string(static_cast<double>(now_ns - progress_ns_) * 1e-9) +
                     ",\"looks\":" + std::to_string(looks_) + ",\"same\":" + std::to_string(same_) +
                     ",\"no_stack\":" + Quoted(why) + ",\"phase\":\"" +
                     (now ? std::string(format::PhaseName(static_cast<std::uint8_t>(now->phase))) : "") +
                     "\",\"threads\":[";
  std::vector<std::int32_t> threads = ThreadsOf(process);
  if (std::ranges::find(threads, thread) == threads.end()) threads.push_back(thread);  // beyond the bound
  std::erase_if(threads, [&](std::int32_t one) { return one == self && self != thread; });
  // The one that trains first, then those with frames of Python.
  std::ranges::stable_sort(threads, {}, [&](std::int32_t one) {
    return one == thread ? 0 : stack_of(one) != nullptr ? 1 : 2;
  });
  const std::size_t shown = std::min(threads.size(), kMostThreads);
  for (std::size_t i = 0; i < shown; ++i) {
    json += i == 0 ? "{" : ",{";
    AppendKernel(ThreadOf(process, threads[i]), &json);
    if (threads[i] == thread) json += ",\"trains\":true";
    if (const PythonThread* stack = stack_of(threads[i])) AppendFrames(*stack, &json);
    json += "}";
  }
  json += "],\"more_threads\":" + std::to_string(threads.size() - shown) + ",\"processes\":[";
  const std::vector<pid_t> children = ChildrenOf(process);
  const std::size_t told = std::min(children.size(), kMostProcesses);
  for (std::size_t i = 0; i < told; ++i) json += (i == 0 ? "" : ",") + DescribeChild(children[i], python);
  return json + "],\"more_processes\":" + std::to_string(children.size() - told) + "}";
}

}  // namespace luff::capture
