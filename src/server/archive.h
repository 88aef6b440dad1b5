#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace luff::server {

/// What a route answers; `route` is what follows runs/RUN/ of its address.
struct RouteAnswer {
  std::string route, bytes;
};

/// Answers of routes for a page without a server, as blocks of HTML that hold base64 and no byte of a run
/// (docs/spec/report.md). Answers that are needed together lie in one pack, which is compressed as one.
class Archive {
 public:
  /// `limit`: bytes of all blocks.
  explicit Archive(std::size_t limit) : limit_(limit) {}

  /// Adds a pack unless it takes more than `most` bytes, or more than are left. Returns whether it did.
  bool Add(const std::vector<RouteAnswer>& answers, std::size_t most);
  /// The answer of a route, which is there, is that of another one, too.
  void AddName(std::string route, const std::string& of);
  [[nodiscard]] bool Has(const std::string& route) const { return routes_.contains(route); }
  [[nodiscard]] std::size_t packs() const noexcept { return packs_.size(); }
  /// Takes the packs behind the first `packs` out again.
  void CutTo(std::size_t packs);
  /// Bytes that further packs may have.
  [[nodiscard]] std::size_t left() const noexcept { return used_ < limit_ ? limit_ - used_ : 0; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

  /// The blocks. `facts`: an object, the further members of the index.
  [[nodiscard]] std::string Blocks(const nlohmann::ordered_json& facts) const;

 private:
  struct Place {
    std::size_t pack, begin, size;
  };
  struct Pack {
    std::string base64;
    std::size_t cost;  // of the block, and of its routes in the index
  };
  void Name(std::string route, Place place);

  const std::size_t limit_;
  std::size_t used_ = 0;
  std::vector<Pack> packs_;
  std::map<std::string, Place, std::less<>> routes_;
};

}  // namespace luff::server
