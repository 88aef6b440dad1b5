#include "luff/base/regex.h"

#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

namespace luff {
namespace {

struct MatchContext {
  MatchContext() noexcept : context(pcre2_match_context_create(nullptr)) {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, 100'000);
    pcre2_set_depth_limit(context, 1'000);
    pcre2_set_heap_limit(context, 10 * 1024);  // KiB
  }
  ~MatchContext() { pcre2_match_context_free(context); }
  MatchContext(const MatchContext&) = delete;
  MatchContext& operator=(const MatchContext&) = delete;
  pcre2_match_context* context;
};

}  // namespace

struct Regex::State {
  State(std::string_view text, pcre2_code* compiled) : pattern(text), code(compiled) {}
  ~State() { pcre2_code_free(code); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  std::string pattern;
  pcre2_code* code;
  MatchContext limits;
};

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return InvalidArgument("a regular expression of " + std::to_string(pattern.size()) +
                           " bytes found, at most " + std::to_string(kMaxPatternBytes) + " expected");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    return InvalidArgument("regular expression \"" + std::string(pattern) + "\" does not compile: " +
                           reinterpret_cast<const char*>(text.data()) + " at byte " + std::to_string(offset));
  }
  return Regex(std::make_shared<const State>(pattern, code));
}

bool Regex::Match(std::string_view text, bool whole) const noexcept {
  if (state_->limits.context == nullptr) return false;
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  if (data == nullptr) return false;
  const std::uint32_t options = whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0;
  const int rc = pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options,
                             data, state_->limits.context);
  pcre2_match_data_free(data);
  return rc >= 0;
}

bool Regex::Search(std::string_view text) const noexcept { return Match(text, false); }
bool Regex::FullMatch(std::string_view text) const noexcept { return Match(text, true); }
const std::string& Regex::pattern() const noexcept { return state_->pattern; }

}  // namespace luff
