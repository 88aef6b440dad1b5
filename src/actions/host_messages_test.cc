// What hosts tell each other: messages, and the folder through which they go.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actions/testing.h"
#include "base/format.h"
#include "luff/actions/host_log.h"
#include "luff/actions/host_post.h"

namespace luff::actions::host_messages_test {
namespace {

constexpr std::int64_t kUnixNs = 1'800'000'000'000'000'000;
const std::string kJob(32, 'a');

HostMessage Answer() {
  HostMessage message;
  message.kind = HostMessage::Kind::kAnswer;
  message.job = kJob;
  message.instance = std::string(32, 'b');
  message.sequence = 7;
  message.created_unix_ns = kUnixNs;
  message.proposal = std::string(32, 'c') + "-3";
  message.train_step = 12;
  message.verdict = HostMessage::Verdict::kLate;
  message.ranks = {4, 5, 6};
  message.world = 8;
  return message;
}

TEST(HostMessages, AreReadAsTheyWereWritten) {
  const HostMessage answer = Answer();
  const auto read = ParseHostMessageUntrusted(HostMessageText(answer));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->id(), std::string(32, 'b') + "-7");
  EXPECT_EQ(read->proposal, answer.proposal);
  EXPECT_EQ(read->verdict, answer.verdict);
  EXPECT_EQ(read->ranks, answer.ranks);
  EXPECT_EQ(HostMessageText(*read), HostMessageText(answer));
  HostMessage commit = Answer();
  commit.kind = HostMessage::Kind::kCommit;
  commit.agreed = {std::string(32, 'b'), std::string(32, 'd')};
  EXPECT_EQ(ParseHostMessageUntrusted(HostMessageText(commit))->agreed, commit.agreed);
}

TEST(HostMessages, HaveWhatTheActionNeeds) {
  HostMessage propose;
  propose.job = kJob;
  propose.instance = std::string(32, 'b');
  propose.sequence = 1;
  propose.train_step = 40;
  propose.action = "capture";
  propose.cause = std::string(32, 'c');
  propose.body = R"({"collections":[{"include":["w"],"name":"x"}],"for_steps":5})";
  const std::string text = HostMessageText(propose);
  const auto read = ParseHostMessageUntrusted(text);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->action, "capture");
  EXPECT_EQ(read->cause, propose.cause);
  EXPECT_EQ(read->body, propose.body);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return std::string(ParseHostMessageUntrusted(changed).status().message());
  };
  EXPECT_NE(with("\"capture\"", "\"mark\"").find("give all hosts of the job the same Luff"),
            std::string::npos);
  EXPECT_NE(with(propose.body, "[1]").find("no JSON object"), std::string::npos);
  EXPECT_NE(with("\"w\"", "\"" + std::string(kMaxHostBody, 'w') + "\"").find("more than"), std::string::npos);
  EXPECT_NE(with(propose.cause, "LossSpike/up").find("'cause' of a proposal"), std::string::npos);
}

TEST(HostMessages, ThatLuffDoesNotWriteAreRefused) {
  const std::string text = HostMessageText(Answer());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return ParseHostMessageUntrusted(changed).status();
  };
  EXPECT_EQ(with("\"version\":0", "\"version\":1").code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(with("[4,5,6]", "[4,5,-6]").code(), StatusCode::kCorruption);
  EXPECT_EQ(with("[4,5,6]", "[4.5]").code(), StatusCode::kCorruption);
  EXPECT_EQ(with("\"late\"", "\"maybe\"").code(), StatusCode::kCorruption);
  EXPECT_EQ(with("\"answer\"", "\"order\"").code(), StatusCode::kCorruption);
  EXPECT_EQ(with(std::string(32, 'b'), "../../etc").code(), StatusCode::kCorruption);
  EXPECT_EQ(with("\"sequence\":7", "\"sequence\":1e99").code(), StatusCode::kCorruption);
  std::string many = "[4";
  for (std::size_t i = 0; i < kMaxHostRanks; ++i) many += ",1";
  EXPECT_EQ(with("[4,5,6]", many + "]").code(), StatusCode::kCorruption);
  EXPECT_EQ(ParseHostMessageUntrusted(std::string(100'000, '[')).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(ParseHostMessageUntrusted("null").status().code(), StatusCode::kCorruption);
}

// ---- The folder ----

using HostFolder = testing::RunFolderTest;

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST_F(HostFolder, PassesMessagesOnInTheOrderOfTheLog) {
  FolderPost post(run_);
  EXPECT_FALSE(post.reaches());
  EXPECT_TRUE(post.Take().empty());
  post.Look();
  ASSERT_TRUE(post.Send(1, "one").ok());
  ASSERT_TRUE(post.Send(2, "two").ok());
  EXPECT_TRUE(std::filesystem::exists(run_ + "/hosts/out/000001.json"));
  std::filesystem::rename(run_ + "/hosts/out/000001.json", run_ + "/hosts/out/000001.sent");  // the upload
  EXPECT_FALSE(post.TakeBack(1));
  EXPECT_TRUE(post.TakeBack(2));
  EXPECT_FALSE(post.TakeBack(2));
  Write(run_ + "/hosts/in/000008.json", "eight");
  EXPECT_TRUE(post.Take().empty());  // where the log began is not known
  Write(run_ + "/hosts/begun", "6");
  EXPECT_TRUE(post.reaches());
  EXPECT_TRUE(post.Take().empty());  // seven comes first
  Write(run_ + "/hosts/in/000007.json", std::string(100'000, 'x'));
  EXPECT_EQ(post.Take(), (std::vector<std::string>{"", "eight"}));  // too large to be a message
  EXPECT_TRUE(std::filesystem::is_empty(run_ + "/hosts/in"));
}

TEST_F(HostFolder, KeepsWhatIsNotCarriedOutForAnHeir) {
  FolderPost post(run_);
  post.Look();
  Write(run_ + "/hosts/begun", "6");
  Write(run_ + "/hosts/in/000007.json", "seven");
  Write(run_ + "/hosts/in/000008.json", "eight");
  EXPECT_EQ(post.Take().size(), 2U);
  post.Release();
  Write(run_ + "/hosts/in/000009.json", "nine");
  Write(run_ + "/hosts/in/000010.json", std::string(100'000, 'x'));
  EXPECT_EQ(post.Take().size(), 2U);
  ASSERT_TRUE(post.Send(1, "one").ok());
  ASSERT_TRUE(post.Send(2, "two").ok());
  Write(run_ + "/hosts/in/000011.json", "eleven");

  InheritedPost heir(run_);
  EXPECT_EQ(heir.Take(), (std::vector<std::string>{"nine", "", "eleven"}));
  EXPECT_FALSE(heir.Send(3, "three").ok());
  std::filesystem::rename(run_ + "/hosts/out/000001.json", run_ + "/hosts/out/000001.sent");
  EXPECT_FALSE(heir.TakeBack(0));  // one is on its way
  EXPECT_FALSE(std::filesystem::exists(run_ + "/hosts/out/000002.json"));
  std::filesystem::remove(run_ + "/hosts/out/000001.sent");
  EXPECT_TRUE(heir.TakeBack(0));
  Write(run_ + "/hosts/in/000012.json", "twelve");
  EXPECT_EQ(heir.Take(), std::vector<std::string>{"twelve"});
}

TEST_F(HostFolder, KeepsNoMoreThanAnyProposalHas) {
  FolderPost post(run_);
  post.Look();
  Write(run_ + "/hosts/begun", "0");
  for (int number = 1; number <= 1'600; ++number)
    Write(run_ + "/hosts/in/" + fmt::format("{:06d}", number) + ".json", "x");
  std::size_t taken = 0;
  while (taken < 1'600) taken += post.Take().size();
  std::size_t kept = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(run_ + "/hosts/kept")) ++kept;
  EXPECT_LT(kept, 1'501U);
}

TEST_F(HostFolder, HasNothingOfAnEarlierSupervisor) {
  {
    FolderPost post(run_);
    post.Look();
    ASSERT_TRUE(post.Send(1, "one").ok());
    Write(run_ + "/hosts/begun", "6");
    Write(run_ + "/hosts/in/000007.json", "seven");
  }
  FolderPost post(run_);
  post.Look();
  EXPECT_FALSE(post.reaches());
  EXPECT_TRUE(std::filesystem::is_empty(run_ + "/hosts/out"));
  Write(run_ + "/hosts/begun", "many");
  EXPECT_FALSE(post.reaches());
}

TEST_F(HostFolder, IsNotMadeBeforeThereIsARun) {
  std::filesystem::remove(run_ + "/run.json");
  FolderPost post(run_);
  post.Look();
  EXPECT_FALSE(std::filesystem::exists(run_ + "/hosts"));
  EXPECT_FALSE(post.Send(1, "one").ok());
}

}  // namespace
}  // namespace luff::actions::host_messages_test
