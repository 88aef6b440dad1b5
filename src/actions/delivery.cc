#include "luff/actions/delivery.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "base/json_number.h"
#include "rules/own/own_child.h"

namespace luff::actions {
namespace {

constexpr std::int64_t kTermNs = 2'000'000'000;
constexpr std::size_t kMaxLine = 4096;

// Returns a memory file that holds `text`, or -1. Unlike a pipe, it takes any size without blocking.
int InputFile(const std::string& text) {
  const int file = memfd_create("luff", MFD_CLOEXEC);
  if (file < 0) return -1;
  if (!WriteAll(file, text)) {
    close(file);
    return -1;
  }
  lseek(file, 0, SEEK_SET);
  return file;
}

}  // namespace

Deliveries::~Deliveries() {
  for (Running& one : running_) {
    SignalGroup(one.pid, SIGKILL);
    rules::NoLongerSpared(one.pid);
    if (one.out >= 0) close(one.out);
  }
}

bool Deliveries::Add(Delivery delivery) {
  if (waiting_.size() >= kMaxWaiting) return false;
  waiting_.push_back(std::move(delivery));
  return true;
}

void Deliveries::Start(Delivery delivery, std::int64_t now_ns) {
  const std::string id = delivery.id;
  const auto fail = [&](std::string why) {
    news_.push_back({id, DeliveryNews::What::kFailed, 0, std::move(why)});
  };
  if (!cancelled_.empty()) return fail(cancelled_);
  const int input = InputFile(delivery.input);
  const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
  int out[2] = {-1, -1};
  if (input < 0 || nothing < 0 || (delivery.speaks && pipe2(out, O_CLOEXEC) != 0)) {
    const int error = errno;
    if (input >= 0) close(input);
    if (nothing >= 0) close(nothing);
    return fail(fmt::format("cannot be started: {}", std::strerror(error)));
  }
  ProcessOptions process;
  process.argv = delivery.argv;
  process.new_session = true;
  process.dies_with_parent = true;  // --resume restarts the delivery
  process.stdin_fd = input;
  process.stdout_fd = delivery.speaks ? out[1] : nothing;
  process.stderr_fd = nothing;
  const Result<pid_t> started = rules::StartSpared(process);
  close(input);
  close(nothing);
  if (out[1] >= 0) close(out[1]);
  if (!started.ok()) {
    if (out[0] >= 0) close(out[0]);
    return fail(std::string(started.status().message()));
  }
  if (out[0] >= 0) fcntl(out[0], F_SETFL, O_NONBLOCK);
  Running one;
  one.until_ns = now_ns + static_cast<std::int64_t>(delivery.timeout_s * 1e9);
  one.delivery = std::move(delivery);
  one.delivery.input.clear();
  one.pid = started.value();
  one.out = out[0];
  running_.push_back(std::move(one));
}

void Deliveries::Poll(std::int64_t now_ns) {
  while (!waiting_.empty() && (running_.size() < kAtOnce || !cancelled_.empty())) {
    Delivery next = std::move(waiting_.front());
    waiting_.pop_front();
    Start(std::move(next), now_ns);
  }
  for (Running& one : running_) {
    Hear(&one);
    if (now_ns < one.until_ns) continue;
    one.late = true;
    one.sent = one.sent == 0 ? SIGTERM : SIGKILL;
    SignalGroup(one.pid, one.sent);
    one.until_ns = now_ns + kTermNs;
  }
}

void Deliveries::Hear(Running* one) {
  if (one->out < 0) return;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(one->out, buffer, sizeof(buffer))) > 0)
    one->heard.append(buffer, static_cast<std::size_t>(got));
  if (got == 0) close(std::exchange(one->out, -1));
  std::size_t end = 0;
  while ((end = one->heard.find('\n')) != std::string::npos) {
    const std::string line = one->heard.substr(0, end);
    one->heard.erase(0, end + 1);
    HearLine(one, line);
  }
  if (one->heard.size() > kMaxLine) one->heard.clear();
}

void Deliveries::HearLine(Running* one, const std::string& line) {
  try {
    const nlohmann::json said = TryParseJson(line);
    if (!said.is_object() || !said.contains("detail") || !said["detail"].is_string()) return;
    one->last = said["detail"].get<std::string>().substr(0, 500);
    news_.push_back(
        {one->delivery.id, DeliveryNews::What::kAttempt, WholeNumber<int>(said, "attempt", 0), one->last});
  } catch (const std::exception&) {  // not a line that notify.py wrote
    return;
  }
}

bool Deliveries::Ended(pid_t pid, const ExitState& state) {
  const auto at =
      std::find_if(running_.begin(), running_.end(), [pid](const Running& one) { return one.pid == pid; });
  if (at == running_.end()) return false;
  rules::NoLongerSpared(pid);
  Hear(&*at);
  const bool done = state.code == 0 && !at->late;
  std::string detail = at->last;
  if (!cancelled_.empty() && !done) {
    detail = cancelled_;
  } else if (at->late) {
    detail = "it took too long and was ended";
  } else if (!at->delivery.speaks || detail.empty()) {
    detail =
        state.signal != 0 ? fmt::format("signal {}", state.signal) : fmt::format("exit code {}", state.code);
  }
  news_.push_back(
      {at->delivery.id, done ? DeliveryNews::What::kDone : DeliveryNews::What::kFailed, 0, detail});
  SignalGroup(pid, SIGKILL);  // ends processes that a command left in its group
  if (at->out >= 0) close(at->out);
  running_.erase(at);
  return true;
}

void Deliveries::Reap() {
  for (std::size_t i = 0; i < running_.size();) {
    int status = 0;
    const pid_t pid = running_[i].pid;
    const pid_t got = Uninterrupted([&] { return waitpid(pid, &status, WNOHANG); });
    if (got != pid || !Ended(pid, DecodeStatus(status))) ++i;
  }
}

void Deliveries::Cancel(std::int64_t now_ns, const std::string& why) {
  cancelled_ = why;
  for (Running& one : running_) {
    one.sent = SIGTERM;
    SignalGroup(one.pid, SIGTERM);
    one.until_ns = now_ns + kTermNs;
  }
}

bool Deliveries::Owns(pid_t pid) const noexcept {
  return std::any_of(running_.begin(), running_.end(), [pid](const Running& one) { return one.pid == pid; });
}

void Deliveries::AddTo(std::vector<pollfd>* fds) const {
  for (const Running& one : running_) {
    if (one.out >= 0) fds->push_back({one.out, POLLIN, 0});
  }
}

}  // namespace luff::actions
