#pragma once
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "server/gzip.h"

/// For tests: reads the blocks of an archive from a page, as the page does.
namespace luff::server {

class ArchiveReader {
 public:
  explicit ArchiveReader(const std::string& page) {
    constexpr std::string_view kOpen = "<script type=\"application/gzip\" id=\"luff-";
    for (std::size_t at = page.find(kOpen); at != std::string::npos; at = page.find(kOpen, at + 1)) {
      const std::size_t name = at + kOpen.size();
      const std::size_t begin = page.find("\">", name) + 2;
      const std::string base64 = page.substr(begin, page.find('<', begin) - begin);
      std::string bytes(base64.size(), '\0');
      std::size_t size = 0;
      EXPECT_EQ(sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), base64.data(),
                                  base64.size(), nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL),
                0);
      auto whole = Gunzipped(std::string_view(bytes).substr(0, size), std::size_t{1} << 28);
      EXPECT_TRUE(whole.ok()) << whole.status().ToString();
      blocks_[page.substr(name, begin - 2 - name)] = whole.value_or("");
    }
    index = TryParseJson(blocks_["index"]);
    EXPECT_TRUE(index.is_object());
  }
  [[nodiscard]] std::optional<std::string> Answer(const std::string& route) const {
    if (!index["routes"].contains(route)) return std::nullopt;
    const auto& place = index["routes"][route];
    return blocks_.at("pack-" + std::to_string(place[0].get<int>())).substr(place[1], place[2]);
  }
  [[nodiscard]] nlohmann::json Json(const std::string& route) const {
    return TryParseJson(Answer(route).value_or(""));
  }
  nlohmann::json index;

 private:
  std::map<std::string, std::string> blocks_;
};

}  // namespace luff::server
