#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/config_bucket.h"
#include "keys/public_key.h"
#include "luff/actions/coordinator.h"
#include "luff/actions/policy.h"
#include "luff/base/result.h"

/// luff.toml, or a job's configuration in JSON (job_file.h), read only when `--config FILE` names it.
namespace luff::cli {

struct FileConfig {
  std::optional<std::string> rules;       // as --rules takes it
  std::optional<std::string> parameters;  // luff or original
  std::optional<std::string> on_finding;
  std::string capture_json;  // JSON object, merged over the capture configuration; "" if absent
  actions::StopSettings stop;
  std::vector<actions::ActionSpec> actions;
  std::string tensorboard, smdebug;  // directories of live outputs
  std::string report;                // file of the report at the end
  BucketConfig bucket;
  std::string profiler_rules;         // of SageMaker's profiler, evaluated at the end; "": none
  std::string profiler_report;        // directory of what they report
  std::vector<keys::PublicKey> keys;  // of [control]
  std::string host_key;               // likewise
};

/// Errors: kNotFound, kInvalidArgument with line and column, or the key that is unknown or has the wrong
/// type.
[[nodiscard]] Result<FileConfig> ReadConfigFile(const std::string& path);

/// The command of the program that sends webhooks and mails. Errors: kNotFound without the Python package.
[[nodiscard]] Result<std::vector<std::string>> FindNotifier();

}  // namespace luff::cli
