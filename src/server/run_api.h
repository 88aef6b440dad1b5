#pragma once
#include <span>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "server/message.h"
#include "server/open_runs.h"
#include "server/run_list.h"
#include "server/secrets.h"

/// All routes, and the answers of those below GET runs/RUN, each about one run that is open.
namespace luff::server {

using RunAnswer = Result<Response> (*)(const ListedRun& listed, OpenRun& run, const Request& request);

/// One row of the table of all routes, in run_api.cc.
struct Route {
  std::string_view method;
  std::string_view path;       // "/metrics", or what follows /api/v1/; "*" stands for one part of it
  Role role = Role::kViewer;   // the least that may use it
  bool values = false;         // shows elements of tensors, labels or samples: may be kept from viewers
  RunAnswer answer = nullptr;  // of a route below GET runs/*
};
[[nodiscard]] std::span<const Route> Routes() noexcept;
/// The route of a path as the table has it; nullptr if there is none. HEAD is GET.
[[nodiscard]] const Route* FindRoute(std::string_view method, std::string_view path) noexcept;
/// Whether there is a route of this path with another method.
[[nodiscard]] bool HasRoute(std::string_view path) noexcept;

/// Counts of a run's steps by mode, as documents and events hold them: {"TRAIN": {"count": 3, "first": 0,
/// "last": 2}}.
[[nodiscard]] nlohmann::ordered_json ModesOf(const query::Trial& trial);

}  // namespace luff::server
