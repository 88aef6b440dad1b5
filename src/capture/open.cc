#include <array>
#include <cstdio>
#include <random>
#include <utility>

#include "capture/session_impl.h"
#include "luff/base/env.h"
#include "luff/store/control.h"

namespace luff::capture {
namespace {

constexpr std::uint32_t kMaxWorkers = 65'536;

std::array<std::uint8_t, 16> NewRunId(Env& env) {
  // The system's own randomness: no generator of the training is touched.
  std::array<std::uint8_t, 16> id{};
  std::uint64_t mixed = static_cast<std::uint64_t>(env.NowUnixNs()) * 0x9E3779B97F4A7C15ULL;
  if (std::FILE* source = std::fopen("/dev/urandom", "rb"); source != nullptr) {
    static_cast<void>(std::fread(id.data(), 1, id.size(), source));
    std::fclose(source);
  }
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

// A process without a rank takes the lowest number whose folder it can make itself.
Result<std::uint32_t> ClaimWorker(Env& env, const std::string& run_path) {
  for (std::uint32_t worker = 0; worker < kMaxWorkers; ++worker) {
    const Status made = env.MakeDirectory(WorkerFolder(run_path, worker));
    if (made.ok()) return worker;
    if (made.code() != StatusCode::kAlreadyExists) return made;
  }
  return ResourceExhausted("all of " + std::to_string(kMaxWorkers) + " worker numbers are taken in " +
                           run_path);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::Open(const SessionOptions& options) {
  LUFF_ASSIGN_OR_RETURN(Config config, ParseConfigUntrusted(options.config_json));
  Env& env = Env::Real();
  store::RunInfo wanted;
  wanted.run_id = NewRunId(env);
  wanted.created_unix_ns = env.NowUnixNs();
  wanted.world_size = options.world_size;
  wanted.command = options.command_json;
  LUFF_ASSIGN_OR_RETURN(const store::RunInfo run,
                        store::CreateRun(options.run_path, wanted, options.join, options.resume));
  std::uint32_t worker = options.worker;
  if (worker == format::kNoId) {
    LUFF_ASSIGN_OR_RETURN(worker, ClaimWorker(env, options.run_path));
  }
  store::WriterOptions writer_options;
  writer_options.run_path = options.run_path;
  writer_options.worker = worker;
  writer_options.max_bytes = config.max_bytes;
  writer_options.summary_max_bytes = config.summary_max_bytes;
  writer_options.direct_io = config.direct_io;
  writer_options.sync = config.sync;
  LUFF_ASSIGN_OR_RETURN(std::unique_ptr<store::WorkerWriter> writer,
                        store::WorkerWriter::Open(writer_options, run));
  const auto read = [path = options.run_path](std::uint64_t after) {
    return store::ReadControl(path, after, nullptr);
  };
  const auto decide = [path = options.run_path, worker](const store::ControlRecord& wanted_decision) {
    store::ControlRecord record = wanted_decision;
    record.author = "worker " + std::to_string(worker);
    return store::DecideControl(path, record);
  };
  // Decisions about the earlier life of the run are not meant for this one; a worker that joins late takes
  // part in what is open.
  std::uint64_t history = 0;
  if (Result<std::vector<store::ControlRecord>> records = read(0); records.ok()) {
    for (const store::ControlRecord& record : *records) {
      if (options.resume || record.proposal != 0 || record.kind == "outcome") history = record.number;
    }
  }
  return SessionImpl::Start(std::move(config), std::move(writer), worker, options.writer_thread,
                            options.run_path + "/control", history, read, decide);
}

}  // namespace luff::capture
