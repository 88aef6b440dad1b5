#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actions/testing.h"
#include "keys/order.h"
#include "keys/public_key.h"
#include "keys/secret_key.h"
#include "luff/base/env.h"

namespace luff::keys::key_test {
namespace {

std::string TextOf(const std::string& path) {
  auto text = ReadWholeFile(Env::Real(), path, 1 << 16);
  return text.ok() ? *text : "";
}

class KeyFile : public actions::testing::RunFolderTest {};

TEST_F(KeyFile, IsWrittenForItsOwnerOnlyAndReadBack) {
  const std::string path = run_ + "/key";
  const auto made = SecretKey::Create(path, "");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  const auto read = SecretKey::Read(path);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->id(), made->id());
  EXPECT_EQ(read->ed25519(), made->ed25519());
  EXPECT_EQ(read->Sign("text"), made->Sign("text"));
  EXPECT_NE(read->Sign("text"), made->Sign("texu"));
}

TEST_F(KeyFile, TheSignatureIsThatOfRfc8032) {
  // Test 1 of section 7.1: the empty message.
  const std::string seed = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
  const std::string pub = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
  const auto key = SecretKey::ParseUntrusted(R"({"format":"luff-key","version":1,"id":"rfc","ed25519":")" +
                                             pub + R"(","ed25519_secret":")" + seed + "\"}");
  ASSERT_TRUE(key.ok()) << key.status().ToString();
  EXPECT_EQ(Base64Of(key->Sign("")),
            "5VZDAMNgrHKQhuLMgG6CioSHfx645dl02HPgZSJJAVVfuIIVkKM7rMYeOXAc+bRr0lv18FlbviRlUUFDjnoQCw==");
}

TEST_F(KeyFile, SaysWhatIsWrongWithAFile) {
  const std::string path = run_ + "/key";
  EXPECT_EQ(SecretKey::Read(path).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(SecretKey::Create(path, "me").ok());
  EXPECT_EQ(SecretKey::Create(path, "me").status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(SecretKey::Create(path + "2", "not me").status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(Env::Real().Exists(path + "2"));
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_NE(SecretKey::Read(path).status().message().find("chmod 600"), std::string::npos);
  std::string text = TextOf(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return SecretKey::ParseUntrusted(changed).status();
  };
  EXPECT_EQ(with("\"version\": 1", "\"version\": 2").code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(with("luff-key", "ssh-key").code(), StatusCode::kCorruption);
  EXPECT_NE(with("\"ed25519\": \"", "\"ed25519\": \"A").message().find("does not belong"), std::string::npos);
  EXPECT_EQ(SecretKey::ParseUntrusted(text.substr(0, 100)).status().code(), StatusCode::kCorruption);
}

/// Whether the bytes, each of them inverted, stand anywhere in the memory of this process but in `except`.
bool IsInMemory(const std::string& inverted, const std::string& except) {
  std::ifstream maps("/proc/self/maps");
  const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  bool found = false;
  std::vector<char> bytes(1 << 20);
  for (std::string line; !found && std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3) continue;
    if (rights[0] != 'r' || rights[1] != 'w' || end - begin > (std::uint64_t{256} << 20)) continue;
    for (std::uint64_t at = begin; !found && at < end; at += bytes.size() - inverted.size()) {
      const ssize_t got = pread(memory, bytes.data(), std::min<std::uint64_t>(bytes.size(), end - at),
                                static_cast<off_t>(at));
      for (ssize_t i = 0; !found && i + static_cast<ssize_t>(inverted.size()) <= got; ++i) {
        const void* first = std::memchr(bytes.data() + i, static_cast<unsigned char>(~inverted[0]),
                                        static_cast<std::size_t>(got - i));
        if (first == nullptr) break;
        i = static_cast<const char*>(first) - bytes.data();
        if (i + static_cast<ssize_t>(inverted.size()) > got) break;
        std::size_t same = 0;
        while (same < inverted.size() &&
               static_cast<char>(~bytes[static_cast<std::size_t>(i) + same]) == inverted[same])
          ++same;
        const auto here = reinterpret_cast<std::uintptr_t>(bytes.data());
        const std::uint64_t address = at + static_cast<std::uint64_t>(i);
        const bool ours = address >= here && address < here + bytes.size();  // the copy that was just read
        const auto known = reinterpret_cast<std::uintptr_t>(except.data());
        found = same == inverted.size() && !ours && (address < known || address >= known + except.size());
      }
    }
  }
  close(memory);
  explicit_bzero(bytes.data(), bytes.size());  // else the next search finds the copy
  return found;
}

TEST_F(KeyFile, TheSecretStaysNowhereInMemory) {
  const std::string path = run_ + "/key";
  ASSERT_TRUE(SecretKey::Create(path, "me").ok());
  std::string text(4096, '\0');  // read by one system call, which leaves no copy
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  ASSERT_GT(size, 0);
  text.resize(static_cast<std::size_t>(size));
  const std::size_t at = text.find("_secret\": \"") + 11;
  std::string inverted;
  for (std::size_t i = at; text[i] != '"'; ++i) inverted += static_cast<char>(~text[i]);
  ASSERT_EQ(inverted.size(), 44U);
  EXPECT_TRUE(IsInMemory(inverted, ""));
  const auto parsed = SecretKey::ParseUntrusted(text);
  const auto read_back = SecretKey::Read(path);
  ASSERT_TRUE(parsed.ok() && read_back.ok());
  EXPECT_FALSE(IsInMemory(inverted, text));
  text.replace(text.find("\"ed25519_secret"), 1, "\"ed25519_secret\": \"AAAA\", \"");
  EXPECT_TRUE(SecretKey::ParseUntrusted(text).ok());  // as JSON has it, the last one counts
}

TEST(PublicKeys, AreWrittenAndReadAndChecked) {
  PublicKey key;
  key.id = "a";
  key.ed25519 = std::string(32, '\x7f');
  key.may = {"stop", "mark"};
  key.expires_unix_s = 5;
  const auto read = ParseKeysUntrusted(KeysText(std::vector{key}));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->at(0).ed25519, key.ed25519);
  EXPECT_TRUE(read->at(0).May("mark"));
  EXPECT_FALSE(read->at(0).May("label"));
  EXPECT_TRUE(read->at(0).expired(5));
  EXPECT_FALSE(read->at(0).expired(4));
  EXPECT_FALSE(ParseKeysUntrusted(KeysText(std::vector{key, key})).ok());
  key.ed25519.pop_back();
  EXPECT_FALSE(CheckKeys(std::vector{key}).ok());
  EXPECT_NE(CheckRight("stopp").message().find("stop"), std::string::npos);
  EXPECT_FALSE(ParseKeysUntrusted(R"({"keys": 3})").ok());
}

TEST(Times, AreDaysOrTimesOfUtc) {
  EXPECT_EQ(ParseTime("1970-01-02").value(), 86400);
  EXPECT_EQ(ParseTime("2027-01-31T12:00:01Z").value(), 1801396801);
  EXPECT_EQ(TimeOf(1801396801), "2027-01-31 12:00 UTC");
  for (const char* wrong : {"", "2027-02-30", "2027-1-1", "2027-01-31T25:00:00Z", "2027-01-31T12:00:00",
                            "tomorrow", "-027-01-01"})
    EXPECT_FALSE(ParseTime(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace luff::keys::key_test
