#pragma once
#include "luff/query/trial.h"
#include "server/message.h"
#include "server/payload.h"
#include "server/statistic.h"

namespace luff::server {

/// One curve: what is shown of a tensor, and where.
struct CurveQuestion {
  query::TensorId tensor = 0;
  Statistic statistic = Statistic::kAuto;
  std::optional<query::Mode> mode = {};  // none: the tensor's own, TRAIN before others
  std::optional<std::uint32_t> worker = {};
  std::int64_t from = 0, to = INT64_MAX;  // global steps, both included
  std::size_t points = 1024;              // at least 1
  // As files hold it (docs/spec/report.md): without what follows from other arrays, and in 32 bits.
  bool brief = false, single = false;
};
/// One statistic of several tensors, as a request asks for it (`tensor` and `points` of `each` are not used).
struct CurvesQuestion {
  std::vector<query::TensorId> tensors;
  CurveQuestion each;
};
/// Errors: kInvalidArgument, kNotFound for a statistic that does not exist.
[[nodiscard]] Result<CurvesQuestion> CurvesAsked(const Request& request);

inline constexpr std::size_t kMaxPoints = 4096;  // of an answer

/// Adds the arrays of docs/spec/http-api.md, section 4. Buckets of 2^k steps begin at multiples of that, so
/// what a chart shows never depends on when it was asked for. Returns whether every step has its own.
[[nodiscard]] Result<bool> AddCurve(const query::Trial& trial, const CurveQuestion& question,
                                    Payload* payload);

/// The mean of a statistic over the summaries of a tensor in each of `columns` buckets of so many global
/// steps, from step 0 on; NaN where no value is finite. Read from the run, of its first worker that has the
/// step. All NaN for the update ratio, which no summary holds.
[[nodiscard]] Result<std::vector<double>> MeansOf(const query::Trial& trial, query::TensorId tensor,
                                                  Statistic statistic, query::Mode mode,
                                                  std::int64_t bucket_steps, std::size_t columns);

/// The mode that a request names; none if it names none.
[[nodiscard]] Result<std::optional<query::Mode>> ModeIn(const Request& request);

/// The mode that is shown of a tensor unless another is asked for: the first in which it has steps.
[[nodiscard]] query::Mode ModeShown(const query::Trial& trial, query::TensorId id);

}  // namespace luff::server
