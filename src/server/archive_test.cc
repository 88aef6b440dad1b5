// Answers come back as they were put in, and the blocks hold nothing but base64.
#include <gtest/gtest.h>

#include <cstdint>

#include <regex>

#include <nlohmann/json.hpp>

#include "server/archive.h"
#include "server/gzip.h"
#include "server/testing.h"

namespace luff::server::archive_test {
namespace {

TEST(Gzip, ReturnsWhatWentIn) {
  std::string large;
  for (std::uint32_t i = 0; i < 300'000; ++i) large.push_back(static_cast<char>(i * i / 7));
  std::string tile(65'536, '\xff');  // exactly full buffers
  for (std::size_t i = 0; i < 200; ++i) tile[256 + i] = "z\x82{\x81"[i / 4 % 4];
  for (const std::string& bytes :
       {std::string(), std::string("a"), std::string(100'000, '\0'), large, tile, tile + tile}) {
    const std::string gzip = Gzipped(bytes);
    const auto back = Gunzipped(gzip, bytes.size());
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, bytes);
    EXPECT_EQ(Gzipped(bytes), gzip);  // no time in it
  }
  EXPECT_LT(Gzipped(std::string(100'000, 'x')).size(), 1000U);
  std::uint32_t state = 1;  // texts whose last code ends anywhere in its byte
  const auto random = [&] { return (state = state * 1'664'525 + 1'013'904'223) >> 8; };
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (std::uint32_t n = random() % 100; n > 0; --n)
      text +=
          random() % 2 == 0 ? std::string(random() % 200, 'x') : std::string(1, static_cast<char>(random()));
    EXPECT_EQ(Gunzipped(Gzipped(text), text.size()).value_or("damaged"), text);
  }
}

TEST(Gzip, RefusesWhatIsDamagedOrTooLarge) {
  const std::string good = Gzipped("some text, some text, some text");
  EXPECT_FALSE(Gunzipped(good, 10).ok());
  for (std::size_t at = 0; at < good.size(); ++at) {
    if (at >= 4 && at < 10) continue;  // time and system
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    const auto back = Gunzipped(bad, 1000);
    EXPECT_FALSE(back.ok() && *back != "some text, some text, some text") << at;
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(Gunzipped(good.substr(0, size), 1000).ok()) << size;
}

TEST(Archive, AnswersComeBack) {
  Archive archive(100'000);
  ASSERT_TRUE(archive.Add({{"", "document"}, {"at/3", std::string("</script>\0<!--", 14)}}, 100'000));
  ASSERT_TRUE(archive.Add({{"empty", ""}}, 100'000));
  archive.AddName("also", "at/3");
  archive.AddName("none", "nothing");
  const std::string blocks = archive.Blocks({{"version", 1}});
  EXPECT_LE(blocks.size(), archive.used() + 1000);
  const ArchiveReader reader(blocks);
  EXPECT_EQ(reader.index["version"], 1);
  EXPECT_EQ(reader.Answer(""), "document");
  EXPECT_EQ(reader.Answer("at/3"), std::string("</script>\0<!--", 14));
  EXPECT_EQ(reader.Answer("also"), reader.Answer("at/3"));
  EXPECT_EQ(reader.Answer("empty"), "");
  EXPECT_EQ(reader.Answer("none"), std::nullopt);
  const std::regex form(
      R"((<script type="application/gzip" id="luff-[a-z0-9-]+">[A-Za-z0-9+/=]*</script>\n)+)");
  EXPECT_TRUE(std::regex_match(blocks, form)) << blocks;
}

TEST(Archive, HasNoMoreThanItMay) {
  Archive archive(1000);
  std::string noise;
  for (int i = 0; i < 3000; ++i) noise.push_back(static_cast<char>(i * 7919 / 13));
  EXPECT_FALSE(archive.Add({{"large", noise}}, 100'000));
  EXPECT_FALSE(archive.Has("large"));
  EXPECT_EQ(archive.used(), 0U);
  EXPECT_FALSE(archive.Add({{"small", "text"}}, 10));
  EXPECT_TRUE(archive.Add({{"small", "text"}}, 500));
  const std::size_t before = archive.used();
  EXPECT_TRUE(archive.Add({{"other", "text"}}, 500));
  archive.CutTo(1);
  EXPECT_EQ(archive.used(), before);
  EXPECT_TRUE(archive.Has("small"));
  EXPECT_FALSE(archive.Has("other"));
}

}  // namespace
}  // namespace luff::server::archive_test
