#include <sys/random.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "capture/file_thread.h"
#include "capture/session_impl.h"
#include "luff/base/env.h"
#include "luff/store/control.h"
#include "luff/store/trainings.h"

namespace luff::capture {
namespace {

constexpr std::uint32_t kMaxWorkers = 65'536;
constexpr std::chrono::seconds kOpenWithin{60};

std::array<std::uint8_t, 16> NewRunId(Env& env) {
  // Uses the system's randomness, so that no generator of the training is touched.
  std::array<std::uint8_t, 16> id{};
  std::uint64_t mixed = static_cast<std::uint64_t>(env.NowUnixNs()) * 0x9E3779B97F4A7C15ULL;
  // Bytes that getrandom does not fill stay zero; the clock fills them.
  [[maybe_unused]] const ssize_t random = getrandom(id.data(), id.size(), GRND_NONBLOCK);
  for (std::uint8_t& byte : id) {
    byte = static_cast<std::uint8_t>(byte ^ static_cast<std::uint8_t>(mixed));
    mixed = mixed << 11U | mixed >> 53U;
  }
  return id;
}

std::string WorkerFolder(const std::string& run_path, std::uint32_t worker) {
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "/w%04u", worker);
  return run_path + name.data();
}

/// Opens the folder of a process without a rank: the lowest number in which no process has written. Sets
/// `options->worker`.
Result<std::unique_ptr<store::WorkerWriter>> OpenFreeWorker(Env& env, store::WriterOptions* options,
                                                            const store::RunInfo& run) {
  options->fresh = true;
  for (options->worker = 0; options->worker < kMaxWorkers; ++options->worker) {
    const std::string folder = WorkerFolder(options->run_path, options->worker);
    const Status made = env.MakeDirectory(folder);
    if (made.code() == StatusCode::kAlreadyExists) {
      // An empty folder may be ours: over NFS, the reply to a successful mkdir may be lost.
      const auto names = env.List(folder);
      if (!names.ok() || !names->empty()) continue;
    } else if (!made.ok()) {
      return made;
    }
    auto writer = store::WorkerWriter::Open(*options, run);  // succeeds for one of those that find it empty
    if (writer.ok() || writer.status().code() != StatusCode::kAlreadyExists) return writer;
  }
  return ResourceExhausted("all of " + std::to_string(kMaxWorkers) + " worker numbers are taken in " +
                           options->run_path);
}

/// What a session needs from the run directory.
struct Opened {
  Config config;
  std::unique_ptr<store::WorkerWriter> writer;
  std::uint32_t worker = 0;
  std::uint64_t history = 0;  // control records up to here are not for this process
};

Result<Opened> OpenRun(const SessionOptions& options) {
  Opened opened;
  LUFF_ASSIGN_OR_RETURN(opened.config, ParseConfigUntrusted(options.config_json));
  Env& env = Env::Real();
  store::RunInfo wanted;
  wanted.run_id = NewRunId(env);
  wanted.created_unix_ns = env.NowUnixNs();
  wanted.world_size = options.world_size;
  wanted.command = options.command_json;
  LUFF_ASSIGN_OR_RETURN(const store::RunInfo run,
                        store::CreateRun(options.run_path, wanted, options.join, options.resume));
  store::WriterOptions writer_options;
  writer_options.run_path = options.run_path;
  writer_options.worker = options.worker;
  writer_options.max_bytes = opened.config.max_bytes;
  writer_options.summary_max_bytes = opened.config.summary_max_bytes;
  writer_options.direct_io = opened.config.direct_io;
  writer_options.sync = opened.config.sync;
  const bool ranked = options.worker != format::kNoId;
  LUFF_ASSIGN_OR_RETURN(opened.writer, ranked ? store::WorkerWriter::Open(writer_options, run)
                                              : OpenFreeWorker(env, &writer_options, run));
  opened.worker = writer_options.worker;
  // Decisions about an earlier part of the run do not apply to this one; a worker that joins late takes part
  // in open proposals.
  const auto records = store::ReadCommands(options.run_path, 0);
  if (records.ok()) {
    for (const store::ControlRecord& record : *records) {
      if (options.resume || record.proposal != 0 || record.kind == "outcome") opened.history = record.number;
    }
  }
  return opened;
}

/// Calls `open` on the thread that will write, so that a disk that does not answer delays the training by a
/// minute instead of hanging it. `open` must own what it refers to: it may outlive this call.
template <typename T>
Result<T> Within(FileThread& thread, const std::string& run_path, std::function<Result<T>()> open) {
  auto answer = std::make_shared<Result<T>>(Unavailable("not opened"));
  const auto task = [answer, open = std::move(open)] {
    try {
      *answer = open();
    } catch (const std::exception& e) {
      *answer = ResourceExhausted(std::string("the run cannot be opened: ") + e.what());
    }
  };
  if (!thread.Run(task, kOpenWithin)) {
    return Unavailable("the run directory did not answer within " + std::to_string(kOpenWithin.count()) +
                       " s: " + run_path);
  }
  return std::move(*answer);
}

}  // namespace

Result<std::string> FindRun(const std::string& first_run, const store::Training& wanted, std::uint32_t rank,
                            bool resume) {
  const std::unique_ptr<FileThread> thread = FileThread::Start();
  if (thread == nullptr) return ResourceExhausted("no thread can be started that looks for the run");
  return Within<std::string>(*thread, first_run,
                             [=] { return store::FindTraining(first_run, wanted, rank, resume); });
}

Result<std::unique_ptr<Session>> Session::Open(const SessionOptions& options) {
  std::unique_ptr<FileThread> thread;
  if (options.writer_thread) {
    thread = FileThread::Start();
    if (thread == nullptr) return ResourceExhausted("the writer thread cannot be started");
  }
  LUFF_ASSIGN_OR_RETURN(
      Opened opened, thread == nullptr
                         ? OpenRun(options)
                         : Within<Opened>(*thread, options.run_path, [options] { return OpenRun(options); }));
  const auto read = [path = options.run_path](std::uint64_t after) {
    return store::ReadCommands(path, after);
  };
  const auto decide = [path = options.run_path, worker = opened.worker](const store::ControlRecord& wanted) {
    store::ControlRecord record = wanted;
    record.author = "worker " + std::to_string(worker);
    return store::DecideControl(path, record);
  };
  std::unique_ptr<SamplerKeeper> sampler;
  if (!options.sampler.empty() && opened.config.profile != Profile::kOff) {
    sampler = std::make_unique<SamplerKeeper>(options.sampler, options.sampler_environment, options.run_path);
  }
  return SessionImpl::Start(std::move(opened.config), std::move(opened.writer), opened.worker,
                            std::move(thread), options.run_path + "/control", opened.history, read, decide,
                            QueueLimits{}, std::move(sampler));
}

}  // namespace luff::capture
