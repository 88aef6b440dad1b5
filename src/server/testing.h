#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "server/gzip.h"

/// For tests: readers of what the server writes.
namespace luff::server {

/// Reads the blocks of an archive from a page, as the page does.
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

/// Reads a payload as any reader of safetensors does.
struct PayloadReader {
  explicit PayloadReader(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    EXPECT_EQ(length % 8, 0U);
    header = TryParseJson(bytes.substr(8, length));
    EXPECT_TRUE(header.is_object());
    data = bytes.substr(8 + length);
  }
  template <typename T>
  [[nodiscard]] std::vector<T> Get(const std::string& name) const {
    const auto& offsets = header.at(name).at("data_offsets");
    const auto begin = offsets[0].get<std::size_t>();
    const auto end = offsets[1].get<std::size_t>();
    EXPECT_EQ(begin % 8, 0U);
    std::vector<T> values((end - begin) / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), data.data() + begin, end - begin);
    std::size_t size = 1;
    for (const auto& dim : header.at(name).at("shape")) size *= dim.get<std::size_t>();
    EXPECT_EQ(values.size(), size);
    return values;
  }
  [[nodiscard]] std::string Text(const std::string& name) const { return header.at("__metadata__").at(name); }
  nlohmann::json header;
  std::string data;
};

}  // namespace luff::server
