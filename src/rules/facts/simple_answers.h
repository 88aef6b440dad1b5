#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rules/facts/line_fit.h"
#include "rules/facts/row_examples.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Losses of the same samples, added up: of the model, of something simple, and of the answer that is always
/// the same. Classes are right or wrong; numbers have the errors of their loss, in units of the targets'
/// deviation; zeros and ones squared errors of their probabilities.
struct PairedLosses {
  double rows = 0, model = 0, simple = 0, constant = 0;
  double behind_squares = 0, gain_squares = 0, known_squares = 0;  // of the three differences below

  void Add(double of_model, double of_simple, double of_constant);
  void Add(const PairedLosses& other);
  /// 1 - loss / loss of the constant answer: what is explained. 0 without losses.
  [[nodiscard]] double Explained(double loss) const { return constant > 0 ? 1 - loss / constant : 0; }
  [[nodiscard]] double model_explains() const { return Explained(model); }
  [[nodiscard]] double simple_explains() const { return Explained(simple); }
  /// Standard errors by which the model is worse than what is simple, by which that is better than the
  /// constant answer, and the model is. `distinct` bounds how many rows are independent.
  [[nodiscard]] double behind(double distinct) const {
    return Errors(model - simple, behind_squares, distinct);
  }
  [[nodiscard]] double gain(double distinct) const {
    return Errors(constant - simple, gain_squares, distinct);
  }
  [[nodiscard]] double known(double distinct) const {
    return Errors(constant - model, known_squares, distinct);
  }
  void VisitFields(Fields& io);

 private:
  [[nodiscard]] double Errors(double sum, double squares, double distinct) const;
};

/// How many different hashes were seen, up to a few thousand: linear counting (Whang et al. 1990).
class HashCount {
 public:
  void Add(std::uint64_t hash);
  [[nodiscard]] double count() const;
  void VisitFields(Fields& io) { io("bits", bits_); }

 private:
  static constexpr std::size_t kWords = 128;
  std::array<std::uint32_t, kWords> bits_{};
};

/// What the id at a place tells of its target: for each, how often which target came.
class IdTable {
 public:
  void Add(std::size_t half, double id, double target);
  /// Leaves out one half of the rows (2: none): the target that came most often with each id, and of all.
  struct Answers {
    std::map<std::uint64_t, double> of_id;
    double of_all = 0;
  };
  [[nodiscard]] Answers Solve(std::size_t without) const;
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMostPairs = 4096, kMostTargets = 4096;  // of one half; of more, the first
  struct Half {
    std::map<std::uint64_t, double> pairs, targets;
    void VisitFields(Fields& io) {
      io("pairs", pairs, kMostPairs);
      io("targets", targets, kMostTargets);
    }
  };
  std::array<Half, 2> halves_;
};

/// **Thread-compatible.** Something simple that learns beside a model: a line through the columns of the
/// inputs, or a table of what follows each id. It answers each sample by what the other half of the samples
/// told it, those that hash otherwise: it never saw the sample that it answers, nor one that equals it.
/// Bounded memory.
class SimpleAnswers {
 public:
  /// Whether it learns from, and answers, such examples. True before the first.
  [[nodiscard]] bool Fits(const RowExamples& examples) const;
  /// Learns from examples that it Fits, and answers them.
  [[nodiscard]] PairedLosses Learn(const RowExamples& examples);
  /// Answers other examples that it Fits by all that it has learnt.
  [[nodiscard]] PairedLosses Answer(const RowExamples& examples) const;
  [[nodiscard]] double distinct() const { return distinct_.count(); }
  [[nodiscard]] bool of_tokens() const { return kind_ == RowExamples::Kind::kTokens; }
  [[nodiscard]] bool of_classes() const { return kind_ != RowExamples::Kind::kNumbers; }

  void VisitFields(Fields& io);

 private:
  // `crossed`: by the other half; else by both.
  [[nodiscard]] PairedLosses OfLine(const RowExamples& examples, bool crossed) const;
  [[nodiscard]] PairedLosses OfTable(const RowExamples& examples, bool crossed) const;

  bool begun_ = false;
  RowExamples::Kind kind_ = RowExamples::Kind::kNumbers;
  Formula formula_ = Formula::kUnknown;
  std::string inputs_;
  std::uint64_t width_ = 0, count_ = 0, classes_ = 0;
  HashCount distinct_;
  LineFit line_;
  IdTable table_;
};

}  // namespace luff::rules
