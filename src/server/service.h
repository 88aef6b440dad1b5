#pragma once
#include <cstdint>
#include <string>

#include "catalog/card.h"
#include "server/acting.h"
#include "server/audit.h"
#include "server/compare_api.h"
#include "server/guard.h"
#include "server/live.h"
#include "server/message.h"
#include "server/metrics.h"
#include "server/open_runs.h"
#include "server/run_api.h"
#include "server/run_list.h"

namespace luff::server {

/// What a service is made of.
struct ServiceOptions {
  std::vector<std::string> roots;        // absolute directories, of runs or runs themselves
  std::string index = {};                // file of the catalogue's index; "" for none
  std::string audit = {};                // file of the audit; "" for none
  const OverviewCache* cache = nullptr;  // of overviews; null for none
  Role values = Role::kViewer;           // the least role that may see values (Route::values)
};

/// What the server answers: guard, then route. Without sockets. **Thread-safe.**
class Service {
 public:
  /// `secrets` and the cache outlive the service.
  Service(Place place, Secrets* secrets, ServiceOptions options)
      : guard_(std::move(place), secrets),
        secrets_(secrets),
        values_(options.values),
        audit_(std::move(options.audit)),
        list_(std::move(options.roots), std::move(options.index)),
        runs_(options.cache),
        live_(&list_, &runs_) {
    list_.CardsFrom([this](const ListedRun& listed, catalog::Card* card) {
      return runs_.UseIfOpen(listed,
                             [&](OpenRun& run) { *card = catalog::CardOf(listed.path, run.trial()); });
    });
  }

  /// Never throws. An answer with `is_stream` is an event stream over `live`.
  [[nodiscard]] Response Answer(const Request& request) noexcept;
  /// Whether an event stream that was answered may go on: its token may have been revoked meanwhile, or one
  /// of its runs is elsewhere now, where the visitor may not look.
  [[nodiscard]] bool MayStill(const Request& request, const std::vector<std::string>& runs) noexcept;
  /// Looks at what is watched, and at the tokens; called four times a second while streams are open.
  void Look() noexcept;
  [[nodiscard]] const Place& place() const noexcept { return guard_.place(); }
  [[nodiscard]] AuditFile& audit() noexcept { return audit_; }
  [[nodiscard]] Live& live() noexcept { return live_; }
  [[nodiscard]] RunList& list() noexcept { return list_; }
  [[nodiscard]] Metrics& metrics() noexcept { return metrics_; }

 private:
  [[nodiscard]] Response AnswerUncounted(const Request& request) noexcept;
  [[nodiscard]] Response Dispatch(const Request& request, const std::optional<Visitor>& visitor);
  [[nodiscard]] Response OfRun(const Request& request, const Route& route, const Visitor& visitor);
  [[nodiscard]] Response Session(const Request& request, std::optional<Visitor> visitor);
  [[nodiscard]] Response Stream(const Request& request, const Visitor& visitor);
  /// GET /metrics.
  [[nodiscard]] Response MetricsOf(const Request& request, const Visitor& visitor);
  /// A run that the visitor may see.
  [[nodiscard]] std::optional<ListedRun> FindRun(std::string_view id, const Visitor& visitor);

  const Guard guard_;
  Secrets* const secrets_;
  const Role values_;
  AuditFile audit_;
  RunList list_;
  OpenRuns runs_;
  Acting acting_;
  CompareApi compare_;
  Live live_;
  Metrics metrics_;
  RequestCounts counts_;
};

}  // namespace luff::server
