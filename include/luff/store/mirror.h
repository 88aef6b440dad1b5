#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/result.h"

namespace luff {
class LineSocket;
}

namespace luff::store {

/// What a copy is said to lack.
inline constexpr const char* kPrunedNote = "its values were pruned from the bucket";

/// A run directory that a fetcher fills from a bucket (docs/spec/bucket-format.md, 6): its payload and its
/// sealed segments of workers have holes, which the fetcher fills when asked; all else is whole.
/// `mirror.json` in the directory says so.
/// **Thread-compatible.**
class Mirror {
 public:
  /// Null if the directory is an ordinary run. Tells the fetcher that the run is being read, so that it
  /// follows the bucket until the object is destroyed.
  [[nodiscard]] static std::shared_ptr<Mirror> Of(const std::string& run_path);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// What the last head in the bucket said. Read again at most ten times a second.
  struct State {
    std::string url;
    std::string problem;                         // why nothing new was fetched; "" if all is well
    bool ended = false;                          // nothing more will come
    bool behind = false;                         // rows are here whose payload is not in the bucket yet
    bool pruned = false;                         // its values were removed from the bucket
    bool silent = false;                         // nobody uploads any more, although it has not ended
    std::int64_t host_unix_ns = 0;               // when it was written, by the clock of the training's host
    std::uint64_t requests = 0, sent_bytes = 0;  // of the upload so far
  };
  [[nodiscard]] const State& Look();
  /// The time of a worker's host when its state was uploaded; that of the newest head for a worker that is
  /// not known. Ages of this worker's heartbeats count from it.
  [[nodiscard]] std::int64_t TimeOf(std::uint32_t worker) const noexcept;
  /// True if nothing more of this worker will come.
  [[nodiscard]] bool EndedOf(std::uint32_t worker) const noexcept;

  /// Makes sure that these bytes of a payload file are in the directory. Waits for the network, at most
  /// about two minutes. Errors: kUnavailable (not uploaded yet, or the bucket or the fetcher does not
  /// answer), kOutOfRange (it was deleted before it was uploaded).
  [[nodiscard]] Status Need(std::uint32_t worker, std::uint32_t file, std::uint64_t from,
                            std::uint64_t bytes);
  /// A metadata segment of a worker.
  struct Segment {
    std::uint32_t worker = 0;
    std::uint64_t sequence = 0;
    std::uint32_t generation = 0;
  };
  /// First byte, and the one behind the last.
  using Extent = std::pair<std::uint64_t, std::uint64_t>;
  /// Makes sure that these bytes of a sealed segment are in the directory. Returns ranges of the file that
  /// are there, this one among them. Waits, and errors, as Need().
  [[nodiscard]] Result<std::vector<Extent>> NeedRows(const Segment& segment, std::uint64_t from,
                                                     std::uint64_t bytes);
  /// How often Need() or NeedRows() have returned kUnavailable.
  [[nodiscard]] std::uint64_t missed() const noexcept { return missed_; }

 private:
  Mirror(std::string path, std::string socket_folder);
  void Parse(const std::string& text);
  [[nodiscard]] Status Follow();
  [[nodiscard]] Status Piece(std::uint32_t worker, std::uint32_t file, std::uint64_t from,
                             std::uint64_t bytes);
  /// Returns the answer, if it is a good one. `what` is asked for.
  [[nodiscard]] Result<std::string> Ask(const std::string& request, const char* what);

  struct Host {
    std::int64_t unix_ns = 0;
    bool ended = false;
  };
  const std::string path_;
  const std::string socket_folder_;
  State state_;
  std::map<std::uint32_t, Host> workers_;
  std::int64_t looked_monotonic_ns_ = 0, mtime_ns_ = -1;
  std::unique_ptr<LineSocket> fetcher_;
  pid_t follower_ = 0;  // the process that connected: a forked child must not share the connection
  std::uint64_t missed_ = 0;
  std::int64_t failed_monotonic_ns_ = 0;  // when the fetcher or the bucket failed last; 0: it did not
  Status failure_;
};

}  // namespace luff::store
