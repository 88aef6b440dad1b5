#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_effort.h"
#include "base/testdata.h"
#include "rules/testing/fake_trial.h"
#include "rules/testing/recorder.h"

/// Changes that must not change a verdict: all rules judge kept runs (testdata/detect) and stories, as they
/// are and changed.
namespace luff::rules::metamorphic_test {
namespace {

using format::Role;
using testing::FakeTrial;
namespace fs = std::filesystem;

using Verdict = std::set<std::string>;  // rule and cause of each finding

Verdict VerdictOn(const query::Trial& trial) {
  Verdict verdict;
  for (const Finding& finding : testing::FindingsOf(trial, "all", ParameterSet::kLuff))
    verdict.insert(finding.rule + " " + finding.cause);
  return verdict;
}

bool Names(const Verdict& verdict, const std::string& rule) {
  for (const std::string& one : verdict) {
    if (one.starts_with(rule + " ")) return true;
  }
  return false;
}

std::string Text(const Verdict& verdict) {
  std::string text;
  for (const std::string& one : verdict) text += one + "; ";
  return text;
}

// ---- changes

bool IsParameter(const query::TensorInfo& tensor) {
  return tensor.role == Role::kWeight || tensor.role == Role::kBias || tensor.role == Role::kGradient;
}

void RenameParameters(FakeTrial* trial) {
  trial->Rename([](const query::TensorInfo& tensor) {
    if (!IsParameter(tensor)) return tensor.name;
    return tensor.name.starts_with("gradient/") ? "gradient/net." + tensor.name.substr(9)
                                                : "net." + tensor.name;
  });
}

// Scales the loss, and all gradients with it.
void ScaleLoss(FakeTrial* trial, double factor) {
  for (auto& rows : trial->steps()) {
    for (auto& entry : rows.scalars) {
      if (trial->tensor(entry.tensor).role == Role::kLoss) entry.value *= factor;
    }
    for (auto& entry : rows.summaries) {
      const Role role = trial->tensor(entry.tensor).role;
      if (role != Role::kGradient && role != Role::kLoss) continue;
      entry.summary.sum *= factor;
      entry.summary.abs_sum *= factor;
      entry.summary.sum_sq *= factor * factor;
    }
  }
}

// Drops the rows that `keep` rejects; scalars, such as losses and settings, stay.
void KeepOnly(FakeTrial* trial, const std::function<bool(const query::StepInfo&, query::TensorId)>& keep) {
  for (auto& rows : trial->steps()) {
    const auto drop = [&](const auto& entry) { return !keep(rows.info, entry.tensor); };
    std::erase_if(rows.summaries, drop);
    std::erase_if(rows.forms, drop);
    std::erase_if(rows.units, drop);
  }
}

void KeepEverySecond(FakeTrial* trial) {
  KeepOnly(trial, [](const query::StepInfo& info, query::TensorId) {
    return info.mode != query::Mode::kTrain || info.mode_step < 8 || info.mode_step % 2 == 0;
  });
}

// Drops each tensor at about every third step, the same in each run of the test.
void LoseSome(FakeTrial* trial) {
  const auto kept = [](std::int64_t step, query::TensorId id) {
    const std::uint64_t mixed =
        (static_cast<std::uint64_t>(step) * 0x9E3779B97F4A7C15ULL) ^ (id * 0xC2B2AE3D27D4EB4FULL);
    return ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9ULL >> 40) % 3 != 0;
  };
  KeepOnly(trial,
           [&](const query::StepInfo& info, query::TensorId id) { return kept(info.global_step, id); });
  for (auto& rows : trial->steps()) {
    std::erase_if(rows.scalars,
                  [&](const auto& entry) { return !kept(rows.info.global_step, entry.tensor); });
  }
}

// As if the run had been resumed in the middle: processes without ranks get a number each.
void ResumedByAnotherWorker(FakeTrial* trial) {
  for (std::size_t n = trial->step_count() / 2; n < trial->step_count(); ++n) {
    auto& rows = trial->steps()[n];
    const auto move = [](auto& entries) {
      for (auto& entry : entries) ++entry.worker;
    };
    move(rows.summaries);
    move(rows.scalars);
    move(rows.units);
    move(rows.forms);
    move(rows.events);
  }
}

// Rounds samples as a training in bfloat16 would.
void ToBFloat16(FakeTrial* trial) {
  for (auto& rows : trial->steps()) {
    for (auto& entry : rows.summaries) {
      if (entry.dtype != DType::kFloat32) continue;
      entry.dtype = DType::kBFloat16;
      std::vector<double>* values = trial->ValueOf(entry.tensor, rows.info.global_step);
      if (values == nullptr) continue;
      for (double& value : *values) {
        const auto single = static_cast<float>(value);
        if (!std::isfinite(single)) continue;
        std::uint32_t bits = std::bit_cast<std::uint32_t>(single);
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U;
        value = std::bit_cast<float>(bits);
      }
    }
  }
}

// ---- kept runs

struct Kept {
  const char* program;
  const char* rule;       // the one that reports its fault; "": it has none
  bool by_value = false;  // the loss is the program's own and recognised by its value
  bool large = false;     // squares of its losses overflow: rules may refuse their own state
};
constexpr Kept kKept[] = {{"pf02", "NonFinite"},
                          {"pf02-fixed", ""},
                          {"pf06", "InitialLoss", false, true},
                          {"pf09", "NonFinite"},
                          {"pf12", "ParamNotOptimized"},
                          {"pf12-fixed", ""},
                          {"pf18", "LossShapeMismatch", true},
                          {"pf18-fixed", ""}};

std::span<const Kept> Programs() { return std::span(kKept).first(FewerCases() ? 3 : std::size(kKept)); }

class KeptRuns : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = (fs::temp_directory_path() / ("luff-metamorphic-" + std::to_string(::getpid()))).string();
    fs::create_directories(folder_);
    for (const Kept& kept : Programs()) {
      const fs::path archive = fs::path(kTestdata) / "detect" / (std::string(kept.program) + ".tar.xz");
      const std::string to = folder_ + "/" + kept.program;
      fs::create_directories(to);
      const std::string command = "tar -xJf '" + archive.string() + "' -C '" + to + "' 2>/dev/null";
      if (std::system(command.c_str()) != 0) return;  // NOLINT(cert-env33-c): no tar: tests are skipped
      const auto trial = query::Trial::Open(to + "/run");
      ASSERT_TRUE(trial.ok()) << trial.status().message();
      runs_.push_back({kept, FakeTrial::CopyOf(**trial)});
    }
  }
  static void TearDownTestSuite() {
    runs_.clear();
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  void SetUp() override {
    if (runs_.size() != Programs().size()) GTEST_SKIP() << "the kept runs cannot be unpacked: tar and xz";
  }
  // Repaired programs have no findings, and faulty ones keep the finding of their rule; with `all_causes`,
  // the whole verdict stays the same. Without `values_kept`, skips programs whose loss is recognised by its
  // value.
  static void Check(const std::function<void(FakeTrial*)>& change, bool all_causes, bool values_kept = true) {
    for (const auto& [kept, run] : runs_) {
      if (kept.by_value && !values_kept) continue;
      FakeTrial changed = run;
      change(&changed);
      const Verdict before = VerdictOn(run);
      const Verdict after = VerdictOn(changed);
      if (std::string(kept.rule).empty()) {
        EXPECT_TRUE(after.empty()) << kept.program << ": " << Text(after);
        continue;
      }
      EXPECT_TRUE(Names(after, kept.rule)) << kept.program << ": " << Text(after);
      if (all_causes) {
        EXPECT_EQ(before, after) << kept.program;
      }
    }
  }

  struct Run {
    Kept kept;
    FakeTrial trial;
  };
  static inline std::string folder_;
  static inline std::vector<Run> runs_;
};

TEST_F(KeptRuns, AsTheyAre) {
  Check([](FakeTrial*) {}, true);
}

TEST_F(KeptRuns, NamesOfParametersTellNothing) { Check(RenameParameters, true); }

TEST_F(KeptRuns, AFactorOfTheLossTellsNothing) {
  for (const double factor : {0.125, 8.0})
    Check([&](FakeTrial* trial) { ScaleLoss(trial, factor); }, false, false);
}

TEST_F(KeptRuns, OtherIntervals) { Check(KeepEverySecond, false); }

TEST_F(KeptRuns, AnotherDType) { Check(ToBFloat16, false); }

TEST_F(KeptRuns, WhatIsMissingRaisesNoAlarm) {
  for (const auto& [kept, run] : runs_) {
    FakeTrial changed = run;
    LoseSome(&changed);
    const Verdict before = VerdictOn(run);
    for (const std::string& one : VerdictOn(changed))
      EXPECT_TRUE(before.contains(one)) << kept.program << ": " << one;
  }
}

TEST_F(KeptRuns, ATensorThatEndsRaisesNoAlarm) {
  for (const auto& [kept, run] : runs_) {
    const Verdict before = VerdictOn(run);
    for (const Role role : {Role::kWeight, Role::kGradient, Role::kOutput, Role::kSample}) {
      FakeTrial changed = run;
      KeepOnly(&changed, [&](const query::StepInfo& info, query::TensorId id) {
        return info.global_step < 20 || changed.tensor(id).role != role;
      });
      for (const std::string& one : VerdictOn(changed))
        EXPECT_TRUE(before.contains(one))
            << kept.program << ", role " << static_cast<int>(role) << ": " << one;
    }
  }
}

TEST_F(KeptRuns, PartsOfAResumedRunAreNotComparedAsReplicas) {
  for (const auto& [kept, run] : runs_) {
    const Verdict before = VerdictOn(run);
    FakeTrial changed = run;
    ResumedByAnotherWorker(&changed);
    for (const std::string& one : VerdictOn(changed))
      EXPECT_TRUE(before.contains(one)) << kept.program << ": " << one;
  }
}

// Runs each rule alone, so that the failure names a rule that refuses its own state.
TEST_F(KeptRuns, ARestartInTheMiddleChangesNothing) {
  for (const auto& [kept, run] : runs_) {
    for (const RuleSpec& rule : BuiltinRules()) {
      EvaluatorOptions options;
      options.folder = folder_ + "/" + kept.program + "-" + rule.name;
      options.choices = ParseChoices(rule.name, ParameterSet::kLuff).value();
      FakeTrial trial = run;
      const std::size_t half = trial.step_count() / 2;
      trial.ShowOnly(half);
      {
        auto first = Evaluator::Open(options, nullptr);
        ASSERT_TRUE(first.ok());
        ASSERT_TRUE((*first)->Advance(trial, 1'000'000).ok());
        ASSERT_TRUE((*first)->Checkpoint().ok());
      }
      trial.ShowOnly(SIZE_MAX);
      auto second = Evaluator::Open(options, nullptr);
      ASSERT_TRUE(second.ok());
      const bool anew = kept.large && (*second)->steps_done() == 0;
      EXPECT_EQ((*second)->steps_done(), anew ? 0 : half)
          << rule.name << " refuses its own state, " << kept.program;
      ASSERT_TRUE((*second)->Advance(trial, 1'000'000).ok());
      ASSERT_TRUE((*second)->Finish(trial).ok());
      const auto at_once = testing::FindingsOf(run, rule.name, ParameterSet::kLuff);
      const auto& restarted = (*second)->findings();
      ASSERT_EQ(restarted.size(), at_once.size()) << rule.name << " on " << kept.program;
      for (std::size_t i = 0; i < at_once.size(); ++i) {
        EXPECT_EQ(restarted[i].id, at_once[i].id) << rule.name;
        EXPECT_EQ(restarted[i].healed, at_once[i].healed) << rule.name;
        EXPECT_EQ(restarted[i].last_step, at_once[i].last_step) << rule.name;
      }
    }
  }
}

// ---- stories of losses: by name and factor

struct Story {
  const char* rule;
  std::function<double(int)> train, evaluation;  // by step
  int steps;
};

// Noise without a trend, the same in each run of the test.
double Noise(int step) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(step) + 1) * 0x9E3779B97F4A7C15ULL;
  const std::uint64_t bits = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL >> 40;
  return 0.02 * (static_cast<double>(bits) / (1 << 23) - 1);
}

const std::vector<Story>& Stories() {
  static const std::vector<Story> stories = {
      {"", [](int s) { return 2.3 * std::exp(-s / 150.0) + 0.2 + Noise(s); },
       [](int s) { return 2.3 * std::exp(-s / 150.0) + 0.25; }, 600},
      {"LossNotDecreasing", [](int s) { return 2.3 + Noise(s); }, [](int s) { return 2.3 + Noise(s); }, 3200},
      {"ExplodingTensor", [](int s) { return s < 100 ? 1.0 + Noise(s) : 1e6; }, nullptr, 300},
      {"NonFinite", [](int s) { return s < 100 ? 1.0 + Noise(s) : std::nan(""); }, nullptr, 200},
      {"Overfit", [](int s) { return 2.0 * std::exp(-s / 60.0); },
       [](int s) { return 1.0 + std::abs(s - 100) / 100.0; }, 600},
  };
  return stories;
}

FakeTrial Told(const Story& story) {
  FakeTrial trial;
  int since = 0;
  for (int step = 0; step < story.steps; ++step) {
    trial.Step().Loss(story.train(step), "MyLoss_output_0");
    if (story.evaluation == nullptr || ++since < 20) continue;
    since = 0;
    for (int i = 0; i < 2; ++i)
      trial.Step(query::Mode::kEval).Loss(story.evaluation(step), "MyLoss_output_0");
  }
  return trial;
}

TEST(LossStories, NameAndFactorOfALossTellNothing) {
  for (const Story& story : Stories()) {
    const FakeTrial told = Told(story);
    const Verdict before = VerdictOn(told);
    if (std::string(story.rule).empty()) {
      EXPECT_TRUE(before.empty()) << Text(before);
    } else {
      EXPECT_TRUE(Names(before, story.rule)) << story.rule << ": " << Text(before);
    }
    for (const double factor : {1e-3, 1e3}) {
      FakeTrial changed = told;
      ScaleLoss(&changed, factor);
      EXPECT_EQ(VerdictOn(changed), before) << story.rule << " times " << factor;
    }
    FakeTrial renamed = told;
    renamed.Rename([](const query::TensorInfo&) { return std::string("Objective_output_0"); });
    EXPECT_EQ(VerdictOn(renamed), before) << story.rule << " by another name";
  }
}

TEST(LossStories, GapsRaiseNoAlarm) {
  for (const Story& story : Stories()) {
    FakeTrial changed = Told(story);
    const Verdict before = VerdictOn(changed);
    LoseSome(&changed);
    for (const std::string& one : VerdictOn(changed)) EXPECT_TRUE(before.contains(one)) << one;
  }
}

}  // namespace
}  // namespace luff::rules::metamorphic_test
