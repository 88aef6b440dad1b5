#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/output_file.h"
#include "luff/base/result.h"
#include "luff/query/trial.h"

/// Writes a run in other programs' formats: `luff export`.
namespace luff::cli {

/// Which part of a run to export.
struct ExportChoice {
  std::vector<std::uint8_t> wanted;  // by tensor; grows with the trial
  std::string regex, collection;
  query::Mode mode = query::Mode::kGlobal;  // kGlobal: all
  std::optional<std::uint32_t> worker;

  [[nodiscard]] Status Update(const query::Trial& trial);
  [[nodiscard]] bool Takes(query::TensorId tensor, std::uint32_t of_worker) const noexcept {
    return tensor < wanted.size() && wanted[tensor] != 0 && (!worker || *worker == of_worker);
  }
  [[nodiscard]] bool TakesStep(const query::StepInfo& info) const noexcept {
    return !info.superseded && (mode == query::Mode::kGlobal || info.mode == mode);
  }
};

/// The progress of an export, stored as luff-export.json beside the output, so that the same command
/// continues where the last one ended.
struct ExportState {
  std::size_t steps = 0;                       // number of steps of the trial that are written
  std::map<std::string, std::uint64_t> files;  // by name, of files that are appended to: valid bytes
};

/// Puts rows in a fixed order: open and sealed segments order them differently, but their exports must be
/// equal.
template <typename Row>
void InOrder(std::vector<Row>* rows) {
  std::stable_sort(rows->begin(), rows->end(), [](const Row& a, const Row& b) {
    return std::pair(a.tensor, a.worker) < std::pair(b.tensor, b.worker);
  });
}

/// Writes one format. Receives each step once, in order.
class Exporter {
 public:
  virtual ~Exporter() = default;
  /// `state` describes what was written before.
  [[nodiscard]] virtual Status Begin(const query::Trial& trial, const ExportState& state) = 0;
  [[nodiscard]] virtual Status Step(const query::Trial& trial, std::size_t n,
                                    const query::Trial::StepRows& rows) = 0;
  /// Writes everything received so far to the files, and records them in `state`.
  [[nodiscard]] virtual Status Flush(ExportState* state) = 0;
  /// Called when no more steps come for now; with `over`, none will ever come.
  [[nodiscard]] virtual Status End(const query::Trial& trial, bool over) = 0;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// What could not be written unchanged, each kind once.
  [[nodiscard]] const std::vector<std::string>& remarks() const noexcept { return remarks_; }

 protected:
  void Remark(std::string text);
  std::uint64_t bytes_ = 0;

 private:
  std::vector<std::string> remarks_;
};

[[nodiscard]] std::unique_ptr<Exporter> MakeSmdebugExporter(const OutputFolder& out,
                                                            const ExportChoice* choice);
[[nodiscard]] std::unique_ptr<Exporter> MakeTensorBoardExporter(const OutputFolder& out,
                                                                const ExportChoice* choice);
[[nodiscard]] std::unique_ptr<Exporter> MakeCsvExporter(const OutputFolder& out, const ExportChoice* choice);

/// Writes all values of one step as a safetensors file. Reads one value at a time.
struct SafetensorsWritten {
  std::size_t values = 0;
  std::vector<std::string> remarks;  // names that the format cannot hold as they are
};
[[nodiscard]] Result<SafetensorsWritten> ExportSafetensors(const query::Trial& trial,
                                                           const ExportChoice& choice, std::size_t n,
                                                           const std::string& out, Existing existing);

}  // namespace luff::cli
