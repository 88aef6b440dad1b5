#include "luff/base/work_bound.h"

#include <utility>

namespace luff {
namespace {

thread_local const WorkBound::Check* bound = nullptr;

}  // namespace

WorkBound::WorkBound(const Check* check) noexcept : before_(std::exchange(bound, check)) {}
WorkBound::~WorkBound() { bound = before_; }

Status WorkBound::GoOn() { return bound == nullptr ? Status::Ok() : (*bound)(); }

}  // namespace luff
