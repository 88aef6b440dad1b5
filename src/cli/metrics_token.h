#pragma once
#include <string>

namespace luff::cli {

/// The token that scrapers send: made once, then the same for each job. `path`: its file; "":
/// $LUFF_HOME/metrics.token. Tells where it is; exits with a message if it is none.
[[nodiscard]] std::string MetricsTokenOrExit(std::string path);

}  // namespace luff::cli
