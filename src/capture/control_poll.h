#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capture/stop_gate.h"
#include "luff/store/control.h"

namespace luff::capture {

/// Notices new control records cheaply: one stat of the directory a poll; a listing when its time changed,
/// shortly after that (times are coarse), and every second (network file systems cache them). **Owned by the
/// writer thread.**
class ControlPoll {
 public:
  using Read = std::function<Result<std::vector<store::ControlRecord>>(std::uint64_t after)>;
  /// Records up to `after` are history. `read` is store::ReadControl but in tests.
  ControlPoll(std::string directory, std::uint64_t after, Read read, StopGate* gate)
      : directory_(std::move(directory)),
        after_(after),
        read_(std::move(read)),
        gate_(gate) {}

  /// Answers to write are appended to `acks`.
  void Poll(std::int64_t steady_ns, std::vector<format::AckRow>* acks);

 private:
  std::string directory_;
  std::uint64_t after_;
  Read read_;
  StopGate* gate_;
  std::int64_t modified_ns_ = -1;
  std::int64_t look_until_ns_ = 0;
  std::int64_t next_full_ns_ = 0;
};

}  // namespace luff::capture
