#include "rules/kit/fields.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kExact = 9007199254740992;  // 2^53: JSON numbers beyond it are not exact
constexpr std::size_t kMaxBytes = 64U << 20;
constexpr std::size_t kMaxDepth = 32;
constexpr const char* kNotFinite[] = {"nan", "inf", "-inf"};  // JSON has no such numbers

}  // namespace

struct Fields::State {
  Json root;
  std::vector<Json*> at;           // from the root to the current value
  std::vector<std::string> names;  // of the values in `at`, without the root
  bool loading = false;
  std::string wrong;  // the first mismatch; empty: none

  [[nodiscard]] bool fine() const noexcept { return wrong.empty(); }
  void Wrong(std::string_view expected) {
    if (!fine()) return;
    std::string place;
    for (const std::string& name : names) place += (place.empty() ? "" : ".") + name;
    wrong = fmt::format("state of a rule: '{}' is not {}", place, expected);
  }
};

Fields::Fields() : state_(std::make_unique<State>()) {}
Fields::~Fields() = default;

std::string Fields::Save(const std::function<void(Fields&)>& visit) {
  Fields io;
  io.state_->root = Json::object();
  io.state_->at = {&io.state_->root};
  visit(io);
  return JsonText(io.state_->root);
}

Status Fields::LoadUntrusted(std::string_view json, const std::function<void(Fields&)>& visit) {
  Fields io;
  io.state_->root = TryParseJson(json, {kMaxBytes, kMaxDepth});
  io.state_->loading = true;
  io.state_->at = {&io.state_->root};
  if (!io.state_->root.is_object()) return Corruption("state of a rule: no JSON object");
  visit(io);
  return io.state_->fine() ? Status::Ok() : Corruption(io.state_->wrong);
}

bool Fields::loading() const noexcept { return state_->loading; }

void Fields::Check(bool holds, std::string_view what) {
  if (loading() && !holds) state_->Wrong(what);
}

bool Fields::Enter(std::string_view name) {
  State& s = *state_;
  if (!s.fine()) return false;
  Json& here = *s.at.back();
  s.names.emplace_back(name);
  if (s.loading) {
    const auto found = here.is_object() ? here.find(name) : here.end();
    if (!here.is_object() || found == here.end()) {
      s.Wrong("there");
      return false;
    }
    s.at.push_back(&*found);
  } else {
    s.at.push_back(&here[std::string(name)]);
  }
  return true;
}

bool Fields::EnterItem(std::size_t index) {
  State& s = *state_;
  if (!s.fine()) return false;
  Json& here = *s.at.back();
  if (!s.loading) here.push_back(nullptr);
  s.names.push_back(fmt::format("{}", index));
  s.at.push_back(&here[index]);  // List() has checked the length
  return true;
}

void Fields::Leave() {
  if (!state_->fine()) return;
  state_->at.pop_back();
  state_->names.pop_back();
}

std::size_t Fields::List(std::size_t count, std::size_t most) {
  State& s = *state_;
  Json& here = *s.at.back();
  if (!s.loading) {
    here = Json::array();
    return count;
  }
  if (s.fine() && here.is_array() && here.size() <= most) return here.size();
  s.Wrong(fmt::format("a list of at most {}", most));
  return 0;
}

std::vector<std::string> Fields::Names(std::size_t most) {
  State& s = *state_;
  Json& here = *s.at.back();
  std::vector<std::string> names;
  if (!s.loading) {
    here = Json::object();
    return names;
  }
  if (!here.is_object() || here.size() > most) {
    s.Wrong(fmt::format("an object of at most {}", most));
    return names;
  }
  for (const auto& [name, value] : here.items()) names.push_back(name);
  return names;
}

bool Fields::Null(bool is_null) {
  if (loading()) return state_->at.back()->is_null();
  if (is_null) *state_->at.back() = nullptr;
  return is_null;
}

void Fields::Bool(bool& value) {
  Json& here = *state_->at.back();
  if (!loading()) {
    here = value;
  } else if (here.is_boolean()) {
    value = here.get<bool>();
  } else {
    state_->Wrong("true or false");
  }
}

void Fields::Whole(std::int64_t& value, std::int64_t least, std::int64_t largest) {
  Json& here = *state_->at.back();
  if (!loading()) {
    here = value;
    return;
  }
  least = std::max(least, -kExact);
  largest = std::min(largest, kExact);
  const bool fits = here.is_number_unsigned()
                        ? here.get<std::uint64_t>() <= static_cast<std::uint64_t>(largest)
                        : here.is_number_integer() && here.get<std::int64_t>() >= least;
  if (fits) {
    value = here.get<std::int64_t>();
  } else {
    state_->Wrong(fmt::format("a whole number from {} to {}", least, largest));
  }
}

// Not limited to 2^53: hashes use all 64 bits.
void Fields::Unsigned(std::uint64_t& value, std::uint64_t largest) {
  Json& here = *state_->at.back();
  if (!loading()) {
    here = value;
  } else if (here.is_number_unsigned() && here.get<std::uint64_t>() <= largest) {
    value = here.get<std::uint64_t>();
  } else {
    state_->Wrong(fmt::format("a whole number from 0 to {}", largest));
  }
}

void Fields::Real(double& value) {
  Json& here = *state_->at.back();
  if (!loading()) {
    here = std::isfinite(value) ? Json(value) : Json(kNotFinite[std::isnan(value) ? 0 : value > 0 ? 1 : 2]);
    return;
  }
  if (here.is_number()) {
    value = here.get<double>();
    return;
  }
  const std::string text = here.is_string() ? here.get<std::string>() : "";
  if (text == kNotFinite[0]) {
    value = NAN;
  } else if (text == kNotFinite[1] || text == kNotFinite[2]) {
    value = text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  } else {
    state_->Wrong("a number");
  }
}

void Fields::Text(std::string& value) {
  Json& here = *state_->at.back();
  if (!loading()) {
    here = value;
  } else if (here.is_string()) {
    value = here.get<std::string>();
  } else {
    state_->Wrong("text");
  }
}

}  // namespace luff::rules
