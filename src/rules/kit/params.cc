#include "rules/kit/params.h"

#include "base/format.h"

namespace luff::rules {
namespace {

Status InBounds(double value, const char* name, const Bound& bound) {
  if (bound.above ? !(value > bound.least) : !(value >= bound.least)) {
    return InvalidArgument(
        fmt::format("'{}' must be {} {:g}", name, bound.above ? "above" : "at least", bound.least));
  }
  if (bound.below ? value < bound.most : value <= bound.most) return Status::Ok();
  return InvalidArgument(
      fmt::format("'{}' must be {} {:g}", name, bound.below ? "below" : "at most", bound.most));
}

template <typename Value>
Status Take(const Result<Value>& read, const char* name, const Bound& bound, Value* to) {
  if (!read.ok()) return InvalidArgument(fmt::format("'{}': {}", name, read.status().message()));
  *to = *read;
  return InBounds(static_cast<double>(*read), name, bound);
}

}  // namespace

Status ReadParam(const Parameters& all, const char* name, const Bound& bound, const ParamTarget& to) {
  const std::string text = TextOf(all, name);
  if (to.real != nullptr) return Take(ParseDouble(text), name, bound, to.real);
  if (to.whole != nullptr) return Take(ParseInt(text), name, bound, to.whole);
  if (to.flag != nullptr) return Take(ParseBool(text), name, bound, to.flag);
  if (to.text != nullptr) *to.text = text;
  if (to.maybe == nullptr || !HasParameter(all, name)) return Status::Ok();
  return Take(ParseDouble(text), name, bound, &to.maybe->emplace());
}

}  // namespace luff::rules
