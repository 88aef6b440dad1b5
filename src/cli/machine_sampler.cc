#include "cli/machine_sampler.h"

#include <fcntl.h>
#include <unistd.h>

namespace luff::cli {

void MachineSampler::Start(const std::string& run) {
  run_ = run;
  Launch();
}

void MachineSampler::Launch() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // `luff profile` says that nothing was measured
  const OwnedFd read_end(ends[0]);
  pipe_ = OwnedFd(ends[1]);
  const OwnedFd nowhere(open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions process;
  process.argv = {"/proc/self/exe", "_sample", "--until-closed", "--", run_};
  process.new_session = true;  // Ctrl-C is meant for the training
  process.stdin_fd = read_end.get();
  process.stdout_fd = process.stderr_fd = nowhere.get();
  process.dies_with_parent = true;
  ++starts_;
  const Result<pid_t> started = StartProcess(process);
  pid_ = started.ok() ? *started : 0;
  if (!started.ok()) pipe_ = OwnedFd();
}

void MachineSampler::Ended(pid_t pid, const ExitState& state) {
  if (!Owns(pid)) return;
  pid_ = 0;
  const bool job_lives = pipe_.valid();
  pipe_ = OwnedFd();
  if (job_lives && state.code != 0 && starts_ < 2) Launch();
}

void MachineSampler::JobEnded() noexcept { pipe_ = OwnedFd(); }

}  // namespace luff::cli
