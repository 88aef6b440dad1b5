// Named tokens: the file, and what becomes of sessions when it changes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "luff/base/env.h"
#include "query/testing.h"
#include "server/secrets.h"

namespace luff::server::tokens_test {
namespace {

using query::testing::TempRun;
constexpr std::int64_t kSecond = 1'000'000'000;

struct House {
  TempRun folder;
  std::string path = folder.path() + "-serve/tokens.json";
  TokenFile file{path};
  ~House() { std::filesystem::remove_all(folder.path() + "-serve"); }
};

TEST(Tokens, AreKeptAsHashesInAFileOfTheirOwner) {
  const House house;
  EXPECT_TRUE(house.file.Read()->empty());
  const auto token = house.file.Add({.name = "ann", .role = Role::kOperator, .roots = {"/r"}});
  ASSERT_TRUE(token.ok()) << token.status().ToString();
  EXPECT_EQ(token->size(), 43U);
  struct stat info{};
  ASSERT_EQ(stat(house.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  const auto text = ReadWholeFile(Env::Real(), house.path, 1 << 20);
  EXPECT_EQ(text->find(*token), std::string::npos);
  const auto read = house.file.Read();
  ASSERT_EQ(read->size(), 1U);
  EXPECT_EQ((*read)[0].name, "ann");
  EXPECT_EQ((*read)[0].role, Role::kOperator);
  EXPECT_EQ((*read)[0].roots, std::vector<std::string>{"/r"});
  EXPECT_EQ(house.file.Add({.name = "ann"}).status().code(), StatusCode::kAlreadyExists);
  for (const char* name : {"", "a b", "../x", "a\n", "\xc3\xa4"})
    EXPECT_EQ(house.file.Add({.name = name}).status().code(), StatusCode::kInvalidArgument) << name;
  EXPECT_EQ(house.file.Revoke("bob").code(), StatusCode::kNotFound);
  EXPECT_NE(house.file.Revoke("anne").message().find("nearest: ann"), std::string_view::npos);
  EXPECT_TRUE(house.file.Revoke("ann").ok());
  EXPECT_TRUE(house.file.Read()->empty());
}

TEST(Tokens, AFileThatOthersReadIsRefused) {
  const House house;
  const auto token = house.file.Add({.name = "ann"});
  ASSERT_TRUE(token.ok());
  Secrets secrets(house.path);
  ASSERT_TRUE(secrets.Refresh(0).ok());
  EXPECT_TRUE(secrets.ByToken(*token).has_value());
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U}) {
    ASSERT_EQ(chmod(house.path.c_str(), mode), 0);
    const auto read = house.file.Read();
    EXPECT_EQ(read.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(read.status().message().find("chmod 600"), std::string_view::npos);
  }
  EXPECT_FALSE(secrets.Refresh(2 * kSecond).ok());
  EXPECT_FALSE(secrets.ByToken(*token).has_value());  // refused, not remembered
  ASSERT_EQ(std::rename(house.path.c_str(), (house.path + ".moved").c_str()), 0);
  std::filesystem::create_symlink(house.path + ".moved", house.path);
  EXPECT_EQ(house.file.Read().status().code(), StatusCode::kCorruption);
}

TEST(Tokens, SessionsEndWithTheirToken) {
  const House house;
  Secrets secrets(house.path);
  const auto ann = house.file.Add({.name = "ann", .role = Role::kOperator});
  const auto bob = house.file.Add({.name = "bob"});
  ASSERT_TRUE(ann.ok() && bob.ok());
  ASSERT_TRUE(secrets.Refresh(0).ok());
  Visitor visitor;
  bool wait = false;
  const auto of_ann = secrets.Begin(*ann, 0, &visitor, &wait);
  const auto of_bob = secrets.Begin(*bob, 0, &visitor, &wait);
  ASSERT_TRUE(of_ann && of_bob);
  EXPECT_EQ(secrets.BySession(*of_ann, 1)->name, "ann");
  EXPECT_EQ(secrets.BySession(*of_ann, 1)->role(), Role::kOperator);
  ASSERT_TRUE(house.file.Revoke("ann").ok());
  ASSERT_TRUE(secrets.Refresh(1).ok());  // at once, since the file is another one
  EXPECT_FALSE(secrets.BySession(*of_ann, 3).has_value());
  EXPECT_FALSE(secrets.ByToken(*ann).has_value());
  EXPECT_TRUE(secrets.BySession(*of_bob, 3).has_value());
  const auto eve = house.file.Add({.name = "eve"});
  ASSERT_TRUE(eve.ok());
  ASSERT_TRUE(secrets.Refresh(1).ok());
  EXPECT_TRUE(secrets.Begin(*eve, 4, &visitor, &wait).has_value());
}

TEST(Tokens, ExpireAndTakeTheirSessionsWithThem) {
  const House house;
  const std::int64_t now = Env::Real().NowUnixNs() / kSecond;
  const auto old = house.file.Add({.name = "old", .expires_unix_s = now - 1});
  const auto later = house.file.Add({.name = "later", .expires_unix_s = now + 3600});
  ASSERT_TRUE(old.ok() && later.ok());
  Secrets secrets(house.path);
  ASSERT_TRUE(secrets.Refresh(0).ok());
  EXPECT_FALSE(secrets.ByToken(*old).has_value());
  EXPECT_TRUE(secrets.ByToken(*later).has_value());
}

TEST(Tokens, WhatIsNoSuchFileSaysSo) {
  const std::string hash(64, 'a');
  const auto one = [&](const std::string& members) {
    return R"({"version":1,"tokens":[{)" + members + "}]}";
  };
  const std::string good = R"("name":"a","role":"viewer","blake2b":")" + hash +
                           R"(","created_unix_s":1,"expires_unix_s":0,"roots":[])";
  EXPECT_TRUE(ParseTokensUntrusted(one(good)).ok());
  const auto without = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return one(text);
  };
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string(R"({"version":2,"tokens":[]})"),
        std::string(R"({"version":1,"tokens":{}})"), std::string(R"({"version":1,"tokens":[1]})"),
        without("viewer", "king"), without(hash, "aa"), without(hash, std::string(64, 'x')),
        without(":0,", ":-5,"), without("[]", "{}"), without("[]", R"(["relative"])"), without("[]", "[7]"),
        without(R"("a")", R"("a b")"), std::string(100'000, '[')}) {
    EXPECT_EQ(ParseTokensUntrusted(text).status().code(), StatusCode::kCorruption) << text.substr(0, 200);
  }
}

}  // namespace
}  // namespace luff::server::tokens_test
