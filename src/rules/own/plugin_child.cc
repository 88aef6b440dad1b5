#include "rules/own/plugin_child.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "luff/query/trial.h"
#include "luff/rules/plugin.h"
#include "rules/kit/need_names.h"
#include "rules/own/own_child.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr int kProtocol = 1;
constexpr std::uint64_t kMaxRules = 1000, kMaxEvidence = 64, kMaxNeeds = 32, kMaxState = 1U << 20;
constexpr std::size_t kMaxText = 4000, kMaxFindings = 1000;
constexpr auto kPatience = std::chrono::seconds(5);

std::string Text(const char* text, std::size_t most = kMaxText) {
  return text == nullptr ? "" : std::string(text, strnlen(text, most));
}

/// Whether a struct has a member, which those of older versions may lack, and the member is not null.
template <typename Struct, typename Member>
bool Has(const Struct& s, const Member& member) {
  const auto end =
      reinterpret_cast<const char*>(&member) + sizeof(member) - reinterpret_cast<const char*>(&s);
  return s.size >= static_cast<std::size_t>(end) && member != nullptr;
}

class PluginChild {
 public:
  PluginChild() {
    host_.host.size = sizeof(luff_host_v1);
    host_.host.version = LUFF_RULE_PLUGIN_VERSION;
    host_.host.report = [](const luff_host_v1* h, const luff_finding_v1* f) { Self(h)->Report(f); };
    host_.host.heal = [](const luff_host_v1* h, const char* cause, const char* tensor) {
      Self(h)->told_.push_back({{"say", "heal"},
                                {"cause", Text(cause)},
                                {"tensor", Text(tensor)},
                                {"step", Self(h)->rows_.info.mode_step}});
    };
    host_.host.tensor_name = [](const luff_host_v1* h, std::uint32_t id) -> const char* {
      const query::Trial* trial = Self(h)->trial_.get();
      return trial == nullptr || id >= trial->tensor_count() ? nullptr : trial->tensor(id).name.c_str();
    };
    host_.host.tensor_role = [](const luff_host_v1* h, std::uint32_t id) -> const char* {
      const query::Trial* trial = Self(h)->trial_.get();
      if (trial == nullptr || id >= trial->tensor_count()) return nullptr;
      const auto role = static_cast<std::size_t>(trial->tensor(id).role);
      return role < kRoleNames.size() ? kRoleNames[role] : "other";
    };
    host_.host.lacks = [](const luff_host_v1* h, const char* what) { Self(h)->lacks_ = Text(what); };
    host_.host.fail = [](const luff_host_v1* h, const char* what) { Self(h)->failure_ = Text(what); };
    host_.self = this;
  }
  ~PluginChild() {
    if (instance_ != nullptr && Has(*rule_, rule_->destroy)) rule_->destroy(instance_);
  }
  PluginChild(const PluginChild&) = delete;
  PluginChild& operator=(const PluginChild&) = delete;

  int Serve() {
    std::string heard;
    char buffer[65536];
    while (true) {
      const ssize_t got = Uninterrupted([&] { return read(OwnChild::kSocket, buffer, sizeof(buffer)); });
      if (got <= 0) return 0;
      heard.append(buffer, static_cast<std::size_t>(got));
      std::size_t from = 0;
      for (std::size_t end = 0; (end = heard.find('\n', from)) != std::string::npos; from = end + 1) {
        if (const Status status = Handle(heard.substr(from, end - from)); !status.ok()) {
          Say({{"say", "error"},
               {"message", std::string(status.message())},
               {"again", status.code() == StatusCode::kUnavailable}});
          return 1;
        }
        if (over_) return 0;
      }
      heard.erase(0, from);
    }
  }

 private:
  struct Host {
    luff_host_v1 host{};  // first member: the rule gets its address, and Self casts it back
    PluginChild* self = nullptr;
  };
  static PluginChild* Self(const luff_host_v1* host) { return reinterpret_cast<const Host*>(host)->self; }

  static void Say(const Json& json) {
    if (!WriteAll(OwnChild::kSocket, JsonText(json) + "\n")) _exit(0);  // the parent is gone
  }

  Status Handle(const std::string& line) {
    try {
      const Json told = ParseJson(line);
      const auto word = told.at("do").get<std::string>();
      if (word == "describe") return Describe(told);
      if (word == "begin") return Begin(told);
      if (word == "step") return Step(told.at("number").get<std::size_t>());
      if (word == "save") return Save();
      if (word == "end") return End();
      return InvalidArgument(fmt::format("the word '{}' is not of this protocol", word));
    } catch (const std::exception& error) {
      return Internal(std::string("a line of the protocol does not parse: ") + error.what());
    }
  }

  Status Load(const Json& told) {
    if (told.at("protocol").get<int>() != kProtocol)
      return InvalidArgument("another version of the protocol");
    const auto text = told.at("rule").get<std::string>();
    const std::size_t cut = text.rfind(':');
    const std::string file = text.substr(0, cut);
    const std::string name = cut == std::string::npos ? "" : text.substr(cut + 1);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      return InvalidArgument(fmt::format("the library cannot be loaded: {}", Text(dlerror())));
    void* symbol = dlsym(library, "luff_rule_plugin_v1");
    if (symbol == nullptr) {
      return InvalidArgument(
          fmt::format("the library has no function luff_rule_plugin_v1 (luff/rules/plugin.h): {}", file));
    }
    const auto entry = reinterpret_cast<const luff_rule_plugin* (*)()>(symbol);
    const luff_rule_plugin* plugin = entry();
    if (plugin == nullptr || plugin->size < sizeof(luff_rule_plugin) ||
        plugin->version != LUFF_RULE_PLUGIN_VERSION || plugin->rule_count > kMaxRules) {
      return InvalidArgument(fmt::format("the library does not keep to version {} of luff/rules/plugin.h: {}",
                                         LUFF_RULE_PLUGIN_VERSION, file));
    }
    std::vector<std::string> known;
    for (std::uint64_t i = 0; i < plugin->rule_count; ++i) {
      const luff_rule_v1* rule = plugin->rules[i];
      if (rule == nullptr || !Has(*rule, rule->on_step) || rule->name == nullptr || rule->create == nullptr)
        return InvalidArgument(
            fmt::format("rule number {} of the library has no name, create or on_step", i));
      known.push_back(Text(rule->name, 100));
      if (known.back() == name) rule_ = rule;
    }
    if (rule_ != nullptr) return Status::Ok();
    return InvalidArgument(
        fmt::format("the library has no rule '{}'; it has: {}: {}", name, fmt::join(known, ", "), file));
  }

  Status Create(const Json& told) {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const auto& [key, value] : told.at("parameters").items())
      texts.emplace_back(key, value.get<std::string>());
    std::vector<luff_parameter_v1> parameters;
    for (const auto& [key, value] : texts) parameters.push_back({key.c_str(), value.c_str()});
    failure_.clear();
    instance_ = rule_->create(&host_.host, parameters.data(), parameters.size());
    if (instance_ != nullptr) return Status::Ok();
    return InvalidArgument(failure_.empty() ? "its function create gives no reason" : failure_);
  }

  Status Describe(const Json& told) {
    LUFF_RETURN_IF_ERROR(Load(told));
    LUFF_RETURN_IF_ERROR(Create(told));  // reports bad parameters now
    Json needs = Json::array();
    if (Has(*rule_, rule_->needs)) {
      const luff_need_v1* const* list = nullptr;
      const std::uint64_t count = rule_->needs(&list);
      for (std::uint64_t i = 0; i < std::min(count, kMaxNeeds) && list != nullptr; ++i) {
        Json forms = Json::array();
        for (const auto& [form, word] : kFormNames) {
          if ((list[i]->forms & static_cast<std::uint32_t>(form)) != 0) forms.push_back(word);
        }
        needs.push_back({{"include", Json::array({Text(list[i]->include)})},
                         {"forms", std::move(forms)},
                         {"mode", list[i]->mode == nullptr ? "TRAIN" : Text(list[i]->mode)},
                         {"save_interval", std::max<std::int64_t>(1, list[i]->save_interval)}});
      }
    }
    Say({{"say", "description"},
         {"name", Text(rule_->name, 100)},
         {"version", rule_->rule_version},
         {"summary", Text(rule_->summary)},
         {"needs", std::move(needs)}});
    over_ = true;
    return Status::Ok();
  }

  Status Begin(const Json& told) {
    LUFF_RETURN_IF_ERROR(Load(told));
    query::OpenOptions options;
    options.show_at_most = told.at("position").get<std::size_t>();
    LUFF_ASSIGN_OR_RETURN(trial_, query::Trial::Open(told.at("run").get<std::string>(), options));
    LUFF_RETURN_IF_ERROR(Create(told));
    if (told.contains("state")) {
      const auto state = ParseJson(told.at("state").get<std::string>()).get<std::string>();
      if (!Has(*rule_, rule_->restore) || rule_->restore(instance_, state.data(), state.size()) != 0)
        return InvalidArgument("it does not take up the state that it saved");
    }
    Say({{"say", "ready"}});
    return Status::Ok();
  }

  Status Show(std::size_t number) {
    trial_->ShowAtMost(number + 1);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (trial_->step_count() <= number) {
      LUFF_RETURN_IF_ERROR(trial_->Refresh().status());
      if (trial_->step_count() > number) break;
      if (std::chrono::steady_clock::now() > deadline)
        return Unavailable(fmt::format("step number {} cannot be read", number));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return Status::Ok();
  }

  Status Step(std::size_t number) {
    LUFF_RETURN_IF_ERROR(Show(number));
    Json done = {{"say", "done"}, {"number", number}};
    if (!trial_->ReadStepRows(number, &rows_).ok()) {
      Say(done);
      return Status::Ok();
    }
    summaries_.clear();
    scalars_.clear();
    for (const auto& entry : rows_.summaries) {
      const Summary& s = entry.summary;
      summaries_.push_back({entry.tensor, entry.worker, s.count, s.zero_count, s.nan_count, s.inf_count,
                            s.min(entry.dtype), s.max(entry.dtype), s.mean(), s.std(), s.sum, s.abs_sum,
                            s.abs_max(entry.dtype), s.l2()});
    }
    for (const auto& entry : rows_.scalars) scalars_.push_back({entry.tensor, entry.worker, entry.value});
    luff_step_v1 step{};
    step.size = sizeof(step);
    step.mode = static_cast<std::int32_t>(rows_.info.mode);
    step.step = rows_.info.mode_step;
    step.global_step = rows_.info.global_step;
    step.update = rows_.info.update;
    step.summaries = summaries_.data();
    step.summary_count = summaries_.size();
    step.summary_size = sizeof(luff_summary_v1);
    step.scalars = scalars_.data();
    step.scalar_count = scalars_.size();
    step.scalar_size = sizeof(luff_scalar_v1);
    Begun();
    rule_->on_step(instance_, &host_.host, &step);
    for (const Json& told : told_) Say(told);
    if (!failure_.empty())
      done["raised"] = fmt::format("it failed at {} step {}: {}", query::ModeName(rows_.info.mode),
                                   rows_.info.mode_step, failure_);
    if (!lacks_.empty()) done["lacks"] = lacks_;
    Say(done);
    return Status::Ok();
  }

  void Begun() {
    told_.clear();
    failure_.clear();
    lacks_.clear();
  }

  Status Save() {
    if (!Has(*rule_, rule_->save)) {
      Say({{"say", "state"}});
      return Status::Ok();
    }
    std::string state(4096, '\0');
    std::uint64_t length = rule_->save(instance_, state.data(), state.size());
    if (length > state.size() && length <= kMaxState) {
      state.resize(length);
      length = rule_->save(instance_, state.data(), state.size());
    }
    if (length > state.size()) {
      Say({{"say", "state"}, {"why", fmt::format("its state would have {} bytes", length)}});
      return Status::Ok();
    }
    state.resize(length);
    Say({{"say", "state"}, {"state", state}});
    return Status::Ok();
  }

  Status End() {
    Begun();
    if (Has(*rule_, rule_->on_end)) rule_->on_end(instance_, &host_.host);
    for (const Json& told : told_) Say(told);
    Say({{"say", "ended"}});
    over_ = true;
    return Status::Ok();
  }

  void Report(const luff_finding_v1* finding) {
    if (finding == nullptr || finding->size < sizeof(luff_finding_v1) || told_.size() >= kMaxFindings) return;
    const query::StepInfo& step = rows_.info;
    Json evidence = Json::object();
    for (std::uint64_t i = 0; i < std::min(finding->evidence_count, kMaxEvidence); ++i) {
      const double value = finding->evidence_values[i];
      const std::string name = Text(finding->evidence_names[i]);
      if (std::isfinite(value)) {
        evidence[name] = value;
      } else {
        evidence[name] = std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
      }
    }
    const std::int64_t since =
        finding->since_step < 0 ? step.mode_step : std::min(finding->since_step, step.mode_step);
    told_.push_back({{"say", "finding"},
                     {"cause", finding->cause == nullptr ? "condition" : Text(finding->cause)},
                     {"severity", finding->severity == LUFF_SEVERITY_STOP ? "stop" : "warn"},
                     {"tensor", Text(finding->tensor)},
                     {"mode", std::string(query::ModeName(step.mode))},
                     {"step", step.mode_step},
                     {"global_step", step.global_step},
                     {"update", step.update},
                     {"since_step", since},
                     {"last_step", step.mode_step},
                     {"what", Text(finding->what)},
                     {"why", Text(finding->why)},
                     {"remedy", Text(finding->remedy)},
                     {"threshold", Text(finding->threshold)},
                     {"evidence", std::move(evidence)},
                     {"page", "docs/own-rules.md"}});
  }

  Host host_;
  const luff_rule_v1* rule_ = nullptr;
  void* instance_ = nullptr;
  std::unique_ptr<query::Trial> trial_;
  query::Trial::StepRows rows_;
  std::vector<luff_summary_v1> summaries_;
  std::vector<luff_scalar_v1> scalars_;
  std::vector<Json> told_;
  std::string failure_, lacks_;
  bool over_ = false;
};

}  // namespace

int ServePluginRule() {
  PluginChild child;
  return child.Serve();
}

}  // namespace luff::rules
