#pragma once
#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/process.h"

/// Short-lived processes that deliver messages: webhooks, mails, commands.
namespace luff::actions {

struct Delivery {
  std::string id;
  std::vector<std::string> argv;
  std::string input;       // on standard input
  double timeout_s = 120;  // then SIGTERM, and SIGKILL 2 s later
  bool speaks = true;      // its standard output holds the JSON lines of notify.py
};

/// Progress of a delivery. Each "attempt" has a number; "done" or "failed" comes once.
struct DeliveryNews {
  std::string id;
  enum class What : std::uint8_t { kAttempt, kDone, kFailed } what = What::kAttempt;
  int attempt = 0;
  std::string detail;
};

/// Never waits. `now_ns` is monotonic. **Thread-compatible.**
class Deliveries {
 public:
  static constexpr std::size_t kAtOnce = 4, kMaxWaiting = 64;
  ~Deliveries();

  /// False if too many deliveries wait.
  [[nodiscard]] bool Add(Delivery delivery);
  /// Starts waiting deliveries, reads from running ones, ends late ones.
  void Poll(std::int64_t now_ns);
  /// Takes the end of a child; false if it is not one of ours.
  bool Ended(pid_t pid, const ExitState& state);
  /// Takes the ends of its children, whatever other children of this process wait for.
  void Reap();
  /// Ends all running deliveries, as the job is over.
  void Cancel(std::int64_t now_ns, const std::string& why);
  [[nodiscard]] std::vector<DeliveryNews> TakeNews() { return std::exchange(news_, {}); }

  [[nodiscard]] bool idle() const noexcept { return running_.empty() && waiting_.empty(); }
  [[nodiscard]] std::size_t unfinished() const noexcept { return running_.size() + waiting_.size(); }
  [[nodiscard]] bool Owns(pid_t pid) const noexcept;
  /// Appends the descriptors to poll for reading.
  void AddTo(std::vector<pollfd>* fds) const;

 private:
  struct Running {
    Delivery delivery;
    pid_t pid = -1;
    int out = -1;
    std::int64_t until_ns = 0;
    int sent = 0;  // signal
    std::string heard, last;
    bool late = false;
  };
  void Start(Delivery delivery, std::int64_t now_ns);
  void Hear(Running* one);
  void HearLine(Running* one, const std::string& line);

  std::deque<Delivery> waiting_;
  std::vector<Running> running_;
  std::vector<DeliveryNews> news_;
  std::string cancelled_;
};

}  // namespace luff::actions
