#include "luff/profile/timeline.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace luff::profile {
namespace {

namespace timeline_test {

using format::Phase;

struct Row {
  Phase phase;
  std::int64_t start, length;
};

query::StepPhases Step(std::int64_t ended, std::int64_t wall, const std::vector<Row>& rows) {
  query::StepPhases phases;
  phases.head.wall_ns = wall;
  phases.head.steps = 1;
  phases.ended_unix_ns = ended;
  std::int64_t left = wall;
  for (const Row& row : rows) {
    const auto at = static_cast<std::size_t>(row.phase);
    phases.ns[at] = row.length;
    phases.starts_ns[at] = row.start;
    phases.begins[at] = 1;
    left -= row.length;
  }
  phases.ns[0] = left;
  return phases;
}

std::vector<std::pair<std::int64_t, std::int64_t>> Spans(const PlacedStep& step) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const PhaseSlice& slice : step.phases) spans.emplace_back(slice.begin_ns, slice.end_ns);
  return spans;
}
using SpanList = std::vector<std::pair<std::int64_t, std::int64_t>>;

TEST(Timeline, PhasesLieWhereTheyBegan) {
  Timeline timeline;
  PlacedStep step;
  timeline.Place(
      Step(10'000, 100, {{Phase::kBackward, 60, 20}, {Phase::kForward, 30, 25}, {Phase::kDataWait, 0, 10}}),
      &step);
  EXPECT_EQ(step.begin_ns, 9'900);
  EXPECT_EQ(step.end_ns, 10'000);
  ASSERT_EQ(step.phases.size(), 3);
  EXPECT_EQ(step.phases[0].phase, Phase::kDataWait);
  EXPECT_EQ(Spans(step), (SpanList{{9'900, 9'910}, {9'930, 9'955}, {9'960, 9'980}}));
}

TEST(Timeline, APhaseThatBeganBeforeTheStepOrRepeatedlyIsMovedToWhereThereIsRoom) {
  Timeline timeline;
  PlacedStep step;
  // The last of several waits began at 90, but all of them took 50; the forward pass began before the step.
  timeline.Place(Step(1'000, 100, {{Phase::kDataWait, 90, 50}, {Phase::kForward, -1, 40}}), &step);
  EXPECT_EQ(Spans(step), (SpanList{{900, 940}, {950, 1'000}}));
}

TEST(Timeline, AClockThatIsSetBackShiftsTheRest) {
  Timeline timeline;
  PlacedStep step;
  timeline.Place(Step(10'000, 100, {}), &step);
  timeline.Place(Step(5'000, 70, {{Phase::kLoss, 10, 10}}), &step);
  EXPECT_EQ(step.begin_ns, 10'000);
  EXPECT_EQ(step.end_ns, 10'070);
  EXPECT_EQ(Spans(step), (SpanList{{10'010, 10'020}}));
}

RC_GTEST_PROP(Timeline, LengthsAreExactAndNothingOverlaps, ()) {
  Timeline timeline;
  PlacedStep step;
  std::int64_t last_end = 0;
  for (int n = 0; n < 5; ++n) {
    const std::int64_t wall = *rc::gen::inRange<std::int64_t>(0, 1'000'000);
    std::vector<Row> rows;
    std::int64_t left = wall;
    for (std::size_t i = 1; i < format::kPhaseCount; ++i) {
      if (*rc::gen::arbitrary<bool>()) continue;
      const std::int64_t length = *rc::gen::inRange<std::int64_t>(0, left + 1);
      rows.push_back({static_cast<Phase>(i), *rc::gen::arbitrary<std::int64_t>(), length});
      left -= length;
    }
    const auto phases = Step(*rc::gen::arbitrary<std::int64_t>(), wall, rows);
    timeline.Place(phases, &step);
    RC_ASSERT(step.begin_ns >= last_end);
    const bool full = step.begin_ns > INT64_MAX - wall;
    RC_ASSERT(full || step.end_ns - step.begin_ns == wall);
    last_end = step.end_ns;
    std::int64_t from = step.begin_ns;
    for (const PhaseSlice& slice : step.phases) {
      RC_ASSERT(slice.begin_ns >= from);
      RC_ASSERT(full || slice.end_ns - slice.begin_ns == phases.ns[static_cast<std::size_t>(slice.phase)]);
      from = slice.end_ns;
    }
    RC_ASSERT(from <= step.end_ns);
  }
}

}  // namespace timeline_test

}  // namespace
}  // namespace luff::profile
