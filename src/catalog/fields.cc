#include "catalog/fields.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/format.h"

namespace luff::catalog {
namespace {

class Collector {
 public:
  void Text(std::string name, const std::string& text) {
    if (!text.empty()) fields_.push_back({std::move(name), text, false, 0});
  }
  void Number(std::string name, double number) {
    // NaN compares with nothing, but can be asked for by its name.
    fields_.push_back({std::move(name), fmt::format("{:.6g}", number), !std::isnan(number), number});
  }
  void Scalar(const std::string& name, const catalog::Scalar& scalar) {
    Number(name, scalar.last);
    Number(name + ".first", scalar.first);
    Number(name + ".min", scalar.min);
    Number(name + ".max", scalar.max);
  }
  std::vector<Field> Sorted() && {
    std::stable_sort(fields_.begin(), fields_.end(),
                     [](const Field& a, const Field& b) { return a.name < b.name; });
    return std::move(fields_);
  }

 private:
  std::vector<Field> fields_;
};

}  // namespace

std::vector<Field> FieldsOf(const Card& card) {
  Collector fields;
  fields.Text("name", card.name);
  fields.Text("run", card.run);
  fields.Text("title", card.title);
  fields.Text("note", card.note);
  fields.Text("sweep", card.sweep);
  fields.Text("trial", card.trial);
  fields.Text("outcome", card.outcome);
  fields.Text("verdict", card.verdict);
  fields.Text("why", card.why);
  fields.Text("pruned", card.pruned);
  fields.Text("host", card.host);
  fields.Text("framework", card.framework);
  fields.Text("command", fmt::format("{}", fmt::join(card.command, " ")).substr(0, kMaxText));
  fields.Number("begun", static_cast<double>(card.begun_unix_ns) * 1e-9);
  fields.Number("took", card.took_s);
  fields.Number("workers", static_cast<double>(card.workers));
  fields.Number("findings", static_cast<double>(card.findings));
  double steps = 0;
  for (const auto& [mode, count] : card.steps) steps += static_cast<double>(count);
  const auto train = card.steps.find("TRAIN");
  fields.Number("steps", train != card.steps.end() ? static_cast<double>(train->second) : steps);
  for (const std::string& tag : card.tags) fields.Text("tag", tag);
  for (const std::string& rule : card.rules) fields.Text("rule", rule);
  for (const auto& [name, version] : card.versions) fields.Text("version." + name, version);
  for (const auto& [name, value] : card.parameters) {
    const std::string full = "parameter." + name;
    if (const auto* number = std::get_if<double>(&value))
      fields.Number(full, *number);
    else if (const auto* yes = std::get_if<bool>(&value))
      fields.Text(full, *yes ? "true" : "false");
    else
      fields.Text(full, std::get<std::string>(value));
  }
  for (const Scalar& one : card.scalars) {
    fields.Scalar((one.eval ? "eval." : "scalar.") + one.name, one);
    if (!one.eval && one.name == card.loss) fields.Scalar("loss", one);
    if (one.eval && one.name == card.eval_loss) fields.Scalar("eval_loss", one);
  }
  return std::move(fields).Sorted();
}

std::string WordsOf(const Card& card) {
  std::string all;
  const auto add = [&all](std::string_view text) {
    if (text.empty() || all.size() >= kMaxWordsBytes) return;
    all += all.empty() ? "" : "\n";
    all += text.substr(0, kMaxWordsBytes - all.size());
  };
  for (const std::string* text :
       {&card.name, &card.title, &card.sweep, &card.trial, &card.verdict, &card.why, &card.headline.rule,
        &card.headline.tensor, &card.headline.what, &card.note, &card.host, &card.framework, &card.run_id})
    add(*text);
  for (const std::string& tag : card.tags) add(tag);
  for (const std::string& rule : card.rules) add(rule);
  add(fmt::format("{}", fmt::join(card.command, " ")));
  for (const Field& field : FieldsOf(card)) {
    constexpr std::string_view kKind = "parameter.";
    if (field.name.starts_with(kKind)) add(field.name.substr(kKind.size()) + "=" + field.text);
  }
  return all;
}

std::vector<std::string> MeantBy(const std::string& name) {
  return {name, "parameter." + name, "scalar." + name, "eval." + name};
}

}  // namespace luff::catalog
