#pragma once
#include <string>
#include <string_view>
#include <vector>

/// What to do about an operation that made a value that is not finite, by what the hook says of it.
namespace luff::rules {

struct NonFiniteRemedy {
  std::vector<std::string> causes;
  std::string text;
  bool whole = true;  // false: what is said of the phase is to follow
};

/// `reason`: words of `luff.torch.replay._domains`. nullptr: the words say nothing that is known here.
[[nodiscard]] const NonFiniteRemedy* RemedyOf(std::string_view reason);

}  // namespace luff::rules
