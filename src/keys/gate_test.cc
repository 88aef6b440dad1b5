#include "keys/gate.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "actions/testing.h"
#include "keys/order.h"
#include "keys/secret_key.h"
#include "luff/actions/inbox.h"
#include "luff/actions/marks.h"
#include "luff/actions/runner.h"
#include "luff/base/env.h"
#include "luff/store/arrived.h"

namespace luff::keys::gate_test {
namespace {

using actions::Asked;
constexpr std::int64_t kMs = 1'000'000, kMinuteNs = 60'000'000'000, kHourNs = 60 * kMinuteNs;
const std::string kRun(32, 'a');

std::int64_t Now() { return Env::Real().NowUnixNs(); }

class GateTest : public actions::testing::RunFolderTest {
 protected:
  void SetUp() override {
    actions::testing::RunFolderTest::SetUp();
    auto made = SecretKey::Create(run_ + "/key", "boss");
    ASSERT_TRUE(made.ok());
    key_ = std::make_unique<SecretKey>(std::move(*made));
  }
  PublicKey Public(std::vector<std::string> may = {"stop", "lower_lr"}) const {
    PublicKey key;
    key.id = key_->id();
    key.ed25519 = key_->ed25519();
    key.may = std::move(may);
    return key;
  }
  static store::ControlRecord Wish(const std::string& action = "stop", const std::string& arguments = "") {
    return actions::RequestRecord(action, arguments, "why not", "me@here").value();
  }
  store::ControlRecord Signed(store::ControlRecord record, const std::string& run = kRun) const {
    EXPECT_TRUE(SignRecord(*key_, run, kMinuteNs, &record).ok());
    return record;
  }
  std::string WhyNot(const store::ControlRecord& record, std::int64_t now = Now()) const {
    return WhyNot(record, {Public()}, now);
  }
  static std::string WhyNot(const store::ControlRecord& record, std::vector<PublicKey> keys,
                            std::int64_t now = Now()) {
    KeyGate gate(std::move(keys));
    gate.SetRun(kRun);
    const auto good = gate.Admit(record, now);
    return good.ok() ? "" : std::string(good.status().message());
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  std::unique_ptr<SecretKey> key_;
};

TEST_F(GateTest, AdmitsWhatAKeyWithTheRightHasSignedOnce) {
  KeyGate gate({Public()});
  gate.SetRun(kRun);
  const store::ControlRecord record = Signed(Wish());
  const auto good = gate.Admit(record, Now());
  ASSERT_TRUE(good.ok()) << good.status().ToString();
  EXPECT_EQ(good->author, "me@here (key boss)");
  EXPECT_TRUE(Has(std::string(gate.Admit(record, Now()).status().message()), "counts once"));
}

TEST_F(GateTest, WhoeverAsksForTheSameTwiceIsHeardOnce) {
  KeyGate gate({Public()});
  gate.SetRun(kRun);
  const auto ask = [&](const std::string& of) {
    store::ControlRecord record = Wish();
    EXPECT_TRUE(SignRecordOnce(*key_, kRun, kMinuteNs, of, &record).ok());
    return gate.Admit(record, Now()).status();
  };
  EXPECT_TRUE(ask("stop finding-1").ok());
  EXPECT_TRUE(Has(std::string(ask("stop finding-1").message()), "counts once"));
  EXPECT_TRUE(ask("stop finding-2").ok());
}

TEST_F(GateTest, EachReasonIsSaid) {
  EXPECT_TRUE(Has(WhyNot(Wish()), "not signed"));
  EXPECT_TRUE(Has(WhyNot(Signed(Wish()), std::vector<PublicKey>()), "knows no key"));
  store::ControlRecord other = Signed(Wish());
  other.key_id = "nobody";
  EXPECT_TRUE(Has(WhyNot(other), "no key 'nobody'"));
  EXPECT_TRUE(Has(WhyNot(Signed(Wish("skip_batch"))), "may not skip_batch; it may stop, lower_lr"));
  EXPECT_TRUE(Has(WhyNot(Signed(Wish(), std::string(32, 'b'))), "another run"));
  EXPECT_TRUE(Has(WhyNot(Signed(Wish()), Now() + kHourNs), "expired 59 min ago"));
  EXPECT_TRUE(Has(WhyNot(Signed(Wish()), Now() - kHourNs), "60 min in the future"));
  PublicKey old = Public();
  old.expires_unix_s = 86400;
  EXPECT_TRUE(Has(WhyNot(Signed(Wish()), {old}), "has expired on 1970-01-02"));
  store::ControlRecord long_lived = Wish();
  EXPECT_FALSE(SignRecord(*key_, kRun, 11 * kMinuteNs, &long_lived).ok());
}

TEST_F(GateTest, EveryChangedByteOfASignedTextIsSeen) {
  const store::ControlRecord record = Signed(Wish("lower_lr", R"({"factor":0.5})"));
  ASSERT_EQ(WhyNot(record), "");
  for (std::size_t i = 0; i < record.signed_text.size(); ++i) {
    store::ControlRecord changed = record;
    changed.signed_text[i] = static_cast<char>(changed.signed_text[i] ^ 1);
    EXPECT_TRUE(Has(WhyNot(changed), "the signature is not one of key")) << i;
  }
  for (std::size_t i = 0; i < record.signature.size(); ++i) {
    store::ControlRecord changed = record;
    changed.signature[i] = changed.signature[i] == 'A' ? 'B' : 'A';
    // The last digit of 64 bytes in base64 has bits that must be zero.
    EXPECT_NE(WhyNot(changed), "") << i;
  }
}

TEST_F(GateTest, WhatStandsBesideTheSignedTextMustSayTheSame) {
  store::ControlRecord record = Signed(Wish("lower_lr", R"({"factor":0.5})"));
  const std::string body = record.body;
  for (const auto& change : std::vector<std::function<void(store::ControlRecord*)>>{
           [](auto* one) { one->body = R"({"action":"stop"})"; }, [](auto* one) { one->body.clear(); },
           [](auto* one) { one->body = "{"; }, [](auto* one) { one->finding = "another"; },
           [](auto* one) { one->reason = "another"; }}) {
    store::ControlRecord changed = record;
    change(&changed);
    EXPECT_TRUE(Has(WhyNot(changed), "what was signed is not what the record says"));
  }
  record.body = body.substr(0, body.size() - 1) + R"(,"object":7})";  // which the supervisor adds
  record.author = "the boss";
  KeyGate gate({Public()});
  gate.SetRun(kRun);
  const auto good = gate.Admit(record, Now());
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(nlohmann::json::parse(good->body)["action"], "lower_lr");
  EXPECT_EQ(good->author, "me@here (key boss)");
  store::ControlRecord label;
  label.kind = "label";
  label.body = R"({"title":"x"})";
  label = Signed(label);
  label.kind = "request";
  EXPECT_TRUE(Has(WhyNot(label, {Public({"label", "stop"})}), "what was signed is a label"));
}

TEST_F(GateTest, AFutureVersionIsRefusedByNumber) {
  const std::string object = ObjectText(Signed(Wish()));
  KeyGate gate({Public()});
  gate.SetRun(kRun);
  std::string newer = object;
  newer.replace(newer.find("\"version\":1"), 11, "\"version\":2");
  EXPECT_TRUE(Has(std::string(gate.Open(newer, Now()).status().message()), "version 2"));
  EXPECT_TRUE(Has(std::string(gate.Open("[]", Now()).status().message()), "no request"));
  EXPECT_TRUE(Has(std::string(gate.Open(std::string(65 << 10, ' '), Now()).status().message()), "64 KiB"));
  ASSERT_TRUE(gate.Open(object, Now()).ok());
  // Signed by a newer Luff, which says something that this one does not understand.
  store::ControlRecord record = Signed(Wish());
  record.signed_text.insert(1, R"("unless":"friday",)");
  record.signature = Base64Of(key_->Sign("luff-request-v1\n" + record.signed_text));
  EXPECT_TRUE(Has(WhyNot(record), "a member 'unless'"));
}

// ---- Behind the supervisor ----

class KeyedRun : public GateTest {
 protected:
  void SetUp() override {
    GateTest::SetUp();
    ASSERT_TRUE(WriteWholeFile(Env::Real(), run_ + "/run.json", R"({"run_id":")" + id_ + "\"}").ok());
  }
  actions::RunnerOptions Options(std::vector<std::string> may = {"stop", "lower_lr"}) {
    return {run_, "train", {}, false, {}, {}, true, GateOf({Public(std::move(may))}), true};
  }
  void Turn(actions::Runner* runner) {
    for (int i = 0; i < 50; ++i) {
      std::vector<query::WorkerInfo> workers(2);
      std::vector<std::pair<std::uint32_t, format::AckRow>> acks;
      for (std::uint32_t n = 0; n < 2; ++n) {
        workers[n].worker = n;
        workers[n].alive = true;
        workers[n].last_train_step = 20;
        for (const store::ControlRecord& record : Log()) {
          if (record.phase != "propose") continue;
          format::AckRow row{};
          row.control = record.number;
          row.verdict = i < 25 ? 1 : 3;
          acks.emplace_back(n, row);
        }
      }
      static_cast<void>(runner->Poll((now_ms_ += 10) * kMs, 20, 2, workers, acks));
    }
  }
  std::uint64_t Ask(bool with_key, const std::string& action = "stop", const std::string& arguments = "") {
    store::RecordSigner sign;
    if (with_key)
      sign = [this](store::ControlRecord* record) { return SignRecord(*key_, id_, kMinuteNs, record); };
    return actions::Ask(run_, action, arguments, "", "me@here", sign).value();
  }
  Asked Of(std::uint64_t number) const {
    for (const Asked& asked : actions::RequestsIn(Log())) {
      if (asked.number == number) return asked;
    }
    return {};
  }
  void Arrive(std::uint64_t number, const std::string& bytes) {
    ASSERT_TRUE(WriteNewFile(
                    Env::Real(),
                    run_ + "/requests/" + (number < 10 ? "00000" : "0000") + std::to_string(number) + ".json",
                    bytes)
                    .ok());
  }
  std::size_t Proposals() const {
    const auto log = Log();
    return static_cast<std::size_t>(
        std::ranges::count_if(log, [](const auto& one) { return one.phase == "propose"; }));
  }
  std::vector<std::string> Refusals() const {
    std::vector<std::string> all;
    const actions::Audit audit(run_ + "/rules/luff/actions.jsonl");
    for (const actions::AuditLine& line : audit.earlier()) {
      if (line.event == "refused") all.push_back(line.detail);
    }
    return all;
  }

  const std::string id_ = std::string(32, 'c');
  std::int64_t now_ms_ = 0;
};

TEST_F(KeyedRun, ARequestThatNobodySignedDoesNothing) {
  actions::Runner runner(Options());
  const std::uint64_t wild = Ask(false);
  Turn(&runner);
  EXPECT_EQ(Of(wild).state, Asked::State::kRefused);
  EXPECT_TRUE(Has(Of(wild).why, "not signed"));
  EXPECT_EQ(Proposals(), 0U);
  EXPECT_FALSE(runner.coordinator().stopping());
  const auto said = runner.TakeSayings();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(Has(said[0], "not signed"));
  const std::uint64_t good = Ask(true);
  Turn(&runner);
  EXPECT_EQ(Of(good).state, Asked::State::kDone);
  EXPECT_TRUE(Has(runner.stop_asked(), "(key boss)"));
}

TEST_F(KeyedRun, ACopyOfASignedRequestDoesNothingAlsoForTheNextSupervisor) {
  const std::uint64_t first = Ask(true, "lower_lr", R"({"factor":0.5})");
  {
    actions::Runner runner(Options());
    Turn(&runner);
    EXPECT_EQ(Of(first).state, Asked::State::kDone);
  }
  store::ControlRecord copy;
  for (const store::ControlRecord& record : Log()) {
    if (record.number == first) copy = record;
  }
  const std::uint64_t again = store::WriteControl(run_, copy).value();
  actions::Runner next(Options());
  Turn(&next);
  EXPECT_EQ(Of(again).state, Asked::State::kRefused);
  EXPECT_TRUE(Has(Of(again).why, "counts once"));
  EXPECT_EQ(Proposals(), 1U);
}

TEST_F(KeyedRun, WhatArrivedFromABucketIsAskedLikeWhatIsAskedHere) {
  actions::Runner runner(Options());
  Turn(&runner);  // makes the folder
  store::ControlRecord wish = Wish("lower_lr", R"({"factor":0.5})");
  ASSERT_TRUE(SignRecord(*key_, id_, kMinuteNs, &wish).ok());
  Arrive(1, ObjectText(wish));
  Arrive(2, ObjectText(wish));  // a replay under another number
  Arrive(3, "{\"version\": 1}");
  Arrive(4, ObjectText(Signed(Wish())));  // of another run
  Turn(&runner);
  const auto requests = actions::RequestsIn(Log());
  ASSERT_GE(requests.size(), 1U);
  EXPECT_EQ(requests[0].state, Asked::State::kDone);
  EXPECT_EQ(requests[0].object, 1U);
  EXPECT_EQ(requests[0].signature, wish.signature);
  EXPECT_EQ(Proposals(), 1U);
  const auto refused = Refusals();
  EXPECT_EQ(refused.size(), 3U);
  EXPECT_TRUE(std::ranges::any_of(refused, [](const auto& why) { return Has(why, "counts once"); }));
  EXPECT_TRUE(std::ranges::any_of(refused, [](const auto& why) { return Has(why, "not signed"); }));
  EXPECT_TRUE(std::ranges::any_of(refused, [](const auto& why) { return Has(why, "another run"); }));
  EXPECT_TRUE(store::ReadArrived(run_, 10).value().empty());
}

TEST_F(KeyedRun, AFloodOfArrivalsGrowsNothingWithoutABound) {
  actions::Runner runner(Options());
  Turn(&runner);
  const std::size_t before = Log().size();
  std::size_t said = runner.TakeSayings().size();
  for (int round = 0; round < 40; ++round) {
    for (std::uint64_t n = 1; n <= 16; ++n) Arrive(n, "garbage");
    Turn(&runner);
    said += runner.TakeSayings().size();
  }
  EXPECT_EQ(Log().size(), before);
  EXPECT_LE(Refusals().size(), 200U);
  EXPECT_LE(said, 2U);  // once a minute, and this took twenty seconds
}

TEST_F(KeyedRun, MarksAndLabelsNeedTheirRight) {
  const auto label = [&](bool with_key) {
    store::ControlRecord record;
    record.kind = "label";
    record.body = R"({"title":"mine"})";
    if (with_key) {
      EXPECT_TRUE(SignRecord(*key_, id_, kMinuteNs, &record).ok());
    }
    return store::WriteControl(run_, record).value();
  };
  const auto labels = [&] {
    auto left = store::WithoutRefused(Log());
    return std::ranges::count_if(left, [](const auto& one) { return one.kind == "label"; });
  };
  actions::Runner runner(Options({"label"}));
  runner.Begin(1);
  label(false);
  Turn(&runner);
  EXPECT_EQ(labels(), 0);
  const std::uint64_t good = label(true);
  Turn(&runner);
  EXPECT_EQ(labels(), 1);
  const std::uint64_t own = label(false);
  runner.Trust(own);
  Turn(&runner);
  EXPECT_EQ(labels(), 2);
  actions::Runner next(Options({"stop"}));  // what counted goes on to count
  Turn(&next);
  EXPECT_EQ(labels(), 2);
  EXPECT_GT(own, good);
}

TEST_F(KeyedRun, AMarkThatIsRefusedLaterMutesNobody) {
  actions::Inbox watcher(run_, nullptr);  // of a process beside the supervisor, which answers
  store::ControlRecord record;
  record.kind = "mark";
  record.finding = "0a";
  record.body = R"({"as":"mute"})";
  const std::uint64_t number = store::WriteControl(run_, record).value();
  static_cast<void>(watcher.Look(1));
  EXPECT_NE(watcher.MarkOfFinding("0a"), nullptr);
  store::ControlRecord reply;
  reply.kind = "reply";
  reply.phase = "refused";
  reply.proposal = number;
  ASSERT_TRUE(store::WriteControl(run_, reply).ok());
  static_cast<void>(watcher.Look(1'000 * kMs));
  EXPECT_EQ(watcher.MarkOfFinding("0a"), nullptr);
}

TEST_F(KeyedRun, TheRunSaysWhoseSignaturesCount) {
  {
    actions::Runner without({run_, "train", {}, false, {}, {}, true, nullptr, true});
    without.Begin(1);
  }
  EXPECT_TRUE(Log().empty());  // a job without keys leaves no record of it
  EXPECT_EQ(GateOfRun(run_), nullptr);
  {
    actions::Runner runner(Options());
    Turn(&runner);
  }
  ASSERT_EQ(KeysOfRun(run_).size(), 1U);
  EXPECT_EQ(KeysOfRun(run_)[0].ed25519, key_->ed25519());
  EXPECT_NE(GateOfRun(run_), nullptr);
  {
    actions::Runner again(Options());
    Turn(&again);
  }
  const auto log = Log();
  EXPECT_EQ(std::ranges::count_if(log, [](const auto& one) { return one.kind == "keys"; }), 1);
  // A supervisor without keys takes them back, and says so.
  actions::Runner without({run_, "train", {}, false, {}, {}, true, nullptr, true});
  without.Begin(1);
  EXPECT_TRUE(KeysOfRun(run_).empty());
  EXPECT_EQ(GateOfRun(run_), nullptr);
}

TEST_F(KeyedRun, KeysThatCannotBeReadAdmitNothing) {
  for (const char* body : {R"({"keys": "all"})", "", R"({"keys": [{"later": 1}]})"}) {
    store::ControlRecord record;
    record.kind = "keys";
    record.body = body;
    ASSERT_TRUE(store::WriteControl(run_, record).ok());
    const auto gate = GateOfRun(run_);
    ASSERT_NE(gate, nullptr) << body;
    gate->SetRun(id_);
    EXPECT_FALSE(gate->Admit(Signed(Wish(), id_), Now()).ok());
  }
}

TEST_F(KeyedRun, KeysOfALogThatCannotBeReadAdmitNothing) {
  std::filesystem::remove_all(run_ + "/control");
  ASSERT_TRUE(WriteWholeFile(Env::Real(), run_ + "/control", "no folder").ok());
  EXPECT_NE(GateOfRun(run_), nullptr);
}

TEST_F(KeyedRun, ARecordThatCannotBeReadMayHaveBeenTheKeys) {
  {
    actions::Runner runner(Options());
    Turn(&runner);
  }
  ASSERT_EQ(Log().size(), 1U);
  const std::string path = run_ + "/control/000001.json";
  const auto text = ReadWholeFile(Env::Real(), path, 1 << 16);
  ASSERT_TRUE(text.ok());
  for (const std::string& damaged :
       {std::string(), text->substr(0, text->size() / 2), std::string(2 << 20, ' ')}) {
    std::filesystem::remove(path);
    ASSERT_TRUE(WriteWholeFile(Env::Real(), path, damaged).ok());
    ASSERT_TRUE(Log().empty());
    const auto gate = GateOfRun(run_);
    ASSERT_NE(gate, nullptr) << damaged.size();
    gate->SetRun(id_);
    EXPECT_FALSE(gate->Admit(Wish(), Now()).ok());
    EXPECT_TRUE(KeysOfRun(run_).empty());
  }
}

TEST_F(KeyedRun, WhoHasTheKeysFromTheRunDoesNotWriteThem) {
  store::ControlRecord record;
  record.kind = "keys";
  record.body = R"({"keys": "of a later Luff"})";
  ASSERT_TRUE(store::WriteControl(run_, record).ok());
  for (int i = 0; i < 2; ++i) {  // two commands, one after the other
    const std::uint64_t asked = Ask(false);
    actions::RunnerOptions options = Options();
    options.gate = GateOfRun(run_);
    options.tell_keys = false;
    actions::Runner runner(std::move(options));
    Turn(&runner);
    EXPECT_EQ(Of(asked).state, Asked::State::kRefused);
    const auto log = Log();
    EXPECT_EQ(std::ranges::count_if(log, [](const auto& one) { return one.kind == "keys"; }), 1);
  }
}

TEST_F(KeyedRun, WhatWasSaidBeforeTheRunHadKeysCounts) {
  const auto write = [&](const std::string& kind, const std::string& body) {
    store::ControlRecord record;
    record.kind = kind;
    record.body = body;
    return store::WriteControl(run_, record).value();
  };
  const std::uint64_t before = write("label", R"({"title":"baseline"})");
  actions::Runner runner(Options({"stop"}));
  runner.Begin(1);
  const std::uint64_t after = write("label", R"({"title":"mine"})");
  write("keys", R"({"keys":[]})");  // by hand: nothing counts because of it
  const std::uint64_t later = write("label", R"({"title":"mine, too"})");
  Turn(&runner);
  actions::Runner next(Options({"stop"}));
  Turn(&next);
  std::set<std::uint64_t> counts;
  for (const auto& one : store::WithoutRefused(Log())) {
    if (one.kind == "label") counts.insert(one.number);
  }
  EXPECT_EQ(counts, std::set<std::uint64_t>{before});
  EXPECT_LT(after, later);
}

TEST_F(KeyedRun, LabelsOfAnEndedJobGoOnToCount_MarksDoNot) {
  const auto write = [&](const std::string& kind, const std::string& body, const std::string& finding = "") {
    store::ControlRecord record;
    record.kind = kind;
    record.body = body;
    record.finding = finding;
    return store::WriteControl(run_, record).value();
  };
  {
    actions::Runner runner(Options({"stop"}));
    Turn(&runner);
  }
  const std::uint64_t live = write("label", R"({"title":"while it trained"})");  // its supervisor was killed
  write("outcome", R"({"state":"stopped"})");
  const std::uint64_t ended = write("label", R"({"title":"the good one"})");
  const std::uint64_t mute = write("mark", R"({"as":"mute"})", "0a");
  actions::Runner next(Options({"stop"}));  // the job is resumed
  Turn(&next);
  const std::uint64_t later = write("label", R"({"title":"while it trains"})");
  Turn(&next);
  std::set<std::uint64_t> counts;
  for (const auto& one : store::WithoutRefused(Log())) {
    if (one.kind == "label" || one.kind == "mark") counts.insert(one.number);
  }
  EXPECT_EQ(counts, std::set<std::uint64_t>{ended}) << live << " " << mute << " " << later;
}

}  // namespace
}  // namespace luff::keys::gate_test
