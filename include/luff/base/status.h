#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace luff {

/// The kind of an error. A code exists only if some caller acts differently on it. Permanent.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,
  kNotFound = 2,
  kAlreadyExists = 3,
  kOutOfRange = 4,
  kFailedPrecondition = 5,
  kCorruption = 6,
  kUnsupportedVersion = 7,
  kIo = 8,
  kResourceExhausted = 9,
  kUnavailable = 10,
  kDeadlineExceeded = 11,
  kCancelled = 12,
  kInternal = 13,
};

/// Stable name of a code, e.g. "corruption".
[[nodiscard]] std::string_view StatusCodeName(StatusCode code) noexcept;

/// Success, or a code with a message for people.
///
/// Thread-compatible. One pointer wide; OK allocates nothing. Messages have the form
/// "what was found, what was expected, where; what to do", paths last.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  [[nodiscard]] static Status Ok() noexcept { return {}; }
  [[nodiscard]] bool ok() const noexcept { return state_ == nullptr; }
  [[nodiscard]] StatusCode code() const noexcept { return state_ ? state_->code : StatusCode::kOk; }
  [[nodiscard]] std::string_view message() const noexcept {
    return state_ ? std::string_view(state_->message) : std::string_view();
  }
  /// The same code with `context` and ": " before the message. OK stays OK.
  [[nodiscard]] Status WithContext(std::string_view context) const;
  /// "corruption: message" or "ok".
  [[nodiscard]] std::string ToString() const;

 private:
  struct State {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<State> state_;
};

[[nodiscard]] Status InvalidArgument(std::string message);
[[nodiscard]] Status NotFound(std::string message);
[[nodiscard]] Status AlreadyExists(std::string message);
[[nodiscard]] Status OutOfRange(std::string message);
[[nodiscard]] Status FailedPrecondition(std::string message);
[[nodiscard]] Status Corruption(std::string message);
[[nodiscard]] Status UnsupportedVersion(std::string message);
[[nodiscard]] Status IoError(std::string message);
[[nodiscard]] Status ResourceExhausted(std::string message);
[[nodiscard]] Status Unavailable(std::string message);
[[nodiscard]] Status DeadlineExceeded(std::string message);
[[nodiscard]] Status Cancelled(std::string message);
[[nodiscard]] Status Internal(std::string message);

}  // namespace luff

/// Returns from the enclosing function when `expr` (a Status) is not OK.
#define LUFF_RETURN_IF_ERROR(expr)               \
  do {                                           \
    ::luff::Status luff_status_ = (expr);        \
    if (!luff_status_.ok()) return luff_status_; \
  } while (false)
