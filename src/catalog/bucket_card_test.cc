#include "catalog/bucket_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "catalog/bucket_look.h"

namespace luff::catalog::bucket_card_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kId = "38d3e0491acfd95a153e85d3bc861a1c";

Card SomeCard(const std::string& id = kId) {
  Card card;
  card.run = "/data/private/runs/first";
  card.name = "first";
  card.run_id = id;
  card.host = "trainer";
  card.framework = "torch";
  card.command = {"python", "train.py", "--lr", "0.1"};
  card.versions = {{"torch", "2.13.0"}};
  card.parameters = {{"lr", 0.1}, {"amp", true}, {"model", std::string("resnet")}};
  card.tags = {"baseline"};
  card.outcome = "stopped";
  card.verdict = "stopped";
  card.why = "ExplodingTensor";
  card.begun_unix_ns = 1'700'000'000'000'000'000;
  card.took_s = 12.5;
  card.steps = {{"TRAIN", 60}, {"EVAL", 3}};
  card.workers = 2;
  card.findings = 1;
  card.rules = {"ExplodingTensor"};
  card.headline = {"ExplodingTensor", "stop", "loss", "TRAIN", "the loss is not finite", 7};
  card.loss = "loss";
  card.scalars = {{"loss", false, 60, 0.7, std::nan(""), 0.2, HUGE_VAL, 59, 4, 7}};
  card.course = {0.7, std::nan("")};
  return card;
}

TEST(BucketCard, IsReadAsItWas) {
  const Card card = SomeCard();
  const std::string text = BucketCard(card);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("/data/private")));
  const auto read = ParseBucketCardUntrusted(text);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  Card again = *read;
  again.run = card.run;
  EXPECT_EQ(ToJson(again), ToJson(card));
}

TEST(BucketCard, OfAnyCardHasAtMostEightKilobytes) {
  Card card = SomeCard();
  const std::string odd = "\xE2\x82\xAC\x01\"\\" + std::string(1000, '\x02');  // six bytes for each in JSON
  for (int i = 0; i < 300; ++i) {
    card.parameters[fmt::format("parameter{}", i)] = odd;
    card.versions[fmt::format("version{}", i)] = odd;
    card.command.push_back(odd);
    card.scalars.push_back(card.scalars.front());
    card.scalars.back().name = fmt::format("metric{}", i);
    card.rules.push_back(odd);
    card.problems.push_back(odd);
  }
  card.note = card.title = card.why = card.host = odd;
  const std::string text = BucketCard(card);
  EXPECT_LE(text.size(), kMaxBucketCard);
  const auto read = ParseBucketCardUntrusted(text);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->run_id, kId);
  EXPECT_EQ(read->verdict, "stopped");
  EXPECT_TRUE(FlagMember(TryParseJson(text), "cut"));
  EXPECT_FALSE(FlagMember(TryParseJson(BucketCard(SomeCard())), "cut"));
}

TEST(BucketCard, ManyScalarsLeaveTheLosses) {
  Card card = SomeCard();
  for (int i = 0; i < 100; ++i) {
    card.scalars.push_back(card.scalars.front());
    card.scalars.back().name = fmt::format("metric{}", i);
  }
  const auto read = ParseBucketCardUntrusted(BucketCard(card));
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(read->scalars, SizeIs(16));
  EXPECT_NE(FindScalar(*read, "loss", false), nullptr);
}

TEST(BucketCard, WhatLuffDoesNotWriteIsRefused) {
  const auto refused = [](const std::function<void(nlohmann::json*)>& change) {
    nlohmann::json json = TryParseJson(BucketCard(SomeCard()));
    change(&json);
    return !ParseBucketCardUntrusted(JsonText(json)).ok();
  };
  EXPECT_FALSE(refused([](auto*) {}));
  EXPECT_TRUE(refused([](auto* json) { (*json)["card"] = 0; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["run_id"] = "../../../../etc/passwd0000000000"; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["verdict"] = "wonderful"; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["took_s"] = "NaN"; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["begun_unix_ns"] = 1.5; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["steps"]["TRAIN"] = -1; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["name"] = std::string(2000, 'x'); }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["tags"] = 7; }));
  EXPECT_TRUE(refused([](auto* json) { (*json)["scalars"][0]["last"] = "much"; }));
  for (const char* text : {"", "null", "[]", "{", "\xFF"}) EXPECT_FALSE(ParseBucketCardUntrusted(text).ok());
  const auto large = ParseBucketCardUntrusted(std::string(kMaxBucketCard + 1, ' '));
  EXPECT_THAT(large.status().message(), HasSubstr("the card has 8193 bytes, Luff writes at most 8192"));
  const auto later = ParseBucketCardUntrusted(R"({"card": 2})");
  EXPECT_EQ(later.status().code(), StatusCode::kUnsupportedVersion);
}

TEST(LookReader, TakesBytesInAnyPieces) {
  const std::string id = kId;
  const std::string card = "{\"a\": \"b\n+ c\"}";
  const std::string all =
      fmt::format("# 1\n= {} 5\n! a note\n+ {} 7 123 {}\n{}\n.\n", id, id, card.size(), card);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, all.size()}) {
    LookReader reader;
    std::vector<LookReader::Item> items;
    for (std::size_t at = 0; at < all.size(); at += piece) {
      reader.AddUntrusted(std::string_view(all).substr(at, piece));
      while (true) {
        auto item = reader.Next();
        ASSERT_TRUE(item.ok()) << item.status().ToString();
        if (item->kind == LookReader::Kind::kMore) break;
        items.push_back(std::move(*item));
        if (items.back().kind == LookReader::Kind::kEnd) break;
      }
    }
    ASSERT_THAT(items, SizeIs(5));
    EXPECT_EQ(items[0].count, 1U);
    EXPECT_EQ(items[1].run.stamp, 5U);
    EXPECT_EQ(items[2].text, "a note");
    EXPECT_EQ(items[3].run.card, card);
    EXPECT_EQ(items[3].run.heard_unix_ns, 123);
    EXPECT_EQ(items[4].kind, LookReader::Kind::kEnd);
  }
}

TEST(LookReader, RefusesWhatIsNoList) {
  for (const std::string& text :
       {std::string("Traceback\n"), std::string("= 7 5\n"), fmt::format("= {} 0\n", kId),
        fmt::format("+ {} 1 2 8193\n", kId), fmt::format("+ {} 1 2 -1\n", kId), std::string(5000, 'x')}) {
    LookReader reader;
    reader.AddUntrusted(text);
    EXPECT_EQ(reader.Next().status().code(), StatusCode::kCorruption) << text.substr(0, 50);
  }
}

/// A bucket with these cards.
class Bucket : public CardSource {
 public:
  Status Begin(const std::vector<BucketRun>& known) override {
    known_.clear();
    for (const BucketRun& run : known) known_[run.run_id] = run.stamp;
    next_ = runs.begin();
    fetched = 0;
    return begins;
  }
  [[nodiscard]] std::size_t changed() const noexcept override { return runs.size(); }
  Result<std::optional<BucketRun>> Next(std::vector<std::string>*) override {
    if (!fails.ok()) return fails;
    if (next_ == runs.end()) return std::optional<BucketRun>();
    BucketRun run = next_->second;
    run.run_id = next_->first;
    ++next_;
    if (known_[run.run_id] == run.stamp)
      run.card.reset();
    else
      ++fetched;
    return std::optional(run);
  }

  std::map<std::string, BucketRun> runs;
  Status begins = Status::Ok(), fails = Status::Ok();
  std::size_t fetched = 0;

 private:
  std::map<std::string, std::uint64_t> known_;
  std::map<std::string, BucketRun>::iterator next_;
};

class BucketLookTest : public ::testing::Test {
 protected:
  BucketLookTest() {
    std::string pattern = (fs::temp_directory_path() / "luff-bucket-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    question_.folder = "s3://bucket/team";
  }
  ~BucketLookTest() override { fs::remove_all(root_); }

  static std::string Id(int number) { return fmt::format("{:032x}", number); }
  void Add(int number, std::uint64_t stamp, double loss) {
    Card card = SomeCard(Id(number));
    card.begun_unix_ns += number;
    card.scalars.front().last = loss;
    bucket_.runs[Id(number)] = {"", stamp, 5, BucketCard(card)};
  }
  Answer Asked() {
    auto answer = AskBucket(root_ + "/index", question_, &bucket_);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    return answer.ok() ? *answer : Answer();
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const Entry& entry : Asked().entries) names.push_back(entry.name);
    return names;
  }

  std::string root_;
  Question question_;
  Bucket bucket_;
};

TEST_F(BucketLookTest, GetsOnlyWhatHasChanged) {
  for (int i = 1; i <= 3; ++i) Add(i, 7, i);
  EXPECT_THAT(Names(), ElementsAre(Id(3), Id(2), Id(1)));
  EXPECT_EQ(bucket_.fetched, 3U);
  EXPECT_THAT(Names(), SizeIs(3));
  EXPECT_EQ(bucket_.fetched, 0U);
  Add(2, 8, 0.5);
  bucket_.runs.erase(Id(1));
  question_.where = *ParseCondition("loss < 1");
  EXPECT_THAT(Names(), ElementsAre(Id(2)));
  EXPECT_EQ(bucket_.fetched, 1U);
  question_.where.reset();
  EXPECT_THAT(Names(), ElementsAre(Id(3), Id(2)));
  question_.text = "resnet";
  EXPECT_THAT(Names(), ElementsAre(Id(3), Id(2)));
}

TEST_F(BucketLookTest, ABucketBelowAnotherIsNotItsRuns) {
  Add(1, 7, 1);
  question_.folder = "s3://bucket/team/sub";
  EXPECT_THAT(Names(), ElementsAre(Id(1)));
  question_.folder = "s3://bucket/team";
  bucket_.runs.clear();
  Add(2, 7, 1);
  EXPECT_THAT(Names(), ElementsAre(Id(2)));
  question_.folder = "s3://bucket/team/sub";
  bucket_.runs.clear();
  Add(1, 7, 1);
  EXPECT_THAT(Names(), ElementsAre(Id(1)));
  EXPECT_EQ(bucket_.fetched, 0U);  // it was not forgotten
}

TEST_F(BucketLookTest, ABadCardIsNamedAndTheOthersAreListed) {
  Add(1, 7, 1);
  Add(2, 7, 1);
  bucket_.runs[Id(2)].card = BucketCard(SomeCard(Id(9)));  // of another run
  Add(3, 7, 1);
  bucket_.runs[Id(3)].card = "{";
  const Answer answer = Asked();
  EXPECT_THAT(answer.entries, SizeIs(1));
  EXPECT_THAT(answer.notes,
              ElementsAre(HasSubstr("the card is of another run: s3://bucket/team/cards/" + Id(2)),
                          HasSubstr("the card is no JSON object: s3://bucket/team/cards/" + Id(3))));
}

TEST_F(BucketLookTest, ABucketThatFailsLeavesWhatWasKnown) {
  bucket_.fails = Status(StatusCode::kUnavailable, "no network");
  EXPECT_EQ(AskBucket(root_ + "/index", question_, &bucket_).status().message(), "no network");
  bucket_.fails = Status::Ok();
  Add(1, 7, 1);
  EXPECT_THAT(Names(), ElementsAre(Id(1)));
  bucket_.begins = Status(StatusCode::kUnavailable, "no network");
  const Answer answer = Asked();
  EXPECT_THAT(answer.entries, SizeIs(1));
  EXPECT_THAT(answer.notes, ElementsAre(HasSubstr("known before, the bucket was not read: no network")));
}

}  // namespace luff::catalog::bucket_card_test
