// Configurations come from files and command lines: any bytes must give a configuration or an error, never a
// crash. A plan and a description can be made of any accepted configuration, and the description is accepted
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "capture/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff::capture;
  luff::Result<Config> config = ParseConfigUntrusted({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) return 0;
  luff::Result<Plan> plan = Plan::Make(*config);
  if (!plan.ok()) std::abort();
  static_cast<void>(plan->Match("gradient/Net_fc.weight", luff::format::Role::kGradient, "Linear"));
  static_cast<void>(plan->DueCollections(luff::format::Mode::kTrain, 500));
  const std::string text = R"({"defaults":false,"collections":)" + DescribeCollections(*config) + "}";
  luff::Result<Config> again = ParseConfigUntrusted(text);
  if (!again.ok() && !config->collections.empty()) {
    // Text that is not UTF-8 is replaced in the description, which may change its meaning.
    for (std::size_t i = 0; i < size; ++i) {
      if (data[i] >= 0x80 || data[i] == '\\') return 0;
    }
    std::abort();
  }
  return 0;
}
