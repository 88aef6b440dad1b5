#include <cmath>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include "rules/builtin/boosting/boosted_curves.h"
#include "rules/testing/recorder.h"

// Rules on boosting runs. Each story is a run with one round per step.
namespace luff::rules::boosted_test {
namespace {

using query::Mode;
using testing::FakeTrial;

constexpr const char* kDocument =
    R"({"trainings": [{"prefix": "", "rounds_planned": 60, "rounds_before": 0, "rows": 400, "feature_count": 12,
        "parameters": {"subsample": 1}}]})";

void Evaluate(FakeTrial* trial, double training, double validation) {
  trial->Define("train-logloss", format::Role::kLoss, "training");
  trial->Define("validation-logloss", format::Role::kScalar, "evaluation");
  trial->Scalar("train-logloss", format::Role::kLoss, training);
  if (!std::isnan(validation)) trial->Scalar("validation-logloss", format::Role::kScalar, validation);
}

template <typename Training, typename Validation>
FakeTrial Story(int rounds, Training training, Validation validation, const char* document = kDocument) {
  FakeTrial trial;
  trial.SetDocument("boosting", document);
  for (int round = 0; round < rounds; ++round) {
    trial.Step();
    Evaluate(&trial, training(round), validation(round));
  }
  return trial;
}

std::vector<Finding> Findings(const FakeTrial& trial, const char* rule) {
  return testing::FindingsOf(trial, rule, ParameterSet::kLuff);
}

double Falling(int round) { return 0.6 * std::exp(-round / 10.0); }

TEST(BoostedLosses, WhichTensorsAreThem) {
  const auto of = [](const std::string& name, const std::string& type) {
    query::TensorInfo info;
    info.name = name;
    info.module_type = type;
    return BoostedLossOf(info);
  };
  ASSERT_TRUE(of("fit2/valid-poisson-nloglik", "evaluation"));
  EXPECT_EQ(of("fit2/valid-poisson-nloglik", "evaluation")->prefix, "fit2/");
  EXPECT_EQ(of("fit2/valid-poisson-nloglik", "evaluation")->data, "valid");
  EXPECT_FALSE(of("valid-logloss", "evaluation")->training);
  EXPECT_TRUE(of("train-rmse", "")->training);  // from another hook: decided by its name
  EXPECT_EQ(of("valid_0-binary_logloss", "evaluation")->metric, "binary_logloss");  // LightGBM's names
  EXPECT_TRUE(of("training-l2", "training")->training);
  EXPECT_TRUE(of("validation-log_loss", "evaluation"));  // scikit-learn's
  EXPECT_FALSE(of("out_of_bag-log_loss-score", "evaluation"));
  EXPECT_FALSE(of("valid_0-binary_error", "evaluation"));
  EXPECT_FALSE(of("valid_0-ndcg@5", "evaluation"));
  EXPECT_FALSE(of("train-auc", "training"));
  EXPECT_FALSE(of("train-error", "training"));
  EXPECT_FALSE(of("train-logloss-std", "training"));
  EXPECT_FALSE(of("a-logloss", "Linear"));
  EXPECT_FALSE(of("-logloss", ""));
}

TEST(BoostedOverfit, RisingEvaluationOverFallingTraining) {
  const auto findings =
      Findings(Story(30, Falling, [](int round) { return 0.5 + 0.04 * std::abs(round - 4); }), "Overfit");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rising");
  EXPECT_EQ(findings[0].tensor, "validation-logloss");
  EXPECT_EQ(findings[0].since_step, 4);
}

// LightGBM goes on with an objective of the user's own: its `binary_logloss` gets raw scores from then on.
TEST(BoostedOvertraining, MetricsOfProbabilitiesUnderAnObjectiveOfTheUsersOwn_AreNotJudged) {
  const auto told = [](const std::string& metric, const std::string& objective,
                       const std::string& more = "") {
    FakeTrial trial;
    trial.SetDocument("boosting", R"({"trainings": [
      {"prefix": "", "first_step": 0, "parameters": {"objective": "binary"}},
      {"prefix": "", "first_step": 40, "parameters": {"objective": ")" +
                                      objective + "\"" + more + "}}]}");
    for (int round = 0; round < 80; ++round) {
      trial.Step();
      trial.Define("valid_0-" + metric, format::Role::kScalar, "evaluation");
      trial.Scalar("valid_0-" + metric, format::Role::kScalar, round < 40 ? Falling(round) + 0.5 : 5.6);
    }
    return Findings(trial, "Overtraining").size();
  };
  EXPECT_EQ(told("binary_logloss", "custom"), 0U);
  EXPECT_EQ(told("binary_logloss", "binary"), 1U);
  EXPECT_EQ(told("l2", "custom"), 1U);
  // XGBoost adds the metric of its default objective where the user names none.
  EXPECT_EQ(told("rmse", "custom", R"(, "eval_metric": "")"), 0U);
  EXPECT_EQ(told("rmse", "custom", R"(, "eval_metric": "rmse")"), 1U);
  EXPECT_EQ(told("mae", "custom", R"(, "eval_metric": "mae")"), 1U);
  EXPECT_EQ(told("logloss", "custom", R"(, "eval_metric": "logloss")"), 0U);
}

TEST(BoostedOverfit, NothingThatHoldsElsewhere) {
  const auto findings =
      Findings(Story(40, Falling, [](int round) { return 0.66 + 0.0005 * round; }), "Overfit");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "nothing_general");
  EXPECT_EQ(findings[0].step, 29);
}

TEST(BoostedOverfit, OfARootATenthCountsAsAFifthOfTheErrors) {
  for (const char* metric : {"rmse", "mae"}) {
    FakeTrial trial;
    trial.SetDocument("boosting", kDocument);
    for (int round = 0; round < 60; ++round) {
      trial.Step();
      for (const bool training : {true, false}) {
        const std::string name = std::string(training ? "train-" : "validation-") + metric;
        trial.Define(name, format::Role::kLoss, training ? "training" : "evaluation");
        trial.Scalar(name, format::Role::kLoss, training ? 80 - 0.25 * round : 83 + 0.01 * round);
      }
    }
    EXPECT_EQ(Findings(trial, "Overfit").size(), metric == std::string("rmse") ? 1U : 0U) << metric;
  }
}

TEST(BoostedOverfit, HealthyCurvesAreSilent) {
  const auto silent = [](const FakeTrial& trial) {
    return Findings(trial, "Overfit").empty() && Findings(trial, "Overtraining").empty() &&
           Findings(trial, "LossNotDecreasing").empty();
  };
  EXPECT_TRUE(silent(Story(60, Falling, [](int round) { return 0.1 + 0.55 * std::exp(-round / 12.0); })));
  // ends 10 % above its best
  EXPECT_TRUE(silent(Story(60, Falling, [](int round) { return round < 20 ? 0.6 - 0.02 * round : 0.24; })));
  // evaluated on other data only
  EXPECT_TRUE(silent(Story(60, [](int) { return std::nan(""); }, Falling)));
  // a loss that is not finite means nothing
  EXPECT_TRUE(
      Findings(Story(60, Falling, [](int round) { return round == 3 ? -1.0 : round * 1.0; }), "Overfit")
          .empty());
}

TEST(BoostedOvertraining, TheBestRoundLiesLongBack) {
  const auto findings = Findings(
      Story(60, Falling, [](int round) { return round < 8 ? 0.6 - 0.02 * round : 0.58; }), "Overtraining");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 7);
  EXPECT_GE(findings[0].step, 27);
}

TEST(BoostedLossNotDecreasing, StepsFarTooSmallForThePlan) {
  const auto tiny = [](int round) { return 0.66 - 1e-6 * round; };
  const auto findings = Findings(Story(40, tiny, tiny), "LossNotDecreasing");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "flat");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 19);
  // equally slow, but planned for a hundred thousand rounds: it gets there
  const char* long_plan =
      R"({"trainings": [{"prefix": "", "rounds_planned": 100000, "rounds_before": 0, "rows": 400}]})";
  EXPECT_TRUE(Findings(Story(40, tiny, tiny, long_plan), "LossNotDecreasing").empty());
  // a training that continues a finished model has little left to learn
  const char* goes_on =
      R"({"trainings": [{"prefix": "", "rounds_planned": 60, "rounds_before": 200, "rows": 400}]})";
  EXPECT_TRUE(Findings(Story(40, tiny, tiny, goes_on), "LossNotDecreasing").empty());
}

TEST(BoostedLossNotDecreasing, StepsFarTooLarge) {
  const auto wild = [](int round) { return 0.5 + 0.3 * round; };
  const auto findings = Findings(Story(20, wild, wild), "LossNotDecreasing");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rising");
  EXPECT_LE(findings[0].step, 8);
}

// A tree: a chain of `depth` splits, each of which leaves a cover of `rest` in a leaf.
void Tree(FakeTrial* trial, int depth, double rest) {
  std::vector<double> depths, cover, feature;
  double left = 100;
  for (int level = 0; level < depth; ++level) {
    depths.push_back(level);
    cover.push_back(left);
    feature.push_back(1);
    depths.push_back(level + 1);
    cover.push_back(rest);
    feature.push_back(-1);
    left -= rest;
  }
  trial->Tensor("trees/Depth", format::Role::kOther, depths);
  trial->Tensor("trees/Cover", format::Role::kOther, cover);
  trial->Tensor("trees/Feature", format::Role::kOther, feature);
}

template <typename Validation>
FakeTrial Trees(int rounds, int depth, double rest, Validation validation) {
  FakeTrial trial;
  trial.SetDocument("boosting", kDocument);
  for (int round = 0; round < rounds; ++round) {
    trial.Step();
    Tree(&trial, depth, rest);
    Evaluate(&trial, Falling(round), validation(round));
  }
  return trial;
}

TEST(BoostedTreeDepth, DeepTreesOfLoneSamplesThatNoLongerHelp) {
  // 400 rows, cover 100 at the root: 0.25 is one row
  const auto findings =
      Findings(Trees(12, 12, 0.25, [](int round) { return 0.6 + 0.01 * round; }), "TreeDepth");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "deep");
  EXPECT_EQ(findings[0].step, 3);
}

TEST(BoostedTreeDepth, DeepTreesThatTheDataBearAreSilent) {
  EXPECT_TRUE(Findings(Trees(30, 12, 0.25, Falling), "TreeDepth").empty());  // evaluations keep improving
  const auto worse = [](int round) { return 0.6 + 0.01 * round; };
  EXPECT_TRUE(Findings(Trees(30, 12, 5, worse), "TreeDepth").empty());    // 20 rows in each leaf
  EXPECT_TRUE(Findings(Trees(30, 6, 0.25, worse), "TreeDepth").empty());  // not deep
  FakeTrial unknown = Trees(30, 12, 0.25, worse);
  unknown.SetDocument("boosting", "no JSON");  // rows unknown
  EXPECT_TRUE(Findings(unknown, "TreeDepth").empty());
}

TEST(BoostedTreeDepth, WithoutEvaluationItTakesMoreRounds) {
  const auto findings = Findings(Trees(12, 12, 0.25, [](int) { return std::nan(""); }), "TreeDepth");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 9);
}

FakeTrial Features(int rounds, double first, double last_loss, const std::string& prefix = "") {
  FakeTrial trial;
  trial.SetDocument("boosting", kDocument);
  for (int round = 0; round < rounds; ++round) {
    trial.Step();
    const std::string lead = prefix + "feature_importance/total_gain/";
    trial.Scalar(lead + "copy/of/it", format::Role::kOther, first);
    for (int f = 0; f < 9; ++f)
      trial.Scalar(lead + "f" + std::to_string(f), format::Role::kOther, (1 - first) / 9);
    const double loss = 0.6 + (last_loss - 0.6) * round / (rounds - 1);
    Evaluate(&trial, loss, loss);
  }
  return trial;
}

TEST(BoostedFeatureImportance, ACopyOfTheTarget) {
  const auto findings = Findings(Features(20, 0.95, 0.01), "FeatureImportanceOverweight");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "feature_importance/total_gain/copy/of/it");
  EXPECT_NE(findings[0].what.find("'copy/of/it'"), std::string::npos);
}

TEST(BoostedFeatureImportance, SharesOfTwoWorkersAreNotAdded) {
  FakeTrial trial;
  trial.SetDocument("boosting", kDocument);
  for (int round = 0; round < 20; ++round) {
    const std::string lead = "feature_importance/total_gain/";
    trial.Step();
    Evaluate(&trial, 0.6 - 0.03 * round, 0.6 - 0.03 * round);
    for (const std::uint32_t worker : {0U, 1U}) {
      trial.Scalar(lead + "copy", format::Role::kOther, 0.95);
      trial.Last().scalars.back().worker = worker;
      for (int f = 0; f < 9; ++f) {
        trial.Scalar(lead + "f" + std::to_string(f), format::Role::kOther, 0.05 / 9);
        trial.Last().scalars.back().worker = worker;
      }
    }
  }
  EXPECT_EQ(Findings(trial, "FeatureImportanceOverweight").size(), 1U);
}

TEST(BoostedFeatureImportance, AFeatureThatIsMerelyImportantIsSilent) {
  EXPECT_TRUE(Findings(Features(20, 0.95, 0.3), "FeatureImportanceOverweight").empty());
  EXPECT_TRUE(Findings(Features(20, 0.5, 0.01), "FeatureImportanceOverweight").empty());
}

TEST(FeatureImportanceOverweight, TheOriginalKnowsOneTensorForEachFeature) {
  FakeTrial trial;
  trial.Step();
  for (int f = 0; f < 5; ++f)
    trial.Scalar("feature_importance/weight/f" + std::to_string(f), format::Role::kOther, f == 0 ? 0.6 : 0.1);
  EXPECT_TRUE(testing::FindingsOf(trial, "FeatureImportanceOverweight", ParameterSet::kOriginal).empty());
  EXPECT_EQ(testing::FindingsOf(trial, "FeatureImportanceOverweight:threshold=0.79", ParameterSet::kOriginal)
                .size(),
            1U);
  FakeTrial values;  // as smdebug stores them
  values.Step();
  for (int f = 0; f < 5; ++f)
    values.Tensor("feature_importance/weight/f" + std::to_string(f), format::Role::kOther,
                  {f == 0 ? 0.7 : 0.075});
  EXPECT_EQ(testing::FindingsOf(values, "FeatureImportanceOverweight", ParameterSet::kOriginal).size(), 1U);
}

// A description of one training and its evaluations; `data` and `evaluations` as the hooks write them.
FakeTrial Described(const std::string& data, const std::string& evaluations,
                    const std::string& more = R"("rounds_before": 0)") {
  const std::string document = R"({"trainings": [{"prefix": "", )" + more +
                               R"(, "rows": 400, "folds": 0, "data": )" + data + R"(, "evaluations": [)" +
                               evaluations + "]}]}";
  return Story(3, Falling, Falling, document.c_str());
}
std::string Rows(const std::string& name, int known, const std::string& more = "") {
  return R"({"name": ")" + name + R"(", "training": false, "data": {"looked": 400, "known": )" +
         std::to_string(known) + more + "}}";
}
std::string Labels(double least, double low, double middle, double high, double most, double mean,
                   double deviation) {
  std::string text = R"("labels": {"count": 400)";
  const std::pair<const char*, double> all[] = {{"least", least},        {"low", low},   {"middle", middle},
                                                {"high", high},          {"most", most}, {"mean", mean},
                                                {"deviation", deviation}};
  for (const auto& [name, value] : all) text += ", \"" + std::string(name) + "\": " + std::to_string(value);
  return text + "}";
}
constexpr const char* kDistinct = R"({"looked": 400, "repeated": 2})";
constexpr const char* kOwn = R"({"name": "train", "training": true})";

TEST(BoostedDataLeak, RowsOfTheTrainingInAnEvaluation) {
  const auto findings = Findings(Described(kDistinct, Rows("valid", 150)), "DataLeak");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rows");
  EXPECT_EQ(findings[0].tensor, "valid");
}

TEST(BoostedDataLeak, AValidationThatIsTheTraining) {
  const std::string same = R"({"name": "validation", "training": true})";
  EXPECT_EQ(Findings(Described(kDistinct, std::string(kOwn) + ", " + same), "DataLeak").size(), 1U);
  EXPECT_EQ(Findings(Described(kDistinct, Rows("test", 400)), "DataLeak").size(), 1U);
}

TEST(BoostedDataLeak, LookAlikesAreSilent) {
  for (const std::string& evaluations : {
           std::string(kOwn),          // the training, by its name
           Rows("valid", 4),           // as many as chance gives
           Rows("validation_0", 400),  // numbered by scikit-learn's interface
           Rows("validation_0", 400) + ", " + Rows("validation_1", 0),  // beside one that is clean
           Rows("test_of_old", 400) + ", " + Rows("test", 0),           // likewise
           Rows("train_sample", 400),
           Rows("latest", 400),                                     // a part of a word is no claim
           Rows("eval", 400),                                       // says nothing of other rows
           std::string(R"({"name": "valid", "training": false})"),  // nothing is known
           std::string(R"({"name": 7, "data": {"looked": "many"}}, 3)"),
       })
    EXPECT_TRUE(Findings(Described(kDistinct, evaluations), "DataLeak").empty()) << evaluations;
  // rows of few values come several times anyway
  EXPECT_TRUE(
      Findings(Described(R"({"looked": 400, "repeated": 300})", Rows("valid", 250)), "DataLeak").empty());
  EXPECT_TRUE(Findings(Described("{}", Rows("valid", 250)), "DataLeak").empty());
}

std::string Columns(const std::string& means, const std::string& deviations) {
  return R"("columns": {"means": )" + means + R"(, "deviations": )" + deviations + "}";
}

TEST(BoostedTrainValSkew, FeaturesThatWereScaledOnOneSide) {
  const std::string scaled = R"({"looked": 400, "repeated": 0, )" + Columns("[0, 0, 0]", "[1, 1, 1]") + "}";
  const auto unlike = [&](const std::string& columns) {
    return Findings(Described(scaled, Rows("valid", 0, ", " + columns)), "TrainValSkew");
  };
  const auto findings = unlike(Columns("[120, 4, 0.2]", "[30, 0.1, 40]"));  // two of three
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "skew");
  EXPECT_TRUE(unlike(Columns("[0.5, -1, 2]", "[1.5, 2, 0.7]")).empty());      // another season
  EXPECT_TRUE(unlike(Columns("[120, 0, 0]", "[1, 1, 1]")).empty());           // a date
  EXPECT_TRUE(unlike(Columns("[0.4, 1, -2]", "[0.1, 0.02, 0.05]")).empty());  // one place, a few days
  EXPECT_TRUE(unlike(Columns("[0.4, 1, 2]", "[40, 0.9, 1]")).empty());        // a heavy tail
  EXPECT_TRUE(unlike(Columns("[120, 90]", "[30, 40]")).empty());              // other columns
  EXPECT_TRUE(unlike(Columns("[120, 90, null]", "[30, 40, 2]")).empty());
}

TEST(BoostedTrainValSkew, WhatNobodyStandardisedIsSilent) {
  // hours, days, months and years; the last three days are held out
  const std::string year =
      R"({"looked": 400, "repeated": 0, )" + Columns("[11.5, 3, 6.5, 2022]", "[6.9, 2, 3.4, 0.8]") + "}";
  const std::string days = ", " + Columns("[11.5, 4, 12, 2023.9]", "[6.9, 0.8, 0.01, 0.01]");
  EXPECT_TRUE(Findings(Described(year, Rows("valid", 0, days)), "TrainValSkew").empty());
  const std::string raw = R"({"looked": 400, "repeated": 0, )" + Columns("[120, 4, 7]", "[30, 9, 40]") + "}";
  EXPECT_EQ(Findings(Described(raw, Rows("valid", 0, ", " + Columns("[0, 0.01, 0]", "[1, 1, 1.02]"))),
                     "TrainValSkew")
                .size(),
            1U);
}

TEST(BoostedTrainValSkew, LabelsThatWereScaledOnOneSide) {
  const std::string prices = Labels(3e4, 8e4, 2e5, 4e5, 9e5, 2.2e5, 1.2e5);
  const std::string logs = Labels(10.3, 11.3, 12.2, 12.9, 13.7, 12.1, 0.6);
  const std::string standard = Labels(-2.1, -1.2, -0.1, 1.4, 4.1, 0, 1);
  const auto told = [](const std::string& training, const std::string& evaluation) {
    return !Findings(Described("{" + training + "}", Rows("valid", 0, ", " + evaluation)), "TrainValSkew")
                .empty();
  };
  EXPECT_TRUE(told(logs, prices));
  EXPECT_TRUE(told(prices, logs));
  EXPECT_TRUE(told(standard, prices));
  EXPECT_FALSE(told(prices, prices));
  EXPECT_FALSE(told(logs, logs));
  EXPECT_FALSE(told(prices, Labels(1e6, 1.1e6, 1.3e6, 1.5e6, 2e6, 1.3e6, 2e5)));  // prices of later years
  EXPECT_FALSE(told(Labels(0, 0, 1, 2, 2, 1, 0.8), Labels(0, 1, 1, 2, 2, 1.2, 0.6)));  // classes
}

TEST(BoostedTargetRange, LabelsThatAreAllAlike) {
  const std::string constant = "{" + Labels(1, 1, 1, 1, 1, 1, 0) + "}";
  const std::string two = ", " + Labels(0, 0, 1, 1, 1, 0.6, 0.5);
  const auto findings = Findings(Described(constant, Rows("valid", 0, two)), "TargetRange");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "constant");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_TRUE(Findings(Described(constant, Rows("valid", 0)), "TargetRange").empty());
  for (const char* more : {R"("rounds_before": 10)", R"("parameters": {"objective": "survival:aft"})",
                           R"("parameters": {"objective": "custom"})"})
    EXPECT_TRUE(Findings(Described(constant, Rows("valid", 0, two), more), "TargetRange").empty()) << more;
}

TEST(BoostedCurves, StateSurvivesACheckpoint) {
  BoostedCurves curves;
  const FakeTrial trial = Story(20, Falling, [](int round) { return 0.5 + 0.01 * std::abs(round - 6); });
  query::Trial::StepRows rows;
  for (std::size_t n = 0; n < 12; ++n) {
    ASSERT_TRUE(trial.ReadStepRows(n, &rows).ok());
    static_cast<void>(curves.OnStep(trial, rows));
  }
  const auto saved = [](BoostedCurves& from) {
    return Fields::Save([&](Fields& io) { from.VisitFields(io); });
  };
  BoostedCurves loaded;
  ASSERT_TRUE(Fields::LoadUntrusted(saved(curves), [&](Fields& io) { loaded.VisitFields(io); }).ok());
  for (std::size_t n = 12; n < 20; ++n) {
    ASSERT_TRUE(trial.ReadStepRows(n, &rows).ok());
    static_cast<void>(curves.OnStep(trial, rows));
    static_cast<void>(loaded.OnStep(trial, rows));
  }
  EXPECT_EQ(saved(curves), saved(loaded));
  EXPECT_EQ(loaded.Judge("")->curve.best().first, 6);
}

}  // namespace
}  // namespace luff::rules::boosted_test
