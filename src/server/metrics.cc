#include "server/metrics.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/base/version.h"

namespace luff::server {
namespace {

constexpr std::size_t kMaxLabel = 128, kMaxScalars = 16;
constexpr double kShownS = 15 * 60;

/// The value of a label: cut to kMaxLabel bytes at a character, escaped, without control characters.
std::string Label(std::string text) {
  if (text.size() > kMaxLabel) {
    std::size_t end = kMaxLabel;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
    text.resize(end);
  }
  std::string label;
  for (const char c : text) {
    if (c == '\\' || c == '"') label += '\\';
    if (c == '\n')
      label += "\\n";
    else
      label += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? std::string("\uFFFD") : std::string(1, c);
  }
  return label;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// A number of a card; its texts for what is not finite.
double NumberOf(const nlohmann::json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_string()) return std::nan("");
  const auto text = json.get<std::string>();
  return text == "Infinity" ? HUGE_VAL : text == "-Infinity" ? -HUGE_VAL : std::nan("");
}

/// Samples of one metric, in the order in which runs come.
struct Family {
  const char* name;
  const char* type;
  const char* help;
  std::string samples = {};

  void Put(const std::string& labels, double value) {
    samples += fmt::format("{}{{{}}} {}\n", name, labels, Number(value));
  }
};

struct Families {
  Family info{"luff_run_info", "gauge", "Always 1; the labels say which run it is."};
  Family state{"luff_run_state", "gauge", "1 for the state that the run is in, 0 for the others."};
  Family steps{"luff_train_steps_total", "counter", "Complete steps in TRAIN."};
  Family began{"luff_run_begun_timestamp_seconds", "gauge", "When the run began."};
  Family last{"luff_last_step_timestamp_seconds", "gauge", "When its last complete step began."};
  Family loss{"luff_loss", "gauge",
              "Newest value of a loss or scalar; in EVAL the mean of the last evaluation."};
  Family nonfinite{"luff_loss_nonfinite", "gauge",
                   "1 if that value is not finite: NaN compares false in queries."};
  Family findings{"luff_findings", "gauge", "Findings that stand and lead."};
  Family rule{"luff_finding_open", "gauge", "1 for each rule with a finding that stands and leads."};
  Family problems{"luff_run_problems", "gauge", "Damage that was found in the run."};

  void ForEach(const auto& use) {
    for (Family* one : {&info, &state, &steps, &began, &last, &loss, &nonfinite, &findings, &rule, &problems})
      use(*one);
  }
};

void Put(const ListedRun& listed, const nlohmann::json& card, Families* to) {
  const std::string run = fmt::format("run=\"{}\"", Label(TextMember(card, "name")));
  std::string version;
  if (const auto versions = card.find("versions"); versions != card.end() && versions->is_object())
    version = TextMember(*versions, TextMember(card, "framework").c_str());
  to->info.Put(
      fmt::format("{},run_id=\"{}\",framework=\"{}\",version=\"{}\",host=\"{}\"", run, listed.id,
                  Label(TextMember(card, "framework")), Label(version), Label(TextMember(card, "host"))),
      1);
  const std::string outcome = TextMember(card, "outcome");
  for (const char* state : {"running", "completed", "stopped", "failed", "unknown"})
    to->state.Put(fmt::format("{},state=\"{}\"", run, state), outcome == state ? 1 : 0);
  if (const auto steps = card.find("steps"); steps != card.end() && steps->is_object())
    to->steps.Put(run, steps->value("TRAIN", 0.0));
  const double begun = NumberOf(card.value("begun_unix_ns", nlohmann::json(0))) / 1e9;
  to->began.Put(run, begun);
  to->last.Put(run, begun + NumberOf(card.value("took_s", nlohmann::json(0))));
  std::size_t scalars = 0;
  for (const nlohmann::json& scalar : card.value("scalars", nlohmann::json::array())) {
    if (!scalar.is_object() || scalars++ == kMaxScalars) break;
    const double value = NumberOf(scalar.value("last", nlohmann::json()));
    const std::string labels =
        fmt::format("{},name=\"{}\",mode=\"{}\"", run, Label(TextMember(scalar, "name")),
                    Label(TextMember(scalar, "mode")));
    to->loss.Put(labels, value);
    to->nonfinite.Put(labels, std::isfinite(value) ? 0 : 1);
  }
  if (const auto findings = card.find("findings"); findings != card.end() && findings->is_object()) {
    to->findings.Put(run, findings->value("count", 0.0));
    for (const nlohmann::json& rule : findings->value("rules", nlohmann::json::array())) {
      if (rule.is_string())
        to->rule.Put(fmt::format("{},rule=\"{}\"", run, Label(rule.get<std::string>())), 1);
    }
  }
  to->problems.Put(run, static_cast<double>(card.value("problems", nlohmann::json::array()).size()));
}

}  // namespace

std::string Metrics(const std::vector<ListedRun>& runs, std::size_t open_runs, std::int64_t now_unix_ns) {
  Families families;
  std::size_t shown = 0;
  std::size_t dropped = 0;
  for (const ListedRun& listed : runs) {
    const nlohmann::json card = TryParseJson(listed.card);
    if (!card.is_object()) continue;
    const double ended = NumberOf(card.value("begun_unix_ns", nlohmann::json(0))) / 1e9 +
                         NumberOf(card.value("took_s", nlohmann::json(0)));
    const bool alive = TextMember(card, "outcome") == "running";
    if (!alive && static_cast<double>(now_unix_ns) / 1e9 - ended > kShownS) continue;
    if (shown == kMaxRuns) {
      ++dropped;
      continue;
    }
    ++shown;
    Put(listed, card, &families);
  }
  std::string text;
  families.ForEach([&](const Family& family) {
    if (family.samples.empty()) return;
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{3}", family.name, family.help, family.type,
                        family.samples);
  });
  const auto own = [&](const char* name, const char* type, const char* help, double value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, Number(value));
  };
  text += fmt::format(
      "# HELP luff_serve_info Always 1; the label says which Luff it is.\n# TYPE luff_serve_info gauge\n"
      "luff_serve_info{{version=\"{}\"}} 1\n",
      Version());
  own("luff_serve_runs", "gauge", "Runs below the directories that are served.",
      static_cast<double>(runs.size()));
  own("luff_serve_open_runs", "gauge", "Runs that are open.", static_cast<double>(open_runs));
  own("luff_exported_runs_dropped", "gauge", "Runs without metrics because there are too many.",
      static_cast<double>(dropped));
  return text;
}

}  // namespace luff::server
