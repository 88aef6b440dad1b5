#include "server/archive.h"

#include <algorithm>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "server/gzip.h"

namespace luff::server {
namespace {

// What a block's tag and a route of the index take at most: measured are 60 and about 20.
constexpr std::size_t kTag = 80, kRoute = 40;

std::string Base64(std::string_view bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the zero at its end
  return text;
}

std::string Block(std::string_view id, std::string_view base64) {
  return fmt::format("<script type=\"application/gzip\" id=\"luff-{}\">{}</script>\n", id, base64);
}

}  // namespace

bool Archive::Add(const std::vector<RouteAnswer>& answers, std::size_t most) {
  std::string bytes;
  for (const RouteAnswer& answer : answers) bytes += answer.bytes;
  Pack pack{Base64(Gzipped(bytes)), 0};
  const std::size_t cost = kTag + pack.base64.size();
  if (cost + kRoute * answers.size() > std::min(most, left())) return false;
  pack.cost = cost;
  used_ += cost;
  packs_.push_back(std::move(pack));
  std::size_t begin = 0;
  for (const RouteAnswer& answer : answers) {
    Name(answer.route, {packs_.size() - 1, begin, answer.bytes.size()});
    begin += answer.bytes.size();
  }
  return true;
}

void Archive::Name(std::string route, Place place) {
  if (!routes_.emplace(std::move(route), place).second) return;
  packs_[place.pack].cost += kRoute;
  used_ += kRoute;
}

void Archive::AddName(std::string route, const std::string& of) {
  const auto at = routes_.find(of);
  if (at != routes_.end()) Name(std::move(route), at->second);
}

void Archive::CutTo(std::size_t packs) {
  std::erase_if(routes_, [&](const auto& named) { return named.second.pack >= packs; });
  for (; packs_.size() > packs; packs_.pop_back()) used_ -= packs_.back().cost;
}

std::string Archive::Blocks(const nlohmann::ordered_json& facts) const {
  nlohmann::json routes = nlohmann::json::object();  // an ordered one would search for each name
  for (const auto& [route, place] : routes_) routes[route] = {place.pack, place.begin, place.size};
  std::string index = JsonText(facts);
  index.back() = index.size() > 2 ? ',' : ' ';
  index += fmt::format("\"routes\":{}}}", JsonText(routes));
  std::string blocks = Block("index", Base64(Gzipped(index)));
  blocks.reserve(blocks.size() + used_);
  for (std::size_t i = 0; i < packs_.size(); ++i)
    blocks += Block(fmt::format("pack-{}", i), packs_[i].base64);
  return blocks;
}

}  // namespace luff::server
