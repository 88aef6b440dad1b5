#pragma once
#include <atomic>
#include <list>
#include <string>
#include <string_view>
#include <thread>

#include "luff/base/mutex.h"
#include "server/run_api.h"
#include "server/secrets.h"

/// What visitors ask of running jobs, and say of findings: the only things that the server writes into a run.
namespace luff::server {

/// GET runs/RUN/requests: `requests`, the newest first, and `marks`.
[[nodiscard]] Result<Response> RequestsOf(const ListedRun& listed, OpenRun& run, const Request& request);

/// **Thread-safe.** Writes requests and marks. If nobody watches a job, coordinates it until a request has
/// its answer, on a thread of its own; the destructor ends those.
class Acting {
 public:
  Acting() = default;
  ~Acting();
  Acting(const Acting&) = delete;
  Acting& operator=(const Acting&) = delete;

  /// POST runs/RUN/requests and runs/RUN/marks, of somebody who may. `what`: "requests" or "marks".
  [[nodiscard]] Response Post(const ListedRun& listed, std::string_view what, const Request& request,
                              const Visitor& visitor) LUFF_EXCLUDES(mutex_);

  static constexpr std::size_t kMaxThreads = 8;

 private:
  struct Coordinating {
    std::thread thread;
    std::atomic<bool> over{false};
  };
  [[nodiscard]] Response PostRequest(const ListedRun& listed, const Request& request,
                                     const std::string& author) LUFF_EXCLUDES(mutex_);
  void Coordinate(const std::string& run, std::uint64_t request) LUFF_REQUIRES(mutex_);
  void JoinThoseThatEnded() LUFF_REQUIRES(mutex_);

  std::atomic<bool> leave_{false};
  Mutex mutex_;
  std::list<Coordinating> threads_ LUFF_GUARDED_BY(mutex_);
};

}  // namespace luff::server
