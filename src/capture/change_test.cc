// Changes of what is recorded while a job runs: the plans, and a session that obeys the control log.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "capture/plans.h"
#include "capture/testing.h"

namespace luff::capture::change_test {
namespace {

using format::Form;
using format::Mode;
using format::Role;
using testing::Bytes;
using testing::Disk;
using testing::MakeLayout;
using testing::StartSession;

constexpr const char* kZoom =
    R"({"collections":[{"name":"zoom","include":"fc","forms":["raw"],"save":{"save_interval":2}}],"for_steps":4})";

std::uint32_t Bit(Form form) { return static_cast<std::uint32_t>(form); }

TEST(PlansTest, AChangeAddsCollectionsForItsStepsOnly) {
  Plans plans(*Plan::Make(*ParseConfigUntrusted("")));
  const std::size_t before = plans.first_count();
  const auto prepared = plans.Prepare(kZoom, 10);
  ASSERT_TRUE(prepared.ok()) << prepared.status().ToString();
  EXPECT_EQ(plans.now().config().collections.size(), before);  // nothing changes until it is used
  EXPECT_FALSE(plans.TakeDescription().has_value());
  plans.Use();
  const Plan& plan = plans.now();
  ASSERT_EQ(plan.config().collections.size(), before + 1);
  const std::uint64_t zoom = std::uint64_t{1} << before;
  EXPECT_EQ(plan.Match("Net_fc.weight", Role::kWeight, "", before), zoom);
  for (std::int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ((plan.DueCollections(Mode::kTrain, step) & zoom) != 0, step == 10 || step == 12) << step;
    EXPECT_EQ(plan.DueCollections(Mode::kEval, step) & zoom, 0U) << step;
  }
  const auto described = plans.TakeDescription();
  ASSERT_TRUE(described.has_value());
  EXPECT_NE(described->find("\"zoom\""), std::string::npos);
  EXPECT_FALSE(plans.TakeDescription().has_value());
}

TEST(PlansTest, NamesThatAreTakenGetANumberAndTheRunHasRoomFor64) {
  Plans plans(*Plan::Make(*ParseConfigUntrusted("")));
  for (std::size_t i = plans.first_count(); i < kMaxCollections; ++i) {
    ASSERT_TRUE(plans.Prepare(kZoom, 1).ok());
    plans.Use();
  }
  EXPECT_EQ(plans.now().config().collections[plans.first_count() + 1].name, "zoom-2");
  EXPECT_EQ(plans.Prepare(kZoom, 1).status().code(), StatusCode::kResourceExhausted);
  plans.Use();  // nothing was prepared
  EXPECT_EQ(plans.now().config().collections.size(), kMaxCollections);
}

TEST(PlansTest, WhatIsWrongIsRefused) {
  Plans plans(*Plan::Make(*ParseConfigUntrusted("")));
  for (const char* body :
       {"", "[]", "{}", R"({"collections":[]})", R"({"collections":{"a":1}})",
        R"({"collections":[{"name":"a"}]})", R"({"collections":[{"name":"a","include":"("}]})",
        R"({"collections":[{"name":"a","include":"b"}],"for_steps":0})",
        R"({"collections":[{"name":"a","include":"b"}],"for_steps":-3})",
        R"({"collections":[{"name":"a","include":"b"}],"for_steps":1.5})",
        R"({"collections":[{"name":"a","include":"b"}],"for_steps":"x"})",
        R"({"collections":[{"name":"a","include":"b"}],"for_steps":18446744073709551615})"})
    EXPECT_FALSE(plans.Prepare(body, 5).ok()) << body;
  EXPECT_FALSE(plans.Prepare(kZoom, -1).ok());
  // Without an end it lasts.
  ASSERT_TRUE(
      plans.Prepare(R"({"collections":[{"name":"a","include":"b","save":{"save_interval":1}}]})", 5).ok());
  plans.Use();
  EXPECT_NE(plans.now().DueCollections(Mode::kTrain, 1'000'000'000) >> plans.first_count(), 0U);
}

store::ControlRecord Record(std::uint64_t number, const char* phase, std::uint64_t proposal,
                            std::int64_t step) {
  store::ControlRecord record;
  record.number = number;
  record.kind = "capture";
  record.phase = phase;
  record.proposal = proposal;
  record.train_step = step;
  record.body = kZoom;
  return record;
}

/// A folder of control records as a session watches it: it looks at the records when the folder has changed.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "luff-change-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  void Changed() { std::ofstream(path_ + "/" + std::to_string(++files_)) << "x"; }

 private:
  std::string path_;
  int files_ = 0;
};

class ChangeTest : public ::testing::Test {
 protected:
  void Write(const std::vector<store::ControlRecord>& records) {
    log_.insert(log_.end(), records.begin(), records.end());
    folder_.Changed();
  }
  // The log that the session reads. Without a writer thread the session looks at its own step boundaries.
  void Start(const char* config = R"({"defaults":false})") {
    session_ = StartSession(
        disk_, config, false,
        [this](std::uint64_t after) {
          std::vector<store::ControlRecord> records;
          for (const auto& record : log_) {
            if (record.number > after) records.push_back(record);
          }
          return records;
        },
        folder_.path());
    ASSERT_NE(session_, nullptr);
    weight_ = session_->DefineTensor("Net_fc.weight", Role::kWeight, "fc", "Linear");
    other_ = session_->DefineTensor("Net_out.weight", Role::kWeight, "out", "Linear");
    layout_ = session_->DefineLayout(MakeLayout(DType::kFloat32, {2}));
  }
  // One TRAIN step, and the boundary after it; what is due for the weight in it.
  std::uint32_t Step(std::int64_t step) {
    session_->BeginStep(Mode::kTrain, step);
    const std::uint32_t due = session_->DueForms(Role::kWeight);
    const TensorRef refs[] = {{weight_, layout_, Bytes(values_), 0, 0},
                              {other_, layout_, Bytes(values_), 0, 0}};
    if (due != 0) session_->Capture(refs);
    session_->EndStep({Mode::kTrain, step, step, step});
    EXPECT_EQ(session_->AtStepBoundary(step + 1), StopState::kNone);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the log is looked at every 50 ms
    return due;
  }
  Folder folder_;
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  std::vector<store::ControlRecord> log_;
  std::unique_ptr<Session> session_;
  TensorId weight_ = 0, other_ = 0;
  LayoutId layout_ = 0;
  std::vector<float> values_{1, 2};
};

TEST_F(ChangeTest, ValuesAreRecordedFromTheAgreedStepOnAndNoLonger) {
  Start();
  EXPECT_EQ(Step(0), 0U);
  Write({Record(1, "propose", 0, 4), Record(2, "commit", 1, 4)});
  for (std::int64_t step = 1; step < 4; ++step) EXPECT_EQ(Step(step), 0U) << step;
  EXPECT_EQ(Step(4), Bit(Form::kRaw));
  EXPECT_EQ(Step(5), 0U);
  EXPECT_EQ(Step(6), Bit(Form::kRaw));
  for (std::int64_t step = 7; step < 12; ++step) EXPECT_EQ(Step(step), 0U) << step;
  session_->Close(format::EndReason::kCompleted, std::chrono::seconds(5));
  std::size_t values = 0;
  for (const auto& step : disk_->Steps()) {
    for (const auto& row : step.batch.index) {
      EXPECT_EQ(row.tensor, weight_);  // the other tensor is in no collection
      ++values;
    }
  }
  EXPECT_EQ(values, 2U);
  bool described = false, carried_out = false;
  for (const auto& loose : disk_->Loose()) {
    for (const auto& [name, text] : loose.batch.documents)
      described = described || (name == "collections" && text.find("\"zoom\"") != std::string::npos);
    for (const auto& ack : loose.batch.acks)
      carried_out = carried_out || (ack.control == 1 && ack.verdict == 3);
  }
  EXPECT_TRUE(described);
  EXPECT_TRUE(carried_out);
}

TEST_F(ChangeTest, AnAbortChangesNothingAndTheNextProposalCounts) {
  Start();
  Write({Record(1, "propose", 0, 3), Record(2, "abort", 1, 3)});
  for (std::int64_t step = 0; step < 5; ++step) EXPECT_EQ(Step(step), 0U) << step;
  store::ControlRecord other = Record(3, "propose", 0, 8);
  other.body =
      R"({"collections":[{"name":"out","include":"out","forms":["hash"],"save":{"save_interval":1}}],"for_steps":1})";
  Write({other, Record(4, "commit", 3, 8)});
  for (std::int64_t step = 5; step < 8; ++step) EXPECT_EQ(Step(step), 0U) << step;
  EXPECT_EQ(Step(8), Bit(Form::kHash));
  EXPECT_EQ(Step(9), 0U);
}

TEST_F(ChangeTest, WhatCannotBeRecordedIsRefusedAndTheTrainingGoesOn) {
  Start();
  store::ControlRecord wrong = Record(1, "propose", 0, 3);
  wrong.body = R"({"collections":[{"name":"a","include":"("}]})";
  Write({wrong});
  for (std::int64_t step = 0; step < 4; ++step) Step(step);
  session_->Close(format::EndReason::kCompleted, std::chrono::seconds(5));
  std::vector<std::uint32_t> verdicts;
  for (const auto& loose : disk_->Loose()) {
    for (const auto& ack : loose.batch.acks) verdicts.push_back(ack.verdict);
  }
  EXPECT_EQ(verdicts, std::vector<std::uint32_t>{4});
}

// Producers of many threads capture while plans change under them (TSan looks on).
TEST(ChangeRaceTest, ThreadsCaptureWhileThePlanChanges) {
  const auto disk = std::make_shared<Disk>();
  Folder folder;
  std::atomic<std::uint64_t> known{0};
  const auto read = [&](std::uint64_t after) {
    std::vector<store::ControlRecord> records;
    for (std::uint64_t number = after + 1; number <= known.load(); ++number) {
      const std::uint64_t proposal = (number - 1) / 2 * 2 + 1;
      const auto step = static_cast<std::int64_t>(40 * proposal);
      records.push_back(number == proposal ? Record(number, "propose", 0, step)
                                           : Record(number, "commit", proposal, step));
    }
    return records;
  };
  const auto session = StartSession(
      disk, R"({"collections":[{"name":"weights","forms":["summary"],"save":{"save_interval":1}}]})", true,
      read, folder.path());
  ASSERT_NE(session, nullptr);
  const TensorId weight = session->DefineTensor("Net_fc.weight", Role::kWeight, "fc", "Linear");
  const LayoutId layout = session->DefineLayout(MakeLayout(DType::kFloat32, {4}));
  const std::vector<float> values{1, 2, 3, 4};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int n = 0; n < 3; ++n) {
    threads.emplace_back([&, n] {
      const TensorRef ref{weight, layout, Bytes(values), 0, 0};
      for (int i = 0; !over.load(); ++i) {
        session->Capture({&ref, 1});
        (void)session->DefineTensor("fc" + std::to_string(n) + std::to_string(i % 50), Role::kOutput, "",
                                    "ReLU");
      }
    });
  }
  for (std::int64_t step = 0; step < 400; ++step) {
    if (step % 80 == 10) {
      known.store(known.load() + 2);
      folder.Changed();
    }
    session->BeginStep(Mode::kTrain, step);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    session->EndStep({Mode::kTrain, step, step, step});
    (void)session->AtStepBoundary(step + 1);
  }
  over.store(true);
  for (std::thread& thread : threads) thread.join();
  session->Close(format::EndReason::kCompleted, std::chrono::seconds(5));
  std::size_t carried_out = 0;
  for (const auto& loose : disk->Loose()) {
    for (const auto& ack : loose.batch.acks) carried_out += ack.verdict == 3 ? 1 : 0;
  }
  EXPECT_GE(carried_out, 1U);
}

}  // namespace
}  // namespace luff::capture::change_test
