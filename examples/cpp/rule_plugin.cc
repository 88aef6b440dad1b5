// A rule in a shared library: `LossAbove` reports a loss that is above a limit at several steps in a row.
//
//   luff check RUN --rules ./libluff_example_rule.so:LossAbove:limit=3
//
// The interface is plain C (luff/rules/plugin.h). The implementation may be C++, but must not throw across
// the interface.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "luff/rules/plugin.h"

namespace {

struct LossAbove {
  double limit = 5;
  std::int64_t in_a_row = 3, row = 0, since = 0;
};

void* Create(const luff_host_v1* host, const luff_parameter_v1* parameters, std::uint64_t count) {
  auto* rule = new (std::nothrow) LossAbove;
  for (std::uint64_t i = 0; rule != nullptr && i < count; ++i) {
    char* end = nullptr;
    const double value = std::strtod(parameters[i].value, &end);
    const bool number = end != parameters[i].value && *end == '\0' && std::isfinite(value);
    if (number && std::strcmp(parameters[i].name, "limit") == 0) {
      rule->limit = value;
    } else if (number && value >= 1 && std::strcmp(parameters[i].name, "in_a_row") == 0) {
      rule->in_a_row = static_cast<std::int64_t>(value);
    } else {
      host->fail(host, "LossAbove takes limit=NUMBER and in_a_row=NUMBER");
      delete rule;
      return nullptr;
    }
  }
  return rule;
}

void Destroy(void* rule) { delete static_cast<LossAbove*>(rule); }

// Finds the first loss of the step, recorded as a scalar or as the summary of one element.
bool FindLoss(const luff_host_v1* host, const luff_step_v1* step, double* loss, const char** name) {
  const auto is_loss = [&](std::uint32_t tensor) {
    const char* role = host->tensor_role(host, tensor);
    *name = host->tensor_name(host, tensor);
    return role != nullptr && std::strcmp(role, "loss") == 0;
  };
  for (std::uint64_t i = 0; i < step->scalar_count; ++i) {
    const auto* at = reinterpret_cast<const char*>(step->scalars) + i * step->scalar_size;
    const auto* scalar = reinterpret_cast<const luff_scalar_v1*>(at);
    *loss = scalar->value;
    if (is_loss(scalar->tensor)) return true;
  }
  for (std::uint64_t i = 0; i < step->summary_count; ++i) {
    const auto* at = reinterpret_cast<const char*>(step->summaries) + i * step->summary_size;
    const auto* summary = reinterpret_cast<const luff_summary_v1*>(at);
    *loss = summary->mean;
    if (summary->count == 1 && is_loss(summary->tensor)) return true;
  }
  return false;
}

void OnStep(void* self, const luff_host_v1* host, const luff_step_v1* step) {
  auto* rule = static_cast<LossAbove*>(self);
  if (step->mode != LUFF_MODE_TRAIN) return;
  double loss = 0;
  const char* name = nullptr;
  if (!FindLoss(host, step, &loss, &name)) {
    host->lacks(host, "no loss was recorded");
    return;
  }
  if (!(loss > rule->limit)) {
    if (rule->row >= rule->in_a_row) host->heal(host, "above", name);
    rule->row = 0;
    return;
  }
  if (rule->row++ == 0) rule->since = step->step;
  if (rule->row < rule->in_a_row) return;
  const char* const names[] = {"loss", "limit"};
  const double values[] = {loss, rule->limit};
  luff_finding_v1 finding{};
  finding.size = sizeof(finding);
  finding.severity = LUFF_SEVERITY_WARN;
  finding.cause = "above";
  finding.tensor = name;
  finding.what = "the loss stays above its limit";
  finding.remedy = "lower the learning rate, or look at the data";
  finding.since_step = rule->since;
  finding.evidence_names = names;
  finding.evidence_values = values;
  finding.evidence_count = 2;
  host->report(host, &finding);
}

std::uint64_t Save(void* rule, char* buffer, std::uint64_t capacity) {
  const auto* self = static_cast<LossAbove*>(rule);
  // Text, so that another machine can read the state.
  char text[64];
  const int length = std::snprintf(text, sizeof(text), "%lld %lld", static_cast<long long>(self->row),
                                   static_cast<long long>(self->since));
  const auto size = static_cast<std::uint64_t>(length);
  if (size <= capacity) std::memcpy(buffer, text, size);
  return size;
}

std::int32_t Restore(void* rule, const char* state, std::uint64_t length) {
  auto* self = static_cast<LossAbove*>(rule);
  char text[64] = {};
  if (length >= sizeof(text)) return 1;
  std::memcpy(text, state, length);
  long long row = 0;
  long long since = 0;
  if (std::sscanf(text, "%lld %lld", &row, &since) != 2 || row < 0) return 1;
  self->row = row;
  self->since = since;
  return 0;
}

const luff_need_v1 kLoss = {sizeof(luff_need_v1), LUFF_FORM_SUMMARY, "[Ll]oss", nullptr, 1};

std::uint64_t Needs(const luff_need_v1* const** needs) {
  static const luff_need_v1* const kNeeds[] = {&kLoss};
  *needs = kNeeds;
  return 1;
}

const luff_rule_v1 kLossAbove = {sizeof(luff_rule_v1),
                                 1,
                                 "LossAbove",
                                 "the loss stays above a limit",
                                 Create,
                                 Destroy,
                                 OnStep,
                                 nullptr,
                                 Save,
                                 Restore,
                                 Needs};
const luff_rule_v1* const kRules[] = {&kLossAbove};
const luff_rule_plugin kPlugin = {sizeof(luff_rule_plugin), LUFF_RULE_PLUGIN_VERSION, 1, kRules};

}  // namespace

extern "C" const luff_rule_plugin* luff_rule_plugin_v1(void) { return &kPlugin; }
