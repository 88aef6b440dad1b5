#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string_view>

#include "server/message.h"
#include "server/run_list.h"

/// The routes that compare runs (docs/spec/http-api.md, section 8).
namespace luff::server {

/// **Thread-safe.** Opens the runs by itself, so that nobody who looks at one of them waits. One comparison
/// at a time: a second one is asked to come again, since it would keep the server's threads.
class CompareApi {
 public:
  /// The run of an id, if the visitor may see it.
  using Find = std::function<std::optional<ListedRun>(std::string_view id)>;
  /// GET compare, compare/tensors, compare/map. `what`: "", "tensors" or "map".
  [[nodiscard]] Response Answer(std::string_view what, const Request& request, const Find& find);

 private:
  std::atomic<bool> busy_{false};
};

}  // namespace luff::server
