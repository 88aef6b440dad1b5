#pragma once
#include <array>
#include <cstddef>
#include <string_view>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether masks (one number for each pixel) lie on their images as they are, or on
/// the mirrored or turned image. A row tells if the mask goes together with one of the eight positions of the
/// image, by Pearson's correlation with one of its channels, clearly better than with its own or than with
/// all others.
class MaskTurns {
 public:
  static constexpr std::size_t kTurns = 8;  // 0: as it is

  /// Adds the rows of an image (N, C, H, W), (N, H, W, C) or (N, H, W) and of a mask (N, H, W), (N, 1, H, W)
  /// or (N, H, W, 1). Other shapes are ignored.
  void Add(const SampleValues& image, const SampleValues& mask);

  [[nodiscard]] double rows() const noexcept;  // that tell
  [[nodiscard]] double share(std::size_t turn) const noexcept {
    return rows() > 0 ? told_.at(turn) / rows() : 0;
  }
  [[nodiscard]] static std::string_view NameOf(std::size_t turn);  // "mirrored left to right"

  void VisitFields(Fields& io) { io("told", told_); }

 private:
  std::array<double, kTurns> told_{};
};

/// The turn that masks of one side have in `least` of the rows and those of the other side in hardly any, by
/// `z` standard errors; 0 if there is none. 64 rows have to tell on either side.
[[nodiscard]] std::size_t TurnOfOneSide(const MaskTurns& training, const MaskTurns& evaluation, double least,
                                        double z);

}  // namespace luff::rules
