#include "luff/profile/stacks.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/query/run_pieces.h"

namespace luff::profile {
namespace {

using Json = nlohmann::json;
constexpr JsonLimits kLimits{4ULL << 20, 8};
constexpr std::size_t kMostThreads = 64, kMostFrames = 64, kMostLines = 1024, kMostText = 4096;

std::string TextOf(const Json& object, const char* key) {
  std::string text = TextMember(object, key);
  if (text.size() > kMostText) text.resize(kMostText);
  return text;
}

StackThread ThreadFrom(const Json& json) {
  StackThread out;
  out.thread = WholeMember(json, "thread", 0);
  out.process = WholeMember(json, "process", 0);
  out.name = TextOf(json, "name");
  out.state = TextOf(json, "state");
  out.call = TextOf(json, "call");
  out.place = TextOf(json, "place");
  out.on = TextOf(json, "on");
  out.trains = FlagMember(json, "trains");
  out.has_gil = FlagMember(json, "gil");
  const auto frames = json.find("frames");
  if (frames == json.end() || !frames->is_array()) return out;
  for (const Json& frame : *frames) {
    if (out.frames.size() == kMostFrames) break;
    if (!frame.is_object()) continue;
    out.frames.push_back({TextOf(frame, "function"), TextOf(frame, "file"), WholeMember(frame, "line", -1),
                          FlagMember(frame, "own")});
  }
  return out;
}

std::vector<StackThread> ThreadsFrom(const Json& json, const char* key) {
  std::vector<StackThread> out;
  const auto list = json.find(key);
  if (list == json.end() || !list->is_array()) return out;
  for (const Json& one : *list) {
    if (out.size() == kMostThreads) break;
    if (one.is_object()) out.push_back(ThreadFrom(one));
  }
  return out;
}

std::string_view FileName(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string FrameText(const StackFrame& frame) {
  std::string text(FileName(frame.file));
  if (frame.line >= 0) text += fmt::format(":{}", frame.line);
  return text + " " + frame.function;
}

const StackThread* TrainingThread(const Stall& stall) {
  const auto at = std::ranges::find_if(stall.threads, &StackThread::trains);
  return at == stall.threads.end() ? nullptr : &*at;
}

const StackFrame* FrameIn(const StackThread& thread, std::string_view end_of_file) {
  const auto at = std::ranges::find_if(
      thread.frames, [&](const StackFrame& frame) { return frame.file.ends_with(end_of_file); });
  return at == thread.frames.end() ? nullptr : &*at;
}

/// What the kernel says; "" if nothing.
std::string KernelText(const StackThread& thread) {
  const std::string on = thread.on.empty() ? "" : " of " + thread.on;
  if (thread.state == "R") return "runs (it computes, or is about to)";
  if (thread.state == "D")
    return "waits for a disk or a network file system" + (on.empty() ? "" : ":" + on.substr(3));
  if (thread.state == "T" || thread.state == "t") return "is stopped, by a signal or a debugger";
  const std::string& call = thread.call;
  constexpr std::array kSleeps{"nanosleep", "clock_nanosleep", "pause"};
  constexpr std::array kMany{"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"};
  constexpr std::array kProcesses{"wait4", "waitid"};
  constexpr std::array kOpen{"open", "openat"};
  const auto is_in = [&](const auto& list) { return std::ranges::find(list, call) != list.end(); };
  if (call == "futex") return "waits for a lock or another thread (futex)";
  if (is_in(kSleeps)) return "sleeps (" + call + ")";
  if (is_in(kMany)) return "waits for a pipe or a connection (" + call + ")";
  if (is_in(kProcesses)) return "waits for a process to end (" + call + ")";
  if (is_in(kOpen)) return "waits for a file to open (" + call + ")";
  if (!call.empty()) return "waits in " + call + "()" + on;
  if (!thread.place.empty()) return "waits in the kernel (" + thread.place + ")";
  return "";
}

bool IsLoaderWorker(const StackThread& process) {
  return std::ranges::any_of(process.frames,
                             [](const StackFrame& frame) { return frame.function == "_worker_loop"; });
}

/// Where the processes stand that make a loader's batches.
std::string LoaderWorkersText(const Stall& stall) {
  std::string text;
  int told = 0, all = 0;
  for (const StackThread& process : stall.processes) {
    if (!IsLoaderWorker(process)) continue;
    ++all;
    // One that waits for work waits in the loader's own code.
    if (!std::ranges::any_of(process.frames, &StackFrame::own) || ++told > 2) continue;
    const std::string waits = KernelText(process);
    text += fmt::format("; its process {} is in {}{}", process.process, PlaceOf(process),
                        waits.empty() ? "" : " and " + waits);
  }
  if (all != 0 && told == 0) text = "; none of its processes is in code of the training";
  return text;
}

}  // namespace

std::optional<Stall> ParseStallUntrusted(std::string_view json) {
  const Json parsed = TryParseJson(json, kLimits);
  if (!parsed.is_object() || !parsed.contains("threads")) return std::nullopt;
  Stall out;
  out.after_step = WholeMember(parsed, "after_step", -1);
  if (const auto seconds = parsed.find("seconds"); seconds != parsed.end() && seconds->is_number())
    out.seconds = seconds->get<double>();
  out.looks = WholeMember(parsed, "looks", 0);
  out.same = WholeMember(parsed, "same", 0);
  out.phase = TextOf(parsed, "phase");
  out.no_stack = TextOf(parsed, "no_stack");
  out.threads = ThreadsFrom(parsed, "threads");
  out.processes = ThreadsFrom(parsed, "processes");
  return out;
}

std::vector<Stall> StallsOf(const query::Trial& trial) {
  std::vector<Stall> out;
  for (const query::WorkerInfo& worker : trial.workers()) {
    auto stall = ParseStallUntrusted(query::DocumentOf(trial, worker.worker, "stall"));
    if (!stall) continue;
    stall->worker = worker.worker;
    const bool went_on = worker.last_global_step > stall->after_step;
    stall->last = !went_on && worker.ended && worker.reason == format::EndReason::kCompleted;
    stall->over = went_on || stall->last;
    out.push_back(std::move(*stall));
  }
  return out;
}

std::string PlaceOf(const StackThread& thread) {
  if (thread.frames.empty()) return "";
  const auto own = std::ranges::find_if(thread.frames, &StackFrame::own);
  return FrameText(own == thread.frames.end() ? thread.frames.front() : *own);
}

bool WaitsForRanks(const Stall& stall) {
  const StackThread* thread = TrainingThread(stall);
  return thread != nullptr && FrameIn(*thread, "/torch/distributed/distributed_c10d.py") != nullptr;
}

std::string WaitOf(const Stall& stall) {
  const StackThread* thread = TrainingThread(stall);
  if (thread == nullptr) return "";
  std::string kernel = KernelText(*thread);
  std::string text;
  if (const StackFrame* call = FrameIn(*thread, "/torch/distributed/distributed_c10d.py")) {
    text = fmt::format("waits in {} of torch.distributed", call->function);
  } else if (FrameIn(*thread, "/torch/utils/data/dataloader.py") != nullptr && thread->state != "R" &&
             std::ranges::any_of(stall.processes, IsLoaderWorker)) {
    text = "waits for a batch of a DataLoader" + LoaderWorkersText(stall);
  } else if (const auto own = std::ranges::find_if(thread->frames, &StackFrame::own);
             own != thread->frames.end() && own != thread->frames.begin()) {
    text = fmt::format("{}{}in {}", kernel, kernel.empty() ? "is " : ", ", FrameText(thread->frames.front()));
  } else {
    text = kernel;
  }
  if (thread->has_gil && thread->state != "R")
    text += (text.empty() ? "" : "; it ") +
            std::string("is in C code that holds Python's lock (GIL), so no other Python thread runs");
  return text;
}

std::string StandOf(const Stall& stall) {
  const StackThread* thread = TrainingThread(stall);
  const std::string place = thread == nullptr ? "" : PlaceOf(*thread);
  const std::string waits = WaitOf(stall);
  if (place.empty()) return waits.empty() ? "" : "the thread that trains " + waits;
  return waits.empty() ? place : place + ", which " + waits;
}

std::string CulpritsOf(const query::Trial& trial, const std::vector<Stall>& stalls) {
  const bool waits =
      std::ranges::any_of(stalls, [](const Stall& one) { return !one.over && WaitsForRanks(one); });
  if (!waits) return "";
  std::map<std::uint32_t, query::WorkerInfo> known;
  for (const query::WorkerInfo& worker : trial.workers()) known[worker.worker] = worker;
  std::string text;
  int told = 0;
  for (std::uint32_t rank = 0; rank < std::min(trial.world_size(), 1U << 16); ++rank) {
    const auto worker = known.find(rank);
    const auto stall =
        std::ranges::find_if(stalls, [&](const Stall& one) { return one.worker == rank && !one.over; });
    if (stall != stalls.end() && WaitsForRanks(*stall)) continue;
    std::string does;
    if (worker == known.end())
      does = "has not recorded anything";
    else if (worker->second.ended)
      does = "has ended its training";
    else if (!worker->second.alive)
      does = "gives no sign of life";
    else if (stall != stalls.end() && !StandOf(*stall).empty())
      does = "is elsewhere: in " + StandOf(*stall);
    if (does.empty()) continue;
    if (++told > 3) break;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", rank, does);
  }
  return text;
}

std::vector<LineTime> ParseLinesUntrusted(std::string_view json) {
  std::vector<LineTime> out;
  const Json parsed = TryParseJson(json, kLimits);
  const auto lines = parsed.is_object() ? parsed.find("lines") : parsed.end();
  if (!parsed.is_object() || lines == parsed.end() || !lines->is_array()) return out;
  std::array<double, format::kPhaseCount> all{};
  for (const Json& line : *lines) {
    if (out.size() == kMostLines) break;
    if (!line.is_object()) continue;
    LineTime one;
    const std::string phase = TextOf(line, "phase");
    std::size_t number = 0;
    while (number < format::kPhaseCount && format::PhaseName(static_cast<std::uint8_t>(number)) != phase)
      ++number;
    const std::int64_t count = WholeMember(line, "count", 0);
    if (number == format::kPhaseCount || count <= 0) continue;
    one.phase = static_cast<format::Phase>(number);
    one.at = {TextOf(line, "function"), TextOf(line, "file"), WholeMember(line, "line", -1), true};
    one.inside = TextOf(line, "inside");
    one.count = static_cast<std::uint64_t>(count);
    all[number] += static_cast<double>(count);
    out.push_back(std::move(one));
  }
  for (LineTime& one : out)
    one.share = static_cast<double>(one.count) / all[static_cast<std::size_t>(one.phase)];
  std::ranges::stable_sort(out, std::greater(), &LineTime::count);
  return out;
}

std::vector<LineTime> LinesOf(const query::Trial& trial, std::uint32_t worker) {
  return ParseLinesUntrusted(query::DocumentOf(trial, worker, "lines"));
}

}  // namespace luff::profile
