#include "rules/kit/select.h"

#include <algorithm>
#include <cctype>

#include "luff/format/collections.h"

namespace luff::rules {
namespace {

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A run that was recorded for other rules may lack a built-in collection, but has its tensors. One that it
// has is as its user defined it.
bool StandsFor(const query::Trial& trial, const std::string& collection, const query::TensorInfo& info) {
  const format::BuiltInCollection* built_in = format::FindBuiltInCollection(collection);
  return built_in != nullptr &&
         (collection == "all" || (built_in->roles & format::RoleBit(info.role)) != 0) &&
         !Contains(trial.CollectionNames(), collection);
}

bool IsUpper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }

}  // namespace

bool HasParameter(const Parameters& parameters, const std::string& name) {
  const auto it = parameters.find(name);
  return it != parameters.end() && !it->second.empty() && it->second != "None";
}

std::string TextOf(const Parameters& parameters, const std::string& name) {
  const auto it = parameters.find(name);
  return it == parameters.end() ? std::string() : it->second;
}

bool IsOriginal(const Parameters& parameters) { return TextOf(parameters, "parameters") == "original"; }

std::int64_t IntervalOf(const Parameters& parameters, const std::string& name, std::int64_t otherwise) {
  const Result<std::int64_t> number = ParseInt(TextOf(parameters, name));
  return number.ok() ? std::max<std::int64_t>(1, *number) : otherwise;
}

Result<TensorSelector> TensorSelector::Make(const Parameters& parameters, bool all_if_empty) {
  TensorSelector selector;
  selector.all_if_empty_ = all_if_empty;
  selector.collections_ = ParseList(TextOf(parameters, "collection_names"));
  selector.regexes_ = ParseList(TextOf(parameters, "tensor_regex"));
  for (const std::string& regex : selector.regexes_) {
    LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(regex));
    selector.patterns_.push_back(std::move(pattern));
  }
  return selector;
}

bool TensorSelector::Selects(const query::Trial& trial, query::TensorId id) {
  if (id >= known_.size()) known_.resize(id + 1, -1);
  if (known_[id] < 0) {
    const query::TensorInfo& info = trial.tensor(id);
    bool chosen = empty() && all_if_empty_;
    for (const std::string& collection : collections_)
      chosen = chosen || Contains(info.collections, collection) || StandsFor(trial, collection, info);
    for (const Regex& pattern : patterns_) chosen = chosen || pattern.Search(info.name);
    known_[id] = chosen ? 1 : 0;
  }
  return known_[id] == 1;
}

std::vector<Need> TensorSelector::NeedsOf(const std::string& collection, std::uint32_t forms) const {
  std::vector<Need> needs;
  for (const std::string& name : collections_) {
    Need need;
    need.collection = name;
    need.forms = forms;
    needs.push_back(need);
  }
  if (!regexes_.empty() || (collections_.empty() && all_if_empty_)) {
    Need need;
    need.collection = collection;
    need.include = regexes_.empty() ? std::vector<std::string>{".*"} : regexes_;
    need.forms = forms;
    needs.push_back(need);
  }
  return needs;
}

std::vector<Need> SelectedNeeds(const Parameters& parameters, const std::string& collection,
                                std::uint32_t forms, bool all_if_empty) {
  const Result<TensorSelector> selector = TensorSelector::Make(parameters, all_if_empty);
  return selector.ok() ? selector->NeedsOf(collection, forms) : std::vector<Need>{};
}

const std::vector<query::TensorId>& MatchingTensors::Of(const query::Trial& trial) {
  for (; known_ < trial.tensor_count(); ++known_) {
    const auto id = static_cast<query::TensorId>(known_);
    if (pattern_.Search(trial.tensor(id).name)) tensors_.push_back(id);
  }
  return tensors_;
}

std::vector<double> NumbersOf(const query::Value& value) {
  const std::size_t size = DTypeSize(value.dtype);
  std::vector<double> numbers(size == 0 ? 0 : value.bytes.size() / size);
  ToFloat64(value.dtype, value.bytes.data(), numbers.size(), numbers.data());
  return numbers;
}

std::optional<std::vector<double>> ReadNumbers(const StepView& view, query::TensorId tensor,
                                               std::optional<std::uint32_t> worker) {
  const Result<query::Value> value =
      view.trial.ReadValue(tensor, view.rows.info.global_step, query::Mode::kGlobal, worker);
  if (!value.ok()) return std::nullopt;
  return NumbersOf(value.value());
}

std::string PageOf(const std::string& rule) {
  std::string page = "docs/rules/";
  for (std::size_t i = 0; i < rule.size(); ++i) {
    // A word begins at a capital after a small letter, or at the last capital of several ("NLPSequence").
    const bool begins = i > 0 && IsUpper(rule[i]) &&
                        (!IsUpper(rule[i - 1]) || (i + 1 < rule.size() && !IsUpper(rule[i + 1])));
    if (begins) page += '_';
    page += static_cast<char>(std::tolower(static_cast<unsigned char>(rule[i])));
  }
  return page + ".md";
}

Finding FindingAt(const char* rule, const char* cause, const query::Trial& trial, query::TensorId tensor,
                  std::uint32_t worker, const query::StepInfo& step) {
  Finding finding;
  finding.rule = rule;
  finding.page = PageOf(rule);
  finding.cause = cause;
  if (tensor != format::kNoId) finding.tensor = trial.tensor(tensor).name;
  finding.worker = worker;
  finding.mode = query::ModeName(step.mode);
  finding.step = finding.since_step = finding.last_step = step.mode_step;
  finding.global_step = step.global_step;
  finding.update = step.update;
  return finding;
}

}  // namespace luff::rules
