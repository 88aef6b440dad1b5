#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <numeric>
#include <set>

#include "capture/testing.h"
#include "store/test_run.h"

namespace luff::capture::session_test {
namespace {

using format::Form;
using format::Mode;
using format::Role;
using std::chrono::seconds;
using testing::Bytes;
using testing::Disk;
using testing::MakeLayout;
using testing::StartSession;

constexpr char kRawWeights[] =
    R"({"collections":[{"name":"weights","save":{"save_interval":1}},{"name":"gradients","save":{"save_interval":2}}]})";

class SessionTest : public ::testing::Test {
 protected:
  void Start(std::string_view config, bool thread = true) {
    session_ = StartSession(disk_, config, thread);
    ASSERT_NE(session_, nullptr);
  }
  void End(std::int64_t step, Mode mode = Mode::kTrain) { session_->EndStep({mode, step, step, step}); }
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  std::unique_ptr<Session> session_;
};

TEST_F(SessionTest, SummariesOfWeightsAndGradientsByDefault) {
  Start("");
  const TensorId weight = session_->DefineTensor("Net_fc.weight", Role::kWeight, "fc", "Linear");
  const TensorId output = session_->DefineTensor("Net_fc_output_0", Role::kOutput, "fc", "Linear");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {2, 3}));
  const std::vector<float> values{1, -2, 3, 0, 5, 6};
  session_->BeginStep(Mode::kTrain, 0);
  EXPECT_EQ(session_->DueForms(Role::kOutput), 0U);
  EXPECT_EQ(session_->DueForms(output), 0U);
  EXPECT_EQ(session_->DueForms(Role::kWeight), static_cast<std::uint32_t>(Form::kSummary));
  EXPECT_NE(session_->DueRoles() & format::RoleBit(Role::kWeight), 0U);
  EXPECT_EQ(session_->DueRoles() & format::RoleBit(Role::kOutput), 0U);
  const TensorRef refs[] = {{weight, layout, Bytes(values), 0, 0}, {output, layout, Bytes(values), 0, 0}};
  session_->Capture(refs);
  session_->Scalar(output, 0.5);
  session_->Event(format::EventKind::kForward, 7, 9);
  End(0);
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 1U);
  const store::StepBatch& batch = steps[0].batch;
  ASSERT_EQ(batch.summaries.size(), 1U);
  EXPECT_EQ(batch.summaries[0].tensor, weight);
  EXPECT_EQ(batch.summaries[0].count, 6U);
  EXPECT_DOUBLE_EQ(batch.summaries[0].sum, 13);
  EXPECT_EQ(batch.summaries[0].zero_count, 1U);
  EXPECT_TRUE(batch.index.empty());
  ASSERT_EQ(batch.scalars.size(), 1U);
  EXPECT_EQ(batch.scalars[0].value, 0.5);
  ASSERT_EQ(batch.events.size(), 1U);
  EXPECT_EQ(batch.events[0].argument, 9U);
  EXPECT_EQ(batch.tensors.size(), 2U);
  EXPECT_EQ(batch.documents.size(), 1U);
  EXPECT_EQ(batch.mark.mode, static_cast<std::uint8_t>(Mode::kTrain));
}

TEST_F(SessionTest, SummariesComputedElsewhereAreTakenAsTheyAre) {
  Start(R"({"save_all":true,"save_interval":2})");
  const TensorId weight = session_->DefineTensor("Net_fc.weight", Role::kWeight, "fc", "");
  const TensorId count = session_->DefineTensor("count", Role::kOther, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {2, 3}));
  const LayoutId integers = session_->DefineLayout(MakeLayout(DType::kInt32, {4}));
  const GivenSummary given{13, 75, 17, -2, 6, 1, 1, 0};
  for (std::int64_t step = 0; step < 2; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    session_->CaptureSummary(weight, layout, given);
    session_->CaptureSummary(count, integers, {-1, 1, 1, -1, 1e30, 3, 0, 0});
    session_->CaptureSummary(weight, layout, {0, 0, 0, 0, 0, 4, 2, 1});  // seven values of six
    session_->CaptureSummary(weight, layout + 100, given);
    session_->CaptureSummary(weight + 100, layout, given);
    End(step);
  }
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 2U);
  const store::StepBatch& first = steps[0].batch;
  ASSERT_EQ(first.summaries.size(), 2U);
  EXPECT_EQ(first.summaries[0].tensor, weight);
  EXPECT_EQ(first.summaries[0].count, 6U);
  EXPECT_EQ(first.summaries[0].sum_sq, 75);
  EXPECT_EQ(std::bit_cast<double>(first.summaries[0].min_bits), -2);
  EXPECT_EQ(first.summaries[0].nan_count, 1U);
  EXPECT_EQ(static_cast<std::int64_t>(first.summaries[1].min_bits), -1);
  EXPECT_EQ(first.summaries[1].max_bits, std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  ASSERT_EQ(first.gaps.size(), 3U);  // raw values of two tensors; two impossible summaries, joined
  EXPECT_EQ(first.gaps[0].forms, static_cast<std::uint16_t>(Form::kRaw));
  EXPECT_TRUE(steps[1].batch.summaries.empty());  // nothing is due
  EXPECT_EQ(session_->nonfinite_summaries(), 1U);
}

TEST_F(SessionTest, RawValuesComeBack) {
  Start(kRawWeights);
  const TensorId weight = session_->DefineTensor("Net_fc.weight", Role::kWeight, "fc", "Linear");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100, 10}));
  std::vector<float> values(1000);
  for (std::int64_t step = 0; step < 5; ++step) {
    std::iota(values.begin(), values.end(), static_cast<float>(step));
    session_->BeginStep(Mode::kTrain, step);
    const TensorRef ref{weight, layout, Bytes(values), 0, 0};
    session_->Capture({&ref, 1});
    End(step);
  }
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 5U);
  for (std::size_t step = 0; step < 5; ++step) {
    ASSERT_EQ(steps[step].batch.index.size(), 1U);
    Result<std::vector<std::byte>> value = disk_->Value(steps[step].batch.index[0]);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    std::iota(values.begin(), values.end(), static_cast<float>(step));
    EXPECT_EQ(std::memcmp(value->data(), values.data(), 4000), 0);  // NOLINT(*-memory-comparison): bits
  }
}

TEST_F(SessionTest, UnchangedAndAliasedValuesAreStoredOnce) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const TensorId b = session_->DefineTensor("b.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {1000}));
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 1.0F);
  for (std::int64_t step = 0; step < 3; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    const TensorRef refs[] = {{a, layout, Bytes(values), 7, 0}, {b, layout, Bytes(values), 7, 0}};
    session_->Capture(refs);
    End(step);
  }
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  std::set<std::uint64_t> offsets;
  for (const auto& step : steps) {
    ASSERT_EQ(step.batch.index.size(), 2U);
    for (const auto& row : step.batch.index) offsets.insert(row.offset);
    EXPECT_EQ(step.batch.summaries.size(), 2U);
  }
  EXPECT_EQ(offsets.size(), 1U);
  EXPECT_EQ(steps[0].batch.index[1].flags & 1U, 1U);
  EXPECT_EQ(steps[1].batch.index[0].flags & 2U, 2U);
}

TEST_F(SessionTest, OfAReplicaAHashIsKept) {
  Start(kRawWeights);
  const TensorId id = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {1000}));
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 1.0F);
  for (std::int64_t step = 0; step < 2; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    const TensorRef ref{id, layout, Bytes(values), 0, step == 0 ? 0 : kReplicaFlag};
    session_->Capture({&ref, 1});
    End(step);
  }
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps[0].batch.index.size(), 1U);
  EXPECT_TRUE(steps[1].batch.index.empty());
  EXPECT_EQ(steps[1].batch.summaries.size(), 1U);
  ASSERT_EQ(steps[1].batch.forms.size(), 1U);
  EXPECT_EQ(steps[1].batch.forms[0].form, static_cast<std::uint16_t>(Form::kHash));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(steps[1].batch.forms[0].values[0]),
            steps[0].batch.index[0].content_hash);
  EXPECT_TRUE(steps[1].batch.gaps.empty());
}

TEST_F(SessionTest, AValueChangedInPlaceIsNoAlias) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const TensorId b = session_->DefineTensor("b.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100, 1.5F);
  values[3] = 2;
  session_->BeginStep(Mode::kTrain, 0);
  TensorRef ref{a, layout, Bytes(values), 7, 0};
  session_->Capture({&ref, 1});
  values[0] = 9;
  ref.id = b;
  session_->Capture({&ref, 1});
  End(0);
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps[0].batch.index.size(), 2U);
  Result<std::vector<std::byte>> value = disk_->Value(steps[0].batch.index[1]);
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(std::memcmp(value->data(), values.data(), 400), 0);  // NOLINT(*-memory-comparison): bits
}

TEST_F(SessionTest, AChunkThatIsGoneIsWrittenAgain) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100);
  std::iota(values.begin(), values.end(), 1.0F);
  for (std::int64_t step = 0; step < 2; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    const TensorRef ref{a, layout, Bytes(values), 0, 0};
    session_->Capture({&ref, 1});
    End(step);
    ASSERT_TRUE(session_->Flush(seconds(10)));
    MutexLock lock(disk_->mutex);
    disk_->retired_before = disk_->payload.size();
  }
  const auto steps = disk_->Steps();
  EXPECT_EQ(steps[1].batch.index[0].flags, 0U);
  EXPECT_NE(steps[1].batch.index[0].offset, steps[0].batch.index[0].offset);
}

TEST_F(SessionTest, AbandonedStepsLeaveNothing) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100, 1);
  const TensorRef ref{a, layout, Bytes(values), 0, 0};
  session_->BeginStep(Mode::kTrain, 0);
  session_->Capture({&ref, 1});
  session_->Scalar(a, 1);
  session_->AbandonStep();
  EXPECT_EQ(session_->DueForms(a), 0U);
  session_->BeginStep(Mode::kEval, 0);
  session_->Capture({&ref, 1});
  End(0, Mode::kEval);
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].batch.index.size(), 1U);
  EXPECT_EQ(steps[0].batch.summaries.size(), 1U);
  EXPECT_TRUE(steps[0].batch.scalars.empty());
}

TEST_F(SessionTest, AStepRecordedLaterKeepsItsTime) {
  Start("");
  session_->BeginStep(Mode::kTrain, 0);
  session_->EndStep({Mode::kTrain, 0, 0, 0, 1'700'000'000'000'000'000, 25'000'000});
  session_->BeginStep(Mode::kTrain, 1);
  End(1);
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].batch.mark.wall_unix_ns, 1'700'000'000'000'000'000);
  EXPECT_EQ(steps[0].batch.mark.duration_ns, 25'000'000);
  EXPECT_GT(steps[1].batch.mark.wall_unix_ns, 1'700'000'000'000'000'000);
}

TEST_F(SessionTest, StepsThatComeWhileTheWriterSleepsAreAllWritten) {
  Start("");
  constexpr int kSteps = 5000;  // more than the queue holds
  int dropped = 0;
  for (int step = 0; step < kSteps; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    End(step);
    if (step % 500 == 499 && !session_->Flush(seconds(10))) ++dropped;
  }
  EXPECT_EQ(dropped, 0);
  EXPECT_EQ(disk_->Steps().size(), static_cast<std::size_t>(kSteps));
}

TEST_F(SessionTest, AStepIsWrittenSoonThoughItWakesNobody) {
  Start("");
  session_->BeginStep(Mode::kTrain, 0);
  End(0);
  for (int i = 0; i < 10'000 && disk_->Steps().empty(); ++i) usleep(1000);
  EXPECT_EQ(disk_->Steps().size(), 1U);
}

TEST_F(SessionTest, GradientsAreNotTakenInEvaluation) {
  Start("");
  const TensorId g = session_->DefineTensor("gradient/a.weight", Role::kGradient, "", "");
  session_->BeginStep(Mode::kEval, 0);
  EXPECT_EQ(session_->DueForms(Role::kGradient), 0U);
  EXPECT_EQ(session_->DueRoles() & format::RoleBit(Role::kGradient), 0U);
  EXPECT_EQ(session_->DueForms(g), 0U);
}

// A step at which nothing is due says so, whatever was due in the step before it.
TEST_F(SessionTest, DueRolesAreThoseOfTheStep) {
  Start(R"({"defaults":false,"collections":[{"name":"weights","save":{"save_interval":4}}]})");
  for (int step = 0; step < 9; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    EXPECT_EQ(session_->DueRoles() != 0, step % 4 == 0) << step;
    if (step == 4) {  // it begins again, as where an evaluation comes in between
      session_->AbandonStep();
      session_->BeginStep(Mode::kTrain, 3);
      EXPECT_EQ(session_->DueRoles(), 0U);
      session_->AbandonStep();
      session_->BeginStep(Mode::kTrain, step);
      EXPECT_NE(session_->DueRoles(), 0U);
    }
    End(step);
  }
}

TEST_F(SessionTest, AFullDiskIsAGapAndNothingElse) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100, 1);
  {
    MutexLock lock(disk_->mutex);
    disk_->fail_appends = true;
  }
  const TensorRef ref{a, layout, Bytes(values), 0, 0};
  session_->BeginStep(Mode::kTrain, 0);
  session_->Capture({&ref, 1});
  End(0);
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_TRUE(steps[0].batch.index.empty());
  EXPECT_EQ(steps[0].batch.summaries.size(), 1U);
  std::vector<format::GapRow> gaps = steps[0].batch.gaps;
  for (const auto& loose : disk_->Loose())
    gaps.insert(gaps.end(), loose.batch.gaps.begin(), loose.batch.gaps.end());
  ASSERT_EQ(gaps.size(), 1U);
  EXPECT_EQ(gaps[0].tensor, a);
  EXPECT_EQ(gaps[0].reason, static_cast<std::uint16_t>(format::GapReason::kDiskFull));
  EXPECT_TRUE(session_->health().accepting);
  EXPECT_THAT(session_->health().first_error, ::testing::HasSubstr("no space"));
}

TEST_F(SessionTest, AValueThatTheBytesOfItsCollectionCannotHoldIsAGap) {
  Start(R"({"defaults":false,"collections":[{"name":"inputs","roles":["input"],
            "save":{"save_interval":1},"forms":["summary","raw"],"max_bytes":1000}]})");
  const TensorId large = session_->DefineTensor("a_input_0", Role::kInput, "", "");
  const TensorId small = session_->DefineTensor("b_input_0", Role::kInput, "", "");
  const std::vector<float> values(300, 1);
  const TensorRef refs[] = {
      {large, session_->DefineLayout(MakeLayout(DType::kFloat32, {300})), Bytes(values), 0, 0},
      {small, session_->DefineLayout(MakeLayout(DType::kFloat32, {200})), Bytes(values), 0, 0}};
  session_->BeginStep(Mode::kTrain, 0);
  session_->Capture(refs);
  End(0);
  ASSERT_TRUE(session_->Flush(seconds(10)));
  const auto steps = disk_->Steps();
  ASSERT_EQ(steps.size(), 1U);
  ASSERT_EQ(steps[0].batch.index.size(), 1U);
  EXPECT_EQ(steps[0].batch.index[0].tensor, small);
  EXPECT_EQ(steps[0].batch.summaries.size(), 2U);
  ASSERT_EQ(steps[0].batch.gaps.size(), 1U);
  EXPECT_EQ(steps[0].batch.gaps[0].reason, static_cast<std::uint16_t>(format::GapReason::kByteBudget));
  EXPECT_EQ(steps[0].batch.gaps[0].bytes, 1200U);
}

TEST_F(SessionTest, TensorsLargerThanABlockComeInParts) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  constexpr std::int64_t kRows = 1500, kColumns = 2000;  // 12 MB
  Result<Layout> strided = Layout::Strided(DType::kFloat32, std::vector<std::int64_t>{kRows, kColumns},
                                           std::vector<std::int64_t>{1, kRows});
  ASSERT_TRUE(strided.ok());
  const LayoutId layouts[] = {session_->DefineLayout(MakeLayout(DType::kFloat32, {kRows, kColumns})),
                              session_->DefineLayout(*strided)};
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0.0F);
  for (int k = 0; k < 2; ++k) {
    session_->BeginStep(Mode::kTrain, k);
    const TensorRef ref{a, layouts[k], Bytes(values), 0, 0};
    session_->Capture({&ref, 1});
    End(k);
  }
  ASSERT_TRUE(session_->Flush(seconds(20)));
  const auto steps = disk_->Steps();
  for (std::size_t k = 0; k < 2; ++k) {
    std::vector<std::byte> all;
    for (const auto& row : steps[k].batch.index) {
      EXPECT_EQ(row.parts, steps[k].batch.index.size());
      Result<std::vector<std::byte>> value = disk_->Value(row);
      ASSERT_TRUE(value.ok()) << value.status().ToString();
      all.insert(all.end(), value->begin(), value->end());
    }
    ASSERT_EQ(all.size(), values.size() * 4);
    std::vector<float> back(values.size());
    std::memcpy(back.data(), all.data(), all.size());
    if (k == 0) {
      EXPECT_EQ(back, values);
    } else {
      EXPECT_EQ(back[1], values[kRows]);
      EXPECT_EQ(back[static_cast<std::size_t>(kColumns * 700 + 3)], values[3 * kRows + 700]);
    }
    ASSERT_EQ(steps[k].batch.summaries.size(), 1U);
    EXPECT_EQ(steps[k].batch.summaries[0].count, values.size());
  }
}

TEST_F(SessionTest, SaysAtItsEndWhatItHasCost) {
  Start(kRawWeights);
  const TensorId weight = session_->DefineTensor("Net_fc.weight", Role::kWeight, "fc", "Linear");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100'000}));
  const std::vector<float> values(100'000, 1);
  const TensorRef refs[] = {{weight, layout, Bytes(values), 0, 0}};
  for (std::int64_t step = 0; step < 5; ++step) {
    session_->BeginStep(Mode::kTrain, step);
    session_->Capture(refs);
    End(step);
  }
  session_->Close(format::EndReason::kCompleted, seconds(10));
  MutexLock lock(disk_->mutex);
  std::vector<std::string> told;
  for (const auto& loose : disk_->loose) {
    for (const auto& [name, text] : loose.batch.documents) {
      if (name == "cost") told.push_back(text);
    }
  }
  ASSERT_EQ(told.size(), 1U);
  long long steps = 0, spent = 0, time = 0;
  ASSERT_EQ(
      std::sscanf(told[0].c_str(), R"({"steps":%lld,"spent_ns":%lld,"time_ns":%lld})", &steps, &spent, &time),
      3)
      << told[0];
  EXPECT_EQ(steps, 5);
  EXPECT_GT(spent, 0);
  EXPECT_GT(time, 0);
}

TEST_F(SessionTest, ACloseWithoutEndPublishesWhatIsThere) {
  Start("");
  session_->DefineTensor("a.weight", Role::kWeight, "", "");
  session_->SetDocument("model", "{}");
  session_->Close(format::EndReason::kCompleted, seconds(10));
  MutexLock lock(disk_->mutex);
  EXPECT_EQ(disk_->closed, 1);
  EXPECT_EQ(disk_->reason, format::EndReason::kCompleted);
  ASSERT_FALSE(disk_->loose.empty());
  EXPECT_EQ(disk_->loose[0].batch.tensors.size(), 1U);
  EXPECT_EQ(disk_->loose[0].batch.documents.size(), 2U);
}

TEST_F(SessionTest, AChildIsAsleepAndDoesNoHarm) {
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100, 1);
  const TensorRef ref{a, layout, Bytes(values), 0, 0};
  session_->BeginStep(Mode::kTrain, 0);
  session_->Capture({&ref, 1});
  const pid_t child = fork();
  if (child == 0) {
    session_->AfterForkInChild();
    session_->BeginStep(Mode::kTrain, 1);
    session_->Capture({&ref, 1});
    session_->EndStep({Mode::kTrain, 1, 1, 1});
    session_->Close(format::EndReason::kCompleted, seconds(1));
    session_.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  End(0);
  EXPECT_TRUE(session_->Flush(seconds(10)));
  EXPECT_EQ(disk_->Steps().size(), 1U);
}

TEST(OpenTest, AProcessWithoutARankTakesTheLowestFolderInWhichNobodyHasWritten) {
  const store::TemporaryDirectory directory;
  SessionOptions options;
  options.run_path = directory.path() + "/run";
  options.join = true;
  options.worker = format::kNoId;
  // A folder like this is left when NFS loses the reply to a mkdir.
  ASSERT_TRUE(Env::Real().MakeDirectories(options.run_path + "/w0000").ok());
  std::vector<std::unique_ptr<Session>> sessions;
  for (std::uint32_t worker = 0; worker < 3; ++worker) {
    auto session = Session::Open(options);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    EXPECT_EQ((*session)->worker(), worker);
    sessions.push_back(std::move(session).value());
  }
}

TEST_F(SessionTest, WithoutAWriterThreadTheSameComesOut) {
  Start(kRawWeights, false);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100, 1);
  const TensorRef ref{a, layout, Bytes(values), 0, 0};
  session_->BeginStep(Mode::kTrain, 0);
  session_->Capture({&ref, 1});
  End(0);
  EXPECT_EQ(disk_->Steps().size(), 1U);
  session_->Close(format::EndReason::kStopped, seconds(1));
  MutexLock lock(disk_->mutex);
  EXPECT_EQ(disk_->closed, 1);
}

TEST_F(SessionTest, AHangingDiskHoldsTheCloseOnlyToItsDeadline) {
  Mutex gate;
  gate.Lock();
  disk_->on_append = [&] { MutexLock lock(gate); };
  Start(kRawWeights);
  const TensorId a = session_->DefineTensor("a.weight", Role::kWeight, "", "");
  const LayoutId layout = session_->DefineLayout(MakeLayout(DType::kFloat32, {100}));
  std::vector<float> values(100, 1);
  const TensorRef ref{a, layout, Bytes(values), 0, 0};
  session_->BeginStep(Mode::kTrain, 0);
  session_->Capture({&ref, 1});
  End(0);
  EXPECT_FALSE(session_->Flush(std::chrono::milliseconds(20)));
  session_->Close(format::EndReason::kCompleted, std::chrono::milliseconds(20));
  session_.reset();
  gate.Unlock();
  for (;;) {  // the detached thread ends by itself
    MutexLock lock(disk_->mutex);
    if (disk_->closed == 1) break;
  }
}

}  // namespace
}  // namespace luff::capture::session_test
