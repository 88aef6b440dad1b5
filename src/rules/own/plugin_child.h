#pragma once

namespace luff::rules {

/// Serves one rule of a shared library: speaks the protocol of docs/spec/rule-child.md over descriptor 3
/// until it ends or the other side is gone. Returns the exit code of this process.
[[nodiscard]] int ServePluginRule();

}  // namespace luff::rules
