#pragma once
#include <string>

namespace luff::cli {

/// `luff watch DIR`, or the URL of a bucket: what the options say.
struct WatchBaseOptions {
  std::string base, rules_text, set_text, on_finding, config;
  std::string shard, state, metrics, metrics_token, key;
  bool earlier = false, drain = false;
  bool metrics_unencrypted = false;  // --metrics may listen where other machines reach it
  bool bucket = false;               // `base` is the URL of one
};

/// Judges all runs of a directory until a signal comes, or, with `drain`, until none is live. Returns the
/// exit code.
[[nodiscard]] int WatchBase(const WatchBaseOptions& wanted);

}  // namespace luff::cli
