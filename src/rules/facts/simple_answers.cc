#include "rules/facts/simple_answers.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace luff::rules {
namespace {

constexpr double kMostLoss = 1e3;  // of a row: beyond it precision does not matter, and sums stay small
constexpr std::uint64_t kMostTarget = 1 << 24;
constexpr std::size_t kMostInputNames = 4096;

// Halves are told by a bit that the places of HashCount do not use.
std::size_t HalfOf(std::uint64_t hash) { return (hash >> 40U) & 1U; }

double ErrorOf(Formula formula, double difference, double delta) {
  const double d = std::abs(difference);
  if (formula == Formula::kL1) return d;
  if (formula == Formula::kSmoothL1) return d < delta ? d * d / delta / 2 : d - delta / 2;
  if (formula == Formula::kHuber) return d < delta ? d * d / 2 : delta * (d - delta / 2);
  return d * d;
}

}  // namespace

void PairedLosses::Add(double of_model, double of_simple, double of_constant) {
  of_model = std::clamp(of_model, 0.0, kMostLoss);
  of_simple = std::clamp(of_simple, 0.0, kMostLoss);
  of_constant = std::clamp(of_constant, 0.0, kMostLoss);
  rows += 1;
  model += of_model;
  simple += of_simple;
  constant += of_constant;
  behind_squares += std::pow(of_model - of_simple, 2);
  gain_squares += std::pow(of_constant - of_simple, 2);
  known_squares += std::pow(of_constant - of_model, 2);
}

void PairedLosses::Add(const PairedLosses& other) {
  rows += other.rows;
  model += other.model;
  simple += other.simple;
  constant += other.constant;
  behind_squares += other.behind_squares;
  gain_squares += other.gain_squares;
  known_squares += other.known_squares;
}

double PairedLosses::Errors(double sum, double squares, double distinct) const {
  const double independent = std::min(rows, distinct);
  if (independent < 2) return 0;
  const double mean = sum / rows;
  const double variance = std::max(squares / rows - mean * mean, 0.0);
  return mean / (std::sqrt(variance / independent) + 1e-9);
}

void PairedLosses::VisitFields(Fields& io) {
  io("rows", rows);
  io("model", model);
  io("simple", simple);
  io("constant", constant);
  io("behind_squares", behind_squares);
  io("gain_squares", gain_squares);
  io("known_squares", known_squares);
}

void HashCount::Add(std::uint64_t hash) { bits_[(hash >> 5U) % kWords] |= std::uint32_t{1} << (hash & 31U); }

double HashCount::count() const {
  double empty = 0;
  for (const std::uint32_t word : bits_) empty += 32 - std::popcount(word);
  constexpr double kAll = kWords * 32;
  return kAll * std::log(kAll / std::max(empty, 1.0));
}

void IdTable::Add(std::size_t half, double id, double target) {
  const auto count = [](std::map<std::uint64_t, double>* counts, std::uint64_t key, std::size_t most) {
    if (counts->size() < most || counts->contains(key)) ++(*counts)[key];
  };
  const auto to = static_cast<std::uint64_t>(target);
  count(&halves_[half & 1].pairs, static_cast<std::uint64_t>(id) * kMostTarget + to, kMostPairs);
  count(&halves_[half & 1].targets, to, kMostTargets);
}

IdTable::Answers IdTable::Solve(std::size_t without) const {
  std::map<std::uint64_t, double> pairs;
  std::map<std::uint64_t, double> targets;
  for (std::size_t half = 0; half < 2; ++half) {
    if (half == without) continue;
    for (const auto& [key, count] : halves_[half].pairs) pairs[key] += count;
    for (const auto& [key, count] : halves_[half].targets) targets[key] += count;
  }
  Answers answers;
  double most = 0;
  for (const auto& [target, count] : targets)
    if (count > most) {
      most = count;
      answers.of_all = static_cast<double>(target);
    }
  std::map<std::uint64_t, double> best;
  for (const auto& [key, count] : pairs) {
    double& largest = best[key / kMostTarget];
    if (count <= largest) continue;
    largest = count;
    answers.of_id[key / kMostTarget] = static_cast<double>(key % kMostTarget);
  }
  return answers;
}

void IdTable::VisitFields(Fields& io) { io("halves", halves_); }

bool SimpleAnswers::Fits(const RowExamples& examples) const {
  return !begun_ || (kind_ == examples.kind && formula_ == examples.formula && inputs_ == examples.inputs &&
                     (of_tokens() || (width_ == examples.width && count_ == examples.count)) &&
                     classes_ == examples.classes);
}

PairedLosses SimpleAnswers::Learn(const RowExamples& examples) {
  if (!begun_) {
    begun_ = true;
    kind_ = examples.kind;
    formula_ = examples.formula;
    inputs_ = examples.inputs.substr(0, kMostInputNames);
    width_ = examples.width;
    count_ = examples.count;
    classes_ = examples.classes;
  }
  for (const std::uint64_t hash : examples.hashes) distinct_.Add(hash);
  if (of_tokens()) {
    for (std::size_t i = 0; i < examples.targets.size(); ++i)
      if (examples.targets[i] >= 0)
        table_.Add(HalfOf(examples.hashes[i / examples.width]), examples.columns[i], examples.targets[i]);
    return OfTable(examples, true);
  }
  std::vector<std::size_t> halves;
  std::vector<double> columns;
  std::vector<double> targets;
  for (std::size_t i = 0; i < examples.rows; ++i) {
    const double* own = &examples.targets[i * examples.count];
    if (kind_ == RowExamples::Kind::kClasses && *own < 0) continue;
    halves.push_back(HalfOf(examples.hashes[i]));
    const double* row = &examples.columns[i * examples.width];
    columns.insert(columns.end(), row, row + examples.width);
    if (kind_ == RowExamples::Kind::kClasses) {
      targets.resize(targets.size() + examples.classes);
      targets[targets.size() - examples.classes + static_cast<std::size_t>(*own)] = 1;
    } else {
      targets.insert(targets.end(), own, own + examples.count);
    }
  }
  line_.Add(columns, targets, halves, examples.as_they_are);
  return OfLine(examples, true);
}

PairedLosses SimpleAnswers::Answer(const RowExamples& examples) const {
  if (!begun_) return {};
  return of_tokens() ? OfTable(examples, false) : OfLine(examples, false);
}

PairedLosses SimpleAnswers::OfLine(const RowExamples& examples, bool crossed) const {
  PairedLosses losses;
  const bool of_classes = kind_ == RowExamples::Kind::kClasses;
  if (line_.width() != examples.width || line_.targets() != (of_classes ? examples.classes : examples.count))
    return losses;
  std::array<LineFit::Line, 2> lines;
  if (crossed) {
    lines = {line_.Solve(1), line_.Solve(0)};
  } else {
    lines[0] = lines[1] = line_.Solve(2);
  }
  const auto best = [](const std::vector<double>& scores) {
    return static_cast<double>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  };
  std::vector<double> answer;
  for (std::size_t i = 0; i < examples.rows; ++i) {
    const LineFit::Line& line = lines[HalfOf(examples.hashes[i])];
    line_.Answer(line, &examples.columns[i * examples.width], &answer);
    const double* own = &examples.targets[i * examples.count];
    const double* given = &examples.answers[i * examples.count];
    if (of_classes) {
      if (*own < 0) continue;
      losses.Add(*given != *own ? 1 : 0, best(answer) != *own ? 1 : 0, best(line.mean) != *own ? 1 : 0);
      continue;
    }
    double model = 0;
    double simple = 0;
    double constant = 0;
    for (std::size_t c = 0; c < examples.count; ++c) {
      const double target = line_.Standardised(c, own[c]);
      const double delta = examples.delta / line_.Unit(c);
      model += ErrorOf(formula_, line_.Standardised(c, given[c]) - target, delta);
      simple += ErrorOf(formula_, answer[c] - target, delta);
      constant += ErrorOf(formula_, line.mean[c] - target, delta);
    }
    const auto count = static_cast<double>(examples.count);
    losses.Add(model / count, simple / count, constant / count);
  }
  return losses;
}

PairedLosses SimpleAnswers::OfTable(const RowExamples& examples, bool crossed) const {
  PairedLosses losses;
  std::array<IdTable::Answers, 2> tables;
  if (crossed) {
    tables = {table_.Solve(0), table_.Solve(1)};
  } else {
    tables[0] = tables[1] = table_.Solve(2);
  }
  for (std::size_t i = 0; i < examples.rows; ++i) {
    const IdTable::Answers& table = tables[HalfOf(examples.hashes[i])];
    double places = 0;
    double model = 0;
    double simple = 0;
    double constant = 0;
    for (std::size_t j = i * examples.width; j < (i + 1) * examples.width; ++j) {
      const double own = examples.targets[j];
      if (own < 0) continue;
      const auto found = table.of_id.find(static_cast<std::uint64_t>(examples.columns[j]));
      places += 1;
      model += examples.answers[j] != own ? 1 : 0;
      simple += (found == table.of_id.end() ? table.of_all : found->second) != own ? 1 : 0;
      constant += table.of_all != own ? 1 : 0;
    }
    if (places > 0) losses.Add(model / places, simple / places, constant / places);
  }
  return losses;
}

void SimpleAnswers::VisitFields(Fields& io) {
  io("begun", begun_);
  io("kind", kind_);
  io("formula", formula_);
  io("inputs", inputs_);
  io("width", width_);
  io("count", count_);
  io("classes", classes_);
  io("distinct", distinct_);
  io("line", line_);
  io("table", table_);
}

}  // namespace luff::rules
