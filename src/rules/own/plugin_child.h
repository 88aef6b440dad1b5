#pragma once

namespace luff::rules {

/// The process of one rule of a shared library: speaks the lines of docs/spec/rule-child.md over descriptor 3
/// until the other side is gone. Returns the exit code.
[[nodiscard]] int ServePluginRule();

}  // namespace luff::rules
