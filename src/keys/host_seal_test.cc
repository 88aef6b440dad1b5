#include "keys/host_seal.h"

#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "keys/order.h"

namespace luff::keys::host_seal_test {
namespace {

constexpr std::int64_t kNow = 1'800'000'000'000'000'000;

class HostSeals : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "luff-seal-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::shared_ptr<const SecretKey> Key(const std::string& id) {
    auto key = SecretKey::Create(folder_ + "/" + std::to_string(++made_), id);
    EXPECT_TRUE(key.ok());
    return std::make_shared<const SecretKey>(*std::move(key));
  }
  static PublicKey PublicOf(const SecretKey& key, std::vector<std::string> may) {
    return {.id = key.id(), .ed25519 = key.ed25519(), .may = std::move(may), .expires_unix_s = 0};
  }
  std::string folder_;
  int made_ = 0;
};

TEST_F(HostSeals, WhatAHostSignsTheOthersOpen) {
  const auto key = Key("hosts");
  KeySeal seal(key, {PublicOf(*key, {"host"})});
  const auto object = seal.Seal(R"({"a":1})");
  ASSERT_TRUE(object.ok());
  KeySeal other(key, {PublicOf(*key, {"host"})});
  EXPECT_EQ(*other.Open(*object, kNow), R"({"a":1})");
  // No byte can be changed but one that does not matter to JSON.
  for (std::size_t i = 0; i < object->size(); ++i) {
    std::string changed = *object;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const auto opened = other.Open(changed, kNow);
    EXPECT_TRUE(!opened.ok() || *opened == R"({"a":1})") << i;
  }
}

TEST_F(HostSeals, OnlyWhoHasTheKeyCanTellWhatAHashIsOf) {
  const auto key = Key("hosts"), stranger = Key("hosts");
  const std::string hash = KeySeal(key, {}).KeyedHash("LossSpike/up");
  EXPECT_EQ(hash.size(), 32U);
  EXPECT_EQ(KeySeal(key, {}).KeyedHash("LossSpike/up"), hash);
  EXPECT_NE(KeySeal(key, {}).KeyedHash("LossSpike/down"), hash);
  EXPECT_NE(KeySeal(stranger, {}).KeyedHash("LossSpike/up"), hash);
  EXPECT_EQ(KeySeal(nullptr, {}).KeyedHash("LossSpike/up"), "");
}

TEST_F(HostSeals, NobodyElseSpeaksForAHost) {
  const auto key = Key("hosts"), stranger = Key("hosts"), boss = Key("boss");
  KeySeal seal(key, {PublicOf(*key, {"host"}), PublicOf(*boss, {"stop"})});
  const auto why = [&](const std::string& object) {
    return std::string(seal.Open(object, kNow).status().message());
  };
  EXPECT_NE(why("{}").find("no message that Luff writes"), std::string::npos);
  EXPECT_NE(why(R"({"version":1,"signed":"{}"})").find("not signed by a key of this job"), std::string::npos);
  KeySeal theirs(stranger, {});
  EXPECT_NE(why(*theirs.Seal("{}")).find("is not one of key 'hosts'"), std::string::npos);
  KeySeal of_boss(boss, {});
  EXPECT_NE(why(*of_boss.Seal("{}")).find("may not speak for a host"), std::string::npos);
  // A request that the same key has signed is no message, and a message no request.
  store::ControlRecord record;
  record.kind = "request";
  record.body = R"({"action":"stop"})";
  ASSERT_TRUE(SignRecord(*key, std::string(32, '0'), 1'000'000'000, &record).ok());
  EXPECT_NE(why(ObjectText(record)).find("is not one of key 'hosts'"), std::string::npos);
  const auto message = ParseObjectUntrusted(*seal.Seal(record.signed_text));
  ASSERT_TRUE(message.ok());
  const std::vector<PublicKey> known = {PublicOf(*key, {"host", "stop"})};
  EXPECT_FALSE(IsSigned(*message, known));
}

TEST_F(HostSeals, AKeyThatTheOthersWouldNotHearIsToldBeforeTheJobBegins) {
  const auto key = Key("hosts");
  EXPECT_TRUE(KeySeal::Check(*key, {PublicOf(*key, {"host"})}, 0).ok());
  EXPECT_NE(KeySeal::Check(*key, {}, 0).message().find("not among"), std::string::npos);
  EXPECT_NE(KeySeal::Check(*key, {PublicOf(*key, {"stop"})}, 0).message().find("may = [\"host\"]"),
            std::string::npos);
  PublicKey expired = PublicOf(*key, {"host"});
  expired.expires_unix_s = 1;
  EXPECT_NE(KeySeal::Check(*key, {expired}, 2).message().find("expired"), std::string::npos);
  KeySeal seal(key, {expired});
  EXPECT_NE(seal.Open(*seal.Seal("{}"), kNow).status().message().find("expired"), std::string::npos);
  EXPECT_EQ(seal.Seal(std::string(70'000, 'x')).status().code(), StatusCode::kOutOfRange);
}

TEST(HostJobs, HaveAnIdMadeOfTheirName) {
  EXPECT_EQ(JobIdOf("a").size(), 32U);
  EXPECT_EQ(JobIdOf("a"), JobIdOf("a"));
  EXPECT_NE(JobIdOf("a"), JobIdOf("b"));
  EXPECT_NE(NewInstance(), NewInstance());
}

}  // namespace
}  // namespace luff::keys::host_seal_test
