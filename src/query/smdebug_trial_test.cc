#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "luff/format/event_file.h"
#include "luff/format/smdebug.h"
#include "luff/query/trial.h"
#include "query/testing/smdebug_writer.h"

namespace luff::query::smdebug_trial_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A directory as smdebug writes it.
class SmdebugTrialTest : public ::testing::Test, protected testing::SmdebugWriter {
 protected:
  SmdebugTrialTest()
      : SmdebugWriter(fs::temp_directory_path() /
                      (std::string("luff-smdebug-") +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                       std::to_string(getpid()))) {}
  ~SmdebugTrialTest() override { fs::remove_all(root_); }

  std::unique_ptr<Trial> Open(const OpenOptions& options = {}) {
    auto opened = Trial::Open(root_.string(), options);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
};

TEST_F(SmdebugTrialTest, ShowsStepsNamesRolesAndValues) {
  WriteCollections();
  WriteStep(0, Mode::kTrain, 0,
            {{"Net_fc.weight", {1, -2, 3, 4}, {2, 2}}, {"CrossEntropyLoss_output_0", {0.5F}, {}}});
  WriteStep(1, Mode::kEval, 0, {{"CrossEntropyLoss_output_0", {0.75F}, {}}});
  WriteStep(2, Mode::kTrain, 1,
            {{"Net_fc.weight", {1, -2, 3, 5}, {2, 2}}, {"gradient/Net_fc.weight", {0, NAN, 1, 1}, {2, 2}}});
  End();
  const auto trial = Open();
  ASSERT_NE(trial, nullptr);
  EXPECT_TRUE(trial->loaded_all_steps());
  EXPECT_EQ(trial->outcome().state, "completed");
  EXPECT_THAT(trial->Steps(Mode::kGlobal), ElementsAre(0, 1, 2));
  EXPECT_THAT(trial->Steps(Mode::kTrain), ElementsAre(0, 1));
  EXPECT_THAT(trial->Steps(Mode::kEval), ElementsAre(0));
  EXPECT_THAT(trial->CollectionNames(), ElementsAre("gradients", "losses", "weights"));
  EXPECT_THAT(*trial->TensorNames({.regex = "", .collection = "weights", .step = {}}),
              ElementsAre("Net_fc.weight"));

  const TensorId weight = *trial->FindTensor("Net_fc.weight");
  EXPECT_EQ(trial->tensor(weight).role, Role::kWeight);
  EXPECT_EQ(trial->tensor(weight).module_path, "fc");
  EXPECT_EQ(trial->tensor(*trial->FindTensor("gradient/Net_fc.weight")).role, Role::kGradient);
  const TensorId loss = *trial->FindTensor("CrossEntropyLoss_output_0");
  EXPECT_EQ(trial->tensor(loss).role, Role::kLoss);

  const auto value = trial->ReadValue(weight, 1, Mode::kTrain);
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(value->dtype, DType::kFloat32);
  EXPECT_THAT(value->shape, ElementsAre(2, 2));
  float last = 0;
  std::memcpy(&last, value->bytes.data() + 12, sizeof(last));
  EXPECT_EQ(last, 5.0F);
  EXPECT_EQ(trial->ReadSummary(weight, 0, Mode::kGlobal)->sum, 6.0);
  EXPECT_EQ(trial->ReadForm(weight, format::Form::kDifference, 2, Mode::kGlobal)->values[0], 1.0);
  const auto scalars = trial->Scalars(loss, Mode::kGlobal);
  ASSERT_TRUE(scalars.ok());
  ASSERT_EQ(scalars->size(), 2U);
  EXPECT_EQ((*scalars)[1].value, 0.75);
  EXPECT_EQ((*scalars)[1].mode, Mode::kEval);
  const auto stack = trial->ReadStack(weight, Mode::kTrain, {}, 1 << 20);
  ASSERT_TRUE(stack.ok());
  EXPECT_THAT(stack->steps, ElementsAre(0, 1));
  EXPECT_EQ(stack->byte_count, 32U);

  Trial::StepRows rows;
  ASSERT_TRUE(trial->ReadStepRows(2, &rows).ok());
  ASSERT_EQ(rows.summaries.size(), 2U);
  EXPECT_EQ(rows.summaries[1].summary.nan_count, 1U);
  EXPECT_EQ(rows.forms.size(), 1U);

  EXPECT_THAT(std::string(trial->ReadValue(loss, 2, Mode::kGlobal).status().message()),
              HasSubstr("nearest saved"));
  EXPECT_THAT(std::string(trial->FindTensor("Net_fc.wieght").status().message()), HasSubstr("Net_fc.weight"));
  EXPECT_THAT(trial->Problems(), IsEmpty());
}

TEST_F(SmdebugTrialTest, ReductionsStandForWhatWasNotSaved) {
  WriteCollections();
  const std::string w = "Net_fc.weight";
  const auto reduction = [&](const char* name, float value) {
    return Tensor{std::string(format::kSmdebugReductions) + name + "/" + w, {value}, {}};
  };
  // Reductions of the elements 1, 2, 3, 4.
  WriteStep(0, Mode::kTrain, 0,
            {reduction("min", 1), reduction("max", 4), reduction("mean", 2.5F), reduction("std", 1.118034F),
             reduction("l1", 10), reduction("l2", 5.477226F), reduction("abs_mean", 2.5F)},
            "worker_0", {{w, {}, {2, 2}}});
  End();
  const auto trial = Open();
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->tensor_count(), 1U);  // reductions are not tensors of their own
  const auto at = trial->ReadSummaryAt(0, 0, Mode::kTrain);
  ASSERT_TRUE(at.ok()) << at.status().message();
  EXPECT_EQ(at->summary.count, 4U);
  EXPECT_EQ(at->summary.min(at->dtype), 1.0);
  EXPECT_EQ(at->summary.max(at->dtype), 4.0);
  EXPECT_NEAR(at->summary.mean(), 2.5, 1e-6);
  EXPECT_NEAR(at->summary.std(), 1.118034, 1e-5);
  EXPECT_NEAR(at->summary.l2(), 5.477226, 1e-5);
  const auto shape = trial->Shape(0, 0, Mode::kTrain);
  ASSERT_TRUE(shape.ok());
  EXPECT_THAT(shape->shape, ElementsAre(2, 2));
  const auto saved = trial->SavedReductions(0, 0, Mode::kTrain);
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->size(), 7U);
  EXPECT_THAT(std::string(trial->ReadValue(0, 0, Mode::kTrain).status().message()),
              HasSubstr("reductions of it"));
  EXPECT_THAT(trial->Document("smdebug"), HasSubstr("graph/Net_fc.weight"));
}

TEST_F(SmdebugTrialTest, AStepIsCompleteWhenEveryWorkerHasPassedIt) {
  WriteCollections(2);
  WriteStep(0, Mode::kTrain, 0, {{"a", {1}, {1}}});
  const auto trial = Open();
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->step_count(), 0U);  // worker 1 has written nothing yet
  EXPECT_EQ(trial->world_size(), 2U);
  WriteStep(0, Mode::kTrain, 0, {{"a", {2}, {1}}}, "worker_1");
  WriteStep(1, Mode::kTrain, 1, {{"a", {3}, {1}}}, "worker_1");
  ASSERT_TRUE(*trial->Refresh());
  EXPECT_THAT(trial->Steps(Mode::kGlobal), ElementsAre(0));
  EXPECT_FALSE(trial->loaded_all_steps());
  EXPECT_EQ(trial->StateOfStep(1, Mode::kGlobal), StepState::kNotYetAvailable);
  EXPECT_EQ(trial->outcome().state, "running");
  EXPECT_THAT(*trial->TensorWorkers(0, 0, Mode::kGlobal), ElementsAre(0, 1));
  EXPECT_EQ(trial->ReadSummary(0, 0, Mode::kGlobal, 1)->sum, 2.0);
  EXPECT_EQ(trial->ReadSummary(0, 0, Mode::kGlobal)->sum, 1.0);
  EXPECT_FALSE(*trial->Refresh());
  End();
  ASSERT_TRUE(*trial->Refresh());
  EXPECT_THAT(trial->Steps(Mode::kGlobal), ElementsAre(0, 1));
  EXPECT_TRUE(trial->loaded_all_steps());
  EXPECT_THAT(std::string(trial->ReadValue(0, 0, Mode::kGlobal, 7).status().message()),
              HasSubstr("there are: 0, 1"));
}

TEST_F(SmdebugTrialTest, AJobThatDiedIsShownWhole) {
  WriteCollections(2);
  WriteStep(0, Mode::kTrain, 0, {{"a", {1}, {1}}});
  OpenOptions options;
  options.lost_after_s = 0;
  const auto trial = Open(options);
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->step_count(), 1U);
  EXPECT_TRUE(trial->loaded_all_steps());
  EXPECT_EQ(trial->outcome().state, "failed");
  ASSERT_EQ(trial->Gaps().size(), 1U);
  EXPECT_EQ(trial->Gaps()[0].worker, 1U);
}

TEST_F(SmdebugTrialTest, DamageIsToldAndTheRestStaysReadable) {
  WriteCollections();
  for (int step = 0; step < 8; ++step)
    WriteStep(step, Mode::kTrain, step, {{"a", {1, 2}, {2}}, {"b", {3}, {1}}});
  End();
  Write("index/000000000/000000000001_worker_0.json",
        R"({"meta": {"mode": "TRAIN", "mode_step": 1}, "tensor_pay)");
  fs::remove(root_ / format::SmdebugEventPath(2, "worker_0"));
  fs::resize_file(root_ / format::SmdebugEventPath(3, "worker_0"), 40);
  Write(format::SmdebugEventPath(4, "worker_0"), std::string(1000, 'x'));
  Write("index/000000000/000000000009.json", "{}");               // no worker in its name
  Write("index/000000000/000000000005_worker_0.json.tmp", "{}");  // left behind; ignored
  // smdebug appended an index file to the remains of a crash.
  const fs::path twice = root_ / format::SmdebugIndexPath(6, "worker_0");
  std::string good;
  std::getline(std::ifstream(twice), good);
  Write("index/000000000/000000000006_worker_0.json", good.substr(0, 60) + good);
  // An index file that names a tensor other than the one in the event file.
  std::string other;
  std::getline(std::ifstream(root_ / format::SmdebugIndexPath(7, "worker_0")), other);
  other.replace(other.find("\"a\""), 3, "\"c\"");
  Write("index/000000000/000000000007_worker_0.json", other);

  const auto trial = Open();
  ASSERT_NE(trial, nullptr);
  EXPECT_THAT(trial->Steps(Mode::kGlobal), ElementsAre(0, 2, 3, 4, 5, 6, 7));
  const TensorId a = *trial->FindTensor("a");
  const auto told = [&](std::int64_t step) {
    return std::string(trial->ReadValue(a, step, Mode::kGlobal).status().message());
  };
  EXPECT_THAT(told(2), HasSubstr("no event file"));
  EXPECT_THAT(told(3), HasSubstr("copy it again"));
  EXPECT_THAT(told(4), HasSubstr("no event file or it is damaged"));
  EXPECT_TRUE(trial->ReadValue(a, 6, Mode::kGlobal).ok());
  EXPECT_THAT(std::string(trial->ReadValue(*trial->FindTensor("c"), 7, Mode::kGlobal).status().message()),
              HasSubstr("found tensor \"a\""));
  const auto columns = trial->Summaries(a, Mode::kGlobal);
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(columns->count.size(), 3U);  // steps 0, 5 and 6
  Trial::StepRows rows;
  for (std::size_t n = 0; n < trial->step_count(); ++n) EXPECT_TRUE(trial->ReadStepRows(n, &rows).ok());
  const auto problems = trial->Problems();
  const auto some = [&](const char* text) {
    return std::any_of(problems.begin(), problems.end(),
                       [&](const std::string& problem) { return problem.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(some("000000000001_worker_0.json")) << ::testing::PrintToString(problems);
  EXPECT_TRUE(some("000000000009.json"));
  EXPECT_TRUE(some("passed over"));
  EXPECT_FALSE(some(".json.tmp"));
}

TEST_F(SmdebugTrialTest, OtherFilesAreNotTakenForIt) {
  Write("index/000000000/000000000000_worker_0.json", "{}");
  EXPECT_FALSE(Trial::Open(root_.string()).ok());
  Write("collections/000000000/worker_0_collections.json", "no JSON");
  const auto trial = Open();
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->step_count(), 0U);
  EXPECT_EQ(trial->Problems().size(), 2U);
}

TEST_F(SmdebugTrialTest, APathOutOfTheTrialIsNotFollowed) {
  WriteCollections();
  WriteStep(0, Mode::kTrain, 0, {{"a", {1}, {1}}});
  std::string text;
  std::getline(std::ifstream(root_ / format::SmdebugIndexPath(0, "worker_0")), text);
  text.replace(text.find("events/"), 7, "../../e/");
  Write(format::SmdebugIndexPath(0, "worker_0"), text);
  End();
  const auto trial = Open();
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->step_count(), 0U);
  ASSERT_EQ(trial->Problems().size(), 1U);
  EXPECT_THAT(trial->Problems()[0], HasSubstr("outside the trial"));
}

}  // namespace
}  // namespace luff::query::smdebug_trial_test
