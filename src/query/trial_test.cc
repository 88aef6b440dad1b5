#include "luff/query/trial.h"

#include "luff/query/capture_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "luff/store/control.h"
#include "query/testing.h"

namespace luff::query::trial_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempRun;
using testing::Writing;

std::vector<float> Floats(const Value& value) {
  std::vector<float> result(value.bytes.size() / sizeof(float));
  std::memcpy(result.data(), value.bytes.data(), value.bytes.size());
  return result;
}

TEST(CaptureCost, IsReadFromItsDocument) {
  const auto cost = ParseCaptureCostUntrusted(R"({"steps":4,"spent_ns":500000000,"time_ns":2000000000})");
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(cost->steps, 4U);
  EXPECT_DOUBLE_EQ(cost->spent_s, 0.5);
  EXPECT_DOUBLE_EQ(cost->share(), 0.25);
  EXPECT_DOUBLE_EQ(ParseCaptureCostUntrusted(R"({"spent_ns":9,"time_ns":3})")->share(), 1);
  for (const char* text : {"", "[]", "{}", R"({"time_ns":0})", R"({"time_ns":-1})", R"({"time_ns":"1"})"})
    EXPECT_FALSE(ParseCaptureCostUntrusted(text).has_value()) << text;
}

/// Opens with and without the live page; both must show the same.
class TrialTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Trial> Open() {
    OpenOptions options;
    options.use_live_page = GetParam();
    auto trial = Trial::Open(run.path(), options);
    EXPECT_TRUE(trial.ok()) << trial.status().ToString();
    return std::move(trial).value();
  }
  TempRun run;
};

TEST_P(TrialTest, ShowsWhatWasWritten) {
  Writing w(run.path(), 0, 1);
  w.Define(0, "fc.weight", 4, format::Role::kWeight);
  w.Define(1, "loss", 1, format::Role::kLoss);
  for (int step = 0; step < 5; ++step) {
    const auto x = static_cast<float>(step);
    const std::vector<float> values = {x, x + 1, x + 2, x + 3};
    w.AddSummary(0, values);
    w.AddValue(0, values);
    w.AddScalar(1, 10.0 - step);
    w.Step(step == 3 ? Mode::kEval : Mode::kTrain);
  }
  auto trial = Open();
  EXPECT_EQ(trial->step_count(), 5U);
  EXPECT_FALSE(trial->loaded_all_steps());
  EXPECT_EQ(trial->outcome().state, "running");
  EXPECT_THAT(trial->Steps(Mode::kTrain), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(trial->Steps(Mode::kGlobal), ElementsAre(0, 1, 2, 3, 4));
  const auto id = trial->FindTensor("fc.weight");
  ASSERT_TRUE(id.ok());
  const auto value = trial->ReadValue(*id, 3, Mode::kTrain);
  ASSERT_TRUE(value.ok()) << value.status().ToString();
  EXPECT_THAT(Floats(*value), ElementsAre(4, 5, 6, 7));
  const auto summary = trial->ReadSummary(*id, 0, Mode::kEval);
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  EXPECT_DOUBLE_EQ(summary->mean(), 4.5);
  const auto scalars = trial->Scalars(*trial->FindTensor("loss"), Mode::kTrain);
  ASSERT_TRUE(scalars.ok());
  ASSERT_EQ(scalars->size(), 4U);
  EXPECT_EQ((*scalars)[3].global_step, 4);
  EXPECT_EQ((*scalars)[3].value, 6.0);
  const auto columns = trial->Summaries(*id, Mode::kGlobal);
  ASSERT_TRUE(columns.ok());
  EXPECT_THAT(columns->min, ElementsAre(0, 1, 2, 3, 4));
  Trial::StepRows rows;
  ASSERT_TRUE(trial->ReadStepRows(2, &rows).ok());
  EXPECT_EQ(rows.info.global_step, 2);
  ASSERT_EQ(rows.summaries.size(), 1U);
  ASSERT_EQ(rows.scalars.size(), 1U);
  EXPECT_EQ(rows.scalars[0].value, 8.0);

  w.Close();
  const auto news = trial->WaitForNews(std::chrono::seconds(10));
  ASSERT_TRUE(news.ok() && *news);
  EXPECT_TRUE(trial->loaded_all_steps());
  EXPECT_EQ(trial->outcome().state, "completed");
  EXPECT_THAT(Floats(*trial->ReadValue(*id, 3, Mode::kTrain)), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(Floats(*value), ElementsAre(4, 5, 6, 7));  // views outlive the reader's changes
  EXPECT_THAT(trial->Problems(), ElementsAre());
}

TEST_P(TrialTest, FollowsARunThroughManySegments) {
  Writing w(run.path(), 0, 1, false, true, 8192);
  w.Define(0, "x", 16);
  auto trial = Open();
  for (int step = 0; step < 200; ++step) {
    const std::vector<float> values(16, static_cast<float>(step));
    w.AddSummary(0, values);
    w.AddValue(0, values);
    w.Step();
    ASSERT_TRUE(trial->WaitForStep(step, Mode::kGlobal, std::chrono::seconds(10)).ok()) << step;
    const auto value = trial->ReadValue(0, step, Mode::kTrain);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    EXPECT_EQ(Floats(*value), values);
  }
  w.Close();
  auto again = Open();
  for (Trial* each : {trial.get(), again.get()}) {
    ASSERT_TRUE(each->Refresh().ok());
    const auto columns = each->Summaries(0, Mode::kTrain);
    ASSERT_TRUE(columns.ok());
    ASSERT_EQ(columns->mean.size(), 200U);
    for (std::size_t i = 0; i < 200; ++i) EXPECT_EQ(columns->mean[i], static_cast<double>(i));
    const auto stack = each->ReadStack(0, Mode::kGlobal, std::nullopt, 1 << 20);
    ASSERT_TRUE(stack.ok()) << stack.status().ToString();
    ASSERT_EQ(stack->steps.size(), 200U);
    float last = 0;
    std::memcpy(&last, stack->bytes.get() + stack->byte_count - sizeof(float), sizeof(float));
    EXPECT_EQ(last, 199.0F);
    EXPECT_THAT(each->Problems(), ElementsAre());
  }
}

TEST_P(TrialTest, PartsAndCodecsGiveTheSameValue) {
  Writing w(run.path(), 0, 1);
  w.Define(0, "parts", 1000);
  w.Define(1, "zeros", 1000);
  w.Define(2, "sparse", 1000);
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5F;
  std::vector<float> sparse(1000, 0.0F);
  sparse[77] = 3;
  w.AddValue(0, values, 7);
  w.AddValue(1, std::vector<float>(1000, 2.5F), 1, true);
  w.AddValue(2, sparse, 2, true);
  w.Step();
  auto trial = Open();
  EXPECT_EQ(Floats(*trial->ReadValue(0, 0, Mode::kTrain)), values);
  EXPECT_EQ(Floats(*trial->ReadValue(1, 0, Mode::kTrain)), std::vector<float>(1000, 2.5F));
  EXPECT_EQ(Floats(*trial->ReadValue(2, 0, Mode::kTrain)), sparse);
}

TEST_P(TrialTest, AStepIsCompleteWhenEveryLivingWorkerHasPassedIt) {
  Writing a(run.path(), 0, 2);
  a.Define(0, "x", 1);
  const std::vector<float> one = {1};
  a.AddSummary(0, one);
  a.Step();
  auto trial = Open();
  EXPECT_EQ(trial->step_count(), 0U) << "worker 1 has not come yet";
  Writing b(run.path(), 1, 2);
  b.Define(5, "x", 1);
  b.AddSummary(5, one);
  b.Step();
  ASSERT_TRUE(trial->WaitForStep(0, Mode::kGlobal, std::chrono::seconds(10)).ok());
  EXPECT_EQ(trial->tensor_count(), 1U) << "one name is one tensor";
  Trial::StepRows rows;
  ASSERT_TRUE(trial->ReadStepRows(0, &rows).ok());
  EXPECT_EQ(rows.summaries.size(), 2U);
  a.Step();
  a.Step();
  b.Step();
  ASSERT_TRUE(trial->WaitForStep(1, Mode::kGlobal, std::chrono::seconds(10)).ok());
  EXPECT_EQ(trial->StateOfStep(2, Mode::kGlobal), StepState::kNotYetAvailable);
  b.Close();
  ASSERT_TRUE(trial->WaitForStep(2, Mode::kGlobal, std::chrono::seconds(10)).ok())
      << "who has ended holds nothing back";
  EXPECT_FALSE(trial->loaded_all_steps());
  a.Close();
  ASSERT_TRUE(trial->WaitForNews(std::chrono::seconds(10)).ok());
  EXPECT_TRUE(trial->loaded_all_steps());
}

TEST_P(TrialTest, AResumedRunShowsTheLaterOfTwoStepsWithOneNumber) {
  {
    Writing w(run.path(), 0, 1);
    w.Define(0, "x", 1);
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> value = {static_cast<float>(step)};
      w.AddSummary(0, value);
      w.AddValue(0, value);
      w.Step();
    }
    w.Close();
  }
  Writing w(run.path(), 0, 1, true);
  w.Define(3, "y", 1);
  w.Define(4, "x", 1);  // ids are scoped by the epoch
  w.global_step = w.mode_steps[1] = 2;
  const std::vector<float> value = {20};
  w.AddSummary(4, value);
  w.AddValue(4, value);
  w.Step();
  auto trial = Open();
  const TensorId x = *trial->FindTensor("x");
  EXPECT_EQ(trial->outcome().state, "running");
  EXPECT_THAT(Floats(*trial->ReadValue(x, 1, Mode::kTrain)), ElementsAre(1));
  EXPECT_THAT(Floats(*trial->ReadValue(x, 2, Mode::kTrain)), ElementsAre(20));
  EXPECT_THAT(Floats(*trial->ReadValue(x, 3, Mode::kTrain)), ElementsAre(3));
  EXPECT_EQ(trial->step_count(), 5U);
  EXPECT_TRUE(trial->step_at(2).superseded);
  EXPECT_THAT(trial->Summaries(x, Mode::kTrain)->mean, ElementsAre(0, 1, 3, 20));
}

TEST_P(TrialTest, TheOutcomeIsTheNewestThatWasSaid) {
  Writing w(run.path(), 0, 1);
  w.Define(0, "x", 1);
  w.AddScalar(0, 1);
  w.Step();
  const auto trial = Open();
  EXPECT_EQ(trial->outcome().state, "running");
  const auto say = [&](const std::string& kind, const std::string& body) {
    store::ControlRecord record;
    record.kind = kind;
    record.body = body;
    ASSERT_TRUE(store::WriteControl(run.path(), record).ok());
  };
  say("note", "{}");
  EXPECT_EQ(trial->outcome().state, "running");
  say("outcome", R"({"state": "failed", "why": "one"})");
  EXPECT_EQ(trial->outcome().why, "one");
  say("note", "{}");
  say("outcome", R"({"state": "stopped", "why": "two"})");
  EXPECT_EQ(trial->outcome().state, "stopped");
  EXPECT_EQ(trial->outcome().why, "two");
  say("outcome", "[]");  // what says nothing hides what was said before
  EXPECT_EQ(trial->outcome().state, "running");
  EXPECT_EQ(Open()->outcome().state, "running");
}

TEST_P(TrialTest, TheLastLookFindsAWorkerThatCameAMomentAgo) {
  Writing first(run.path(), 0, 1);
  first.Define(0, "x", 1);
  const std::vector<float> value = {1};
  first.AddSummary(0, value);
  first.Step();
  auto trial = Open();
  ASSERT_TRUE(trial->Refresh().ok());
  Writing second(run.path(), 1, 1, true);  // a resumed training whose process has another worker number
  second.Define(0, "x", 1);
  second.global_step = second.mode_steps[1] = 1;
  second.AddSummary(0, value);
  second.Step();
  EXPECT_TRUE(*trial->RefreshAll());
  EXPECT_EQ(trial->workers().size(), 2U);
}

TEST_P(TrialTest, AnEndedWorkerMaySayThatItsProcessGoesOn) {
  for (const char* end :
       {R"({"process": "goes on"})", R"({"why": "closed"})", R"({"process": 3})", "[", ""}) {
    const TempRun other;
    Writing w(other.path(), 0, 1);
    w.batch.documents.emplace_back("end", end);
    w.Step();
    auto trial = Trial::Open(other.path());
    ASSERT_TRUE(trial.ok());
    EXPECT_FALSE((*trial)->workers().at(0).goes_on) << "before it has ended";
    w.Close();
    ASSERT_TRUE((*trial)->RefreshAll().ok());
    EXPECT_EQ((*trial)->workers().at(0).goes_on,
              std::string_view(end).find("goes on") != std::string_view::npos);
  }
}

TEST_P(TrialTest, ErrorsNameWhatIsNear) {
  Writing w(run.path(), 0, 1);
  w.Define(0, "gradient/conv1.weight", 1);
  w.Define(1, "gradient/conv2.weight", 1);
  w.Define(2, "loss", 1);
  w.batch.documents.emplace_back("collections", R"([{"name":"gradients"}])");
  w.AddSummary(0, std::vector<float>{1});
  w.Step();
  w.Step();
  w.AddSummary(0, std::vector<float>{1});
  w.Step();
  w.Close();
  auto trial = Open();
  const auto missing = trial->FindTensor("gradient/conv1.wieght");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("nearest: \"gradient/conv1.weight\""));
  const auto value = trial->ReadValue(0, 0, Mode::kTrain);
  EXPECT_EQ(value.status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("its summary is there"));
  const auto summary = trial->ReadSummary(0, 1, Mode::kTrain);
  EXPECT_EQ(summary.status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(summary.status().message()),
              HasSubstr("nearest steps that hold anything of it: 0 and 2"));
  EXPECT_EQ(trial->ReadValue(0, 99, Mode::kTrain).status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(ParseMode("training").status().message()),
              HasSubstr("TRAIN, EVAL, PREDICT or GLOBAL"));
  Trial::NameFilter filter;
  filter.regex = "conv(";
  const auto bad = trial->TensorNames(filter);
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  filter.regex = "conv[12]";
  EXPECT_THAT(*trial->TensorNames(filter), ElementsAre("gradient/conv1.weight", "gradient/conv2.weight"));
  filter.collection = "gradient";
  EXPECT_THAT(std::string(trial->TensorNames(filter).status().message()), HasSubstr("gradients"));
  filter.collection = "gradients";
  filter.step = 0;
  filter.mode = Mode::kTrain;
  EXPECT_THAT(*trial->TensorNames(filter), ElementsAre("gradient/conv1.weight"));
}

TEST_P(TrialTest, DamagedPayloadIsAnErrorThatNamesThePlace) {
  Writing w(run.path(), 0, 1);
  w.Define(0, "x", 1024);
  w.AddValue(0, std::vector<float>(1024, 1.0F));
  w.Step();
  w.Close();
  std::string data;
  for (const auto& entry : std::filesystem::directory_iterator(run.path() + "/w0000")) {
    if (entry.path().extension() == ".lfd") data = entry.path();
  }
  {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(format::kFileHeaderBytes + 64 + 100);
    file.put('\x55');
  }
  auto trial = Open();
  const auto value = trial->ReadValue(0, 0, Mode::kTrain);
  EXPECT_EQ(value.status().code(), StatusCode::kCorruption);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr(data));
  std::filesystem::resize_file(data, 5000);
  EXPECT_EQ(Open()->ReadValue(0, 0, Mode::kTrain).status().code(), StatusCode::kCorruption);
  std::filesystem::remove(data);
  EXPECT_EQ(Open()->ReadValue(0, 0, Mode::kTrain).status().code(), StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(LivePage, TrialTest, ::testing::Bool(),
                         [](const auto& which) { return which.param ? "WithLivePage" : "WithoutLivePage"; });

TEST(TrialOpenTest, WhatIsNoRunIsRefusedWithAReason) {
  EXPECT_EQ(Trial::Open("/nonexistent/run").status().code(), StatusCode::kNotFound);
  TempRun run;
  std::filesystem::create_directories(run.path());
  EXPECT_EQ(Trial::Open(run.path()).status().code(), StatusCode::kFailedPrecondition);
  std::ofstream(run.path() + "/run.json")
      << R"({"format":"luff-run","format_major":99,"run_id":"00000000000000000000000000000000"})";
  EXPECT_EQ(Trial::Open(run.path()).status().code(), StatusCode::kUnsupportedVersion);
  std::ofstream(run.path() + "/run.json") << "{";
  EXPECT_EQ(Trial::Open(run.path()).status().code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace luff::query::trial_test
