#pragma once
#include <cstdint>
#include <string>

#include "server/acting.h"
#include "server/compare_api.h"
#include "server/guard.h"
#include "server/live.h"
#include "server/message.h"
#include "server/open_runs.h"
#include "server/run_list.h"

namespace luff::server {

/// What the server answers: guard, then route. Without sockets. **Thread-safe.**
class Service {
 public:
  Service(Place place, Secrets* secrets, const std::vector<std::string>& roots, std::string index)
      : guard_(std::move(place), secrets),
        list_(roots, std::move(index)),
        live_(&list_, &runs_) {}

  /// Never throws. An answer with `is_stream` is an event stream over `live`.
  [[nodiscard]] Response Answer(const Request& request) noexcept;
  [[nodiscard]] Live& live() noexcept { return live_; }
  [[nodiscard]] RunList& list() noexcept { return list_; }

 private:
  [[nodiscard]] Response Route(const Request& request, const std::optional<Visitor>& visitor);
  [[nodiscard]] Response OfRun(const Request& request, std::string_view rest,
                               const std::optional<Visitor>& visitor);
  [[nodiscard]] Response Stream(const Request& request);

  const Guard guard_;
  RunList list_;
  OpenRuns runs_;
  Acting acting_;
  CompareApi compare_{&list_};
  Live live_;
};

}  // namespace luff::server
