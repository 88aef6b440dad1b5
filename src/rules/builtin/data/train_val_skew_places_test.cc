#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

/// TrainValSkew, moved and recoded.
namespace luff::rules::train_val_skew_places_test {
namespace {

using testing::FakeTrial;
constexpr int kBatch = 32;

struct Row {
  std::vector<double> values;
  double target = 0;
};
using Maker = std::function<Row(std::mt19937*, bool train)>;

struct Story {
  std::vector<std::int64_t> shape;  // of a row
  bool classes = false;             // targets are class ids
  DType type = DType::kFloat32;
  int evaluations = 1;
  int batches = 40;
  int eval_batches = 8;
  int eval_rows = kBatch;  // of a batch
  int drawn = 0;           // the rows of the training come again after so many batches; 0: never
};

std::vector<Finding> Told(const Story& story, const Maker& make) {
  FakeTrial trial;
  const auto step = [&](int number, bool train) {
    std::mt19937 random(static_cast<unsigned>(number) * 31 + (train ? 7 : 5000011));
    std::vector<double> values;
    std::vector<double> targets;
    const int rows = train ? kBatch : story.eval_rows;
    for (int row = 0; row < rows; ++row) {
      const Row one = make(&random, train);
      values.insert(values.end(), one.values.begin(), one.values.end());
      targets.push_back(one.target);
    }
    std::vector<std::int64_t> shape = {rows};
    shape.insert(shape.end(), story.shape.begin(), story.shape.end());
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval)
        .Sample("sample/Net_input_0", shape, values, story.type);
    const char* name = story.classes ? "CrossEntropyLoss" : "MSELoss";
    trial
        .Sample(std::string("sample/") + name + "_input_0", {rows, story.classes ? 2 : 1},
                std::vector<double>(static_cast<std::size_t>(story.classes ? 2 * rows : rows)))
        .Sample(std::string("sample/") + name + "_input_1", {rows}, targets,
                story.classes ? DType::kInt64 : DType::kFloat32)
        .Loss(1, std::string(name) + "_output_0");
  };
  for (int epoch = 0; epoch < story.evaluations; ++epoch) {
    for (int batch = 0; batch < story.batches; ++batch)
      step(story.drawn > 0 ? batch % story.drawn : epoch * story.batches + batch, true);
    for (int batch = 0; batch < story.eval_batches; ++batch) step(batch, false);
  }
  return testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
}

double Draw(std::mt19937* random) { return std::normal_distribution<double>(0, 1)(*random); }

// A standardised table of eight columns. `order`: which column of the training each column of evaluations
// holds.
Maker Table(std::vector<std::size_t> order, double drift = 0, double inverted = 1) {
  return [=](std::mt19937* random, bool train) {
    Row row;
    std::vector<double> x(8);
    for (double& value : x) value = Draw(random);
    row.target = 2 * x[0] - 1 * x[1] + 0.7 * x[2] + 0.5 * x[3] + Draw(random);
    if (!train) {
      row.target *= inverted;
      for (double& value : x) value = value * (1 + drift) + drift;
    }
    row.values = x;
    for (std::size_t i = 0; i < 8 && !train; ++i) row.values[i] = x[order[i]];
    return row;
  };
}

TEST(TrainValSkewPlaces, ColumnsInAnotherOrder_AreNamed) {
  const auto findings = Told({.shape = {8}}, Table({1, 0, 2, 3, 4, 5, 6, 7}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "moved");
  EXPECT_EQ(findings[0].what,
            "2 columns of sample/Net_input_0 are exchanged in evaluations, compared with training");
  EXPECT_EQ(Told({.shape = {8}}, Table({2, 0, 1, 3, 4, 5, 6, 7})).size(), 1U);
  EXPECT_EQ(Told({.shape = {8}}, Table({7, 6, 5, 4, 3, 2, 1, 0})).size(), 1U);
  // Columns of no use to the targets, by their means.
  const Maker raw = [](std::mt19937* random, bool train) {
    Row row{{20 + 5 * Draw(random), 60 + 9 * Draw(random), Draw(random), Draw(random)}, Draw(random)};
    if (!train) std::swap(row.values[0], row.values[1]);
    return row;
  };
  bool moved = false;
  for (const Finding& finding : Told({.shape = {4}}, raw)) moved = moved || finding.cause == "moved";
  EXPECT_TRUE(moved);
}

TEST(TrainValSkewPlaces, DriftAndLostColumns_AndInvertedTargets_AreSilent) {
  const std::vector<std::size_t> same = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_TRUE(Told({.shape = {8}}, Table(same)).empty());
  EXPECT_TRUE(Told({.shape = {8}, .evaluations = 4}, Table(same, 0.3)).empty());
  EXPECT_TRUE(Told({.shape = {8}, .drawn = 4}, Table(same)).empty());
  EXPECT_TRUE(Told({.shape = {8}, .drawn = 4}, Table(same, 0.6)).empty());
  EXPECT_TRUE(Told({.shape = {8}}, Table(same, 0, -1)).empty());
  // Two columns that tell as much as each other, with opposite signs, of targets that are turned over.
  for (const double sign : {1.0, -1.0}) {
    EXPECT_TRUE(Told({.shape = {3}}, [sign](std::mt19937* random, bool train) {
                  Row row{{Draw(random), Draw(random), Draw(random)}, 0};
                  row.target = (row.values[0] - row.values[1] + 0.5 * Draw(random)) * (train ? 1 : sign);
                  return row;
                }).empty());
  }
  // One column that says nothing any more; a flag that is as rare as the other one was; a table of flags.
  EXPECT_TRUE(Told({.shape = {8}}, [&](std::mt19937* random, bool train) {
                Row row = Table({0, 1, 2, 3, 4, 5, 6, 7})(random, true);
                if (!train) row.values[0] = Draw(random);
                return row;
              }).empty());
  EXPECT_TRUE(Told({.shape = {6}}, [](std::mt19937* random, bool train) {
                Row row{{0, 0, Draw(random), Draw(random), Draw(random), Draw(random)}, Draw(random)};
                const bool flag = (*random)() % 10 < (train ? 7U : 3U);
                row.values[0] = flag ? 1 : 0;
                row.values[1] = flag ? 0 : 1;
                return row;
              }).empty());
}

// Images of 16 x 12 with something bright in the upper left part, and a channel that is darker.
Maker Image(int height, int width, const std::function<std::size_t(int, int, int)>& to, double moves = 1) {
  return [=](std::mt19937* random, bool train) {
    Row row{std::vector<double>(static_cast<std::size_t>(3 * height * width)), 0};
    const double y0 = 3 + moves * Draw(random);
    const double x0 = 4 + moves * Draw(random);
    for (int c = 0; c < 3; ++c)
      for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
          const double bright = std::exp(-((y - y0) * (y - y0) + (x - x0) * (x - x0)) / 8);
          const std::size_t at = train ? static_cast<std::size_t>((c * height + y) * width + x) : to(c, y, x);
          row.values[at] = bright * (1 + c) + 0.3 * Draw(random);
        }
    return row;
  };
}

TEST(TrainValSkewPlaces, ImagesThatLieOtherwise_AreNamed_AndHowTheyDo) {
  const auto at = [](int c, int y, int x) { return static_cast<std::size_t>((c * 16 + y) * 16 + x); };
  const auto how = [&](const Maker& make) {
    const auto findings = Told({.shape = {3, 16, 16}, .batches = 20}, make);
    return findings.size() == 1 && findings[0].cause == "moved" ? findings[0].what : std::string("nothing");
  };
  EXPECT_NE(how(Image(16, 16, [&](int c, int y, int x) { return at(c, 15 - y, x); })).find("upside down"),
            std::string::npos);
  EXPECT_NE(how(Image(16, 16, [&](int c, int y, int x) { return at(c, y, 15 - x); })).find("left to right"),
            std::string::npos);
  EXPECT_NE(how(Image(16, 16, [&](int c, int y, int x) { return at(2 - c, y, x); })).find("channels"),
            std::string::npos);
  EXPECT_EQ(how(Image(16, 16, at)), "nothing");
  // Half of the evaluation's images are mirrored, as an augmentation of both sides would do.
  int number = 0;
  EXPECT_EQ(how(Image(16, 16, [&](int c, int y, int x) { return at(c, y, number++ % 2 == 0 ? x : 15 - x); })),
            "nothing");
}

TEST(TrainValSkewPlaces, LargeImages_AreComparedInSquares) {
  const auto findings =
      Told({.shape = {3, 48, 48}, .batches = 10, .eval_batches = 4}, Image(48, 48, [](int c, int y, int x) {
             return static_cast<std::size_t>((c * 48 + 47 - y) * 48 + x);
           }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("upside down"), std::string::npos) << findings[0].what;
}

// Windows whose last places tell the target.
TEST(TrainValSkewPlaces, TimeInReverseOrder_IsNamed_ByTheTargets) {
  const auto make = [](bool reversed, bool later) {
    return [=](std::mt19937* random, bool train) {
      Row row{std::vector<double>(20), 0};
      double x = Draw(random);
      for (double& value : row.values) value = x = 0.8 * x + 0.6 * Draw(random);
      row.target = row.values[19] + 0.5 * row.values[18] + 0.3 * Draw(random);
      if (!train && later) row.target = row.values[14];
      if (!train && reversed) std::reverse(row.values.begin(), row.values.end());
      return row;
    };
  };
  const auto findings = Told({.shape = {20}}, make(true, false));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].what,
            "sample/Net_input_0 is in reverse order in evaluations, compared with training");
  EXPECT_NE(findings[0].why.find("targets"), std::string::npos);
  EXPECT_TRUE(Told({.shape = {20}}, make(false, false)).empty());
  EXPECT_TRUE(Told({.shape = {20}}, make(false, true)).empty());  // other targets, not other places
  EXPECT_EQ(Told({.shape = {20, 1}}, make(true, false)).size(), 1U);
}

constexpr std::array<double, 12> kMeans = {1.2, -0.8, 0.3, -1.5, 1.9, -0.2, -1.1, 0.9, 1.4, -1.7, 0.6, -0.4};

// Twelve cities with a mean of their own; `code`: what evaluations call them; `drift`: how far means change.
Maker Cities(const std::function<int(int)>& code, double drift = 0, double effect = 2, bool classes = false,
             double sign = 1) {
  return [=](std::mt19937* random, bool train) {
    const int city = static_cast<int>((*random)() % 12);
    const double mean =
        effect * kMeans[static_cast<std::size_t>(city)] + (train ? 0 : drift * std::cos(5.0 * city));
    const double target = (mean + Draw(random)) * (train ? 1 : sign);
    return Row{{static_cast<double>(train ? city : code(city)), static_cast<double>((*random)() % 100000)},
               classes ? (target > 0 ? 1.0 : 0.0) : target};
  };
}

TEST(TrainValSkewPlaces, IdsThatMeanOthers_AreNamed) {
  const auto other = [](int city) { return (5 * city + 3) % 12; };
  for (const bool classes : {false, true}) {
    const auto findings = Told({.shape = {2}, .classes = classes, .type = DType::kInt64, .evaluations = 2},
                               Cities(other, 0, 2, classes));
    ASSERT_EQ(findings.size(), 1U) << classes;
    EXPECT_EQ(findings[0].cause, "recoded");
    EXPECT_NE(findings[0].what.find("column 0"), std::string::npos) << findings[0].what;
    // The only evaluation, of all rows in one call; but not of batches, which may be shuffled.
    Story once{.shape = {2}, .classes = classes, .type = DType::kInt64, .eval_batches = 1, .eval_rows = 256};
    EXPECT_EQ(Told(once, Cities(other, 0, 2, classes)).size(), 1U);
    once.eval_batches = 2;
    EXPECT_TRUE(Told(once, Cities(other, 0, 2, classes)).empty());
    // Columns of a table of numbers may be months, or counts.
    EXPECT_TRUE(
        Told({.shape = {2}, .classes = classes, .evaluations = 2}, Cities(other, 0, 2, classes)).empty());
  }
}

// Ids whose rows come in blocks, or of a target that drifts: they tell it on both sides, and nothing comes
// again in the next year. `id` of a day; `keep`: how much of the level is left the next day; `shuffled`:
// evaluations are.
int RecodedOfYears(const std::function<int(int)>& id, double keep, bool shuffled) {
  int told = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 walk(seed);
    double level = 0;
    std::vector<Row> days;
    for (int day = 0; day < 720; ++day) {
      level = keep * level + Draw(&walk);
      days.push_back({{static_cast<double>(id(day)), static_cast<double>(day + 4000)}, level});
    }
    std::vector<Row> first(days.begin(), days.begin() + 352);
    std::vector<Row> second(days.begin() + 360, days.begin() + 712);
    std::shuffle(first.begin(), first.end(), walk);
    std::size_t next = 0;
    const auto findings =
        Told({.shape = {2}, .type = DType::kInt64, .evaluations = 2, .batches = 11, .eval_batches = 11},
             [&](std::mt19937*, bool train) {
               const std::size_t at = next++ % 352;
               if (!train && at == 0 && shuffled) std::shuffle(second.begin(), second.end(), walk);
               return train ? first[at] : second[at];
             });
    for (const Finding& finding : findings) told += finding.cause == "recoded" ? 1 : 0;
  }
  return told;
}

TEST(TrainValSkewPlaces, IdsOfWhatDrifts_AreSilent) {
  const auto month = [](int day) { return day % 360 / 30; };
  const auto name_of_month = [](int day) { return (5 * (day % 360 / 30) + 3) % 12; };
  const auto recipe = [](int day) { return (7 * (day / 15) + day / 150) % 10; };
  const auto day_of_month = [](int day) { return 7 * (day % 30) % 30; };
  for (const double keep : {1.0, 0.97}) {
    for (const bool shuffled : {false, true}) {
      EXPECT_EQ(RecodedOfYears(month, keep, shuffled), 0);
      EXPECT_EQ(RecodedOfYears(name_of_month, keep, shuffled), 0);
      EXPECT_EQ(RecodedOfYears(recipe, keep, shuffled), 0);
      EXPECT_EQ(RecodedOfYears(day_of_month, keep, shuffled), 0);
    }
  }
  // Many shops a day, which have little in common but the time: only the months come in blocks.
  for (const Finding& finding : [&] {
         std::mt19937 walk(3);
         std::vector<double> levels(720);
         for (std::size_t day = 1; day < 720; ++day) levels[day] = levels[day - 1] + 0.3 * Draw(&walk);
         std::size_t next = 0;
         return Told(
             {.shape = {1}, .type = DType::kInt64, .evaluations = 2, .batches = 40, .eval_batches = 20},
             [=](std::mt19937* random, bool train) mutable {
               const std::size_t at = next++;
               const int day =
                   train ? static_cast<int>((*random)() % 360) : 360 + static_cast<int>(at % 640) * 360 / 640;
               return Row{{static_cast<double>(name_of_month(day))},
                          levels[static_cast<std::size_t>(day)] + 5 * Draw(random)};
             });
       }())
    EXPECT_NE(finding.cause, "recoded");
}

// Windows as (N, 1, T, F) whose F values go up in training, and down in evaluations; levels of their own.
TEST(TrainValSkewPlaces, SlopesOfTheOtherSign_AsImages_AreSilent) {
  for (const bool last : {false, true}) {
    for (const Finding& finding :
         Told({.shape = {1, last ? 4 : 20, last ? 20 : 4}}, [last](std::mt19937* random, bool train) {
           Row row{std::vector<double>(80), Draw(random)};
           const double slope = (train ? 0.2 : -0.2) + 0.02 * Draw(random);
           for (std::size_t i = 0; i < 80; ++i) {
             const std::size_t t = last ? i % 20 : i / 4;
             const std::size_t f = last ? i / 20 : i % 4;
             row.values[i] =
                 static_cast<double>(f) + slope * (static_cast<double>(t) - 9.5) + 0.3 * Draw(random);
           }
           return row;
         }))
      EXPECT_NE(finding.cause, "moved");
  }
}

TEST(TrainValSkewPlaces, SlopesOfTheOtherSign_AndSharesThatDrift_AreSilent) {
  // Windows that are normalised one by one, of a market that rises, and of one that falls.
  for (const Finding& finding : Told({.shape = {20}}, [](std::mt19937* random, bool train) {
         Row row{std::vector<double>(20), 0};
         const double slope = (train ? 0.2 : -0.2) + 0.02 * Draw(random);
         for (std::size_t i = 0; i < 20; ++i)
           row.values[i] = slope * (static_cast<double>(i) - 9.5) + 0.3 * Draw(random);
         row.target = Draw(random);
         return row;
       }))
    EXPECT_NE(finding.cause, "moved");
  // Two shares that add up to 1.
  for (const Finding& finding : Told({.shape = {4}}, [](std::mt19937* random, bool train) {
         const double share = (train ? 0.65 : 0.35) + 0.1 * Draw(random);
         return Row{{share, 1 - share, Draw(random), Draw(random)}, Draw(random)};
       }))
    EXPECT_NE(finding.cause, "moved");
}

TEST(TrainValSkewPlaces, IdsWhoseTargetsChange_SayLittle_OrAreOthers_AreSilent) {
  const auto same = [](int city) { return city; };
  const auto other = [](int city) { return (5 * city + 3) % 12; };
  const Story ids{.shape = {2}, .type = DType::kInt64, .evaluations = 2};
  EXPECT_TRUE(Told(ids, Cities(same)).empty());
  EXPECT_TRUE(Told(ids, Cities(same, 1)).empty());                             // seasons, prices
  EXPECT_TRUE(Told(ids, Cities(other, 0, 0)).empty());                         // ids that tell nothing
  EXPECT_TRUE(Told(ids, Cities(other, 2, 0)).empty());                         // or only there
  EXPECT_TRUE(Told(ids, Cities([](int city) { return city + 40; })).empty());  // other cities
  EXPECT_TRUE(Told(ids, Cities(same, 0, 2, false, -1)).empty());               // other targets
  EXPECT_TRUE(Told({.shape = {2}, .classes = true, .type = DType::kInt64, .evaluations = 2},
                   Cities(same, 0, 2, true, -1))
                  .empty());
  // The same few rows again and again: ids that tell nothing seem to tell something.
  EXPECT_TRUE(Told({.shape = {2}, .type = DType::kInt64, .evaluations = 2, .batches = 60, .drawn = 3},
                   Cities(other, 0, 0))
                  .empty());
}

// Users, who come alike often, and items, some of which are popular. `swapped`: in training. `drift`: other
// items are popular in evaluations.
std::vector<Finding> Pairs(bool swapped, bool drift = false, bool popular = true) {
  FakeTrial trial;
  std::mt19937 random(9);
  const auto step = [&](bool train) {
    std::vector<double> users;
    std::vector<double> items;
    for (int row = 0; row < 64; ++row) {
      users.push_back(static_cast<double>(random() % 200));
      const double u = static_cast<double>(random() % 10000) / 10000;
      const double item = std::floor(200 * (popular ? u * u * u : u));
      items.push_back(drift && !train ? 199 - item : item);
    }
    const bool other = train && swapped;
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval)
        .Sample("sample/Net_input_0", {64}, other ? items : users, DType::kInt64)
        .Sample("sample/Net_input_1", {64}, other ? users : items, DType::kInt64);
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int batch = 0; batch < 20; ++batch) step(true);
    for (int batch = 0; batch < 5; ++batch) step(false);
  }
  return testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
}

TEST(TrainValSkewPlaces, ArgumentsThatAreSwapped_AreNamed_DriftIsNot) {
  const auto findings = Pairs(true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "exchanged");
  EXPECT_NE(findings[0].what.find("sample/Net_input_0 and sample/Net_input_1 are swapped"), std::string::npos)
      << findings[0].what;
  EXPECT_TRUE(Pairs(false).empty());
  EXPECT_TRUE(Pairs(false, true).empty());
  EXPECT_TRUE(Pairs(true, false, false).empty());  // nobody can tell them apart
}

}  // namespace
}  // namespace luff::rules::train_val_skew_places_test
