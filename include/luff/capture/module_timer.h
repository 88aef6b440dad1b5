#pragma once
#include <cstdint>
#include <vector>

#include "luff/store/writer.h"

/// How long the calls of modules take in one step: forward by the stamps of whoever makes the calls, backward
/// by stamps of the graph's nodes that stand where a call began and ended.
namespace luff::capture {

/// Calls come from one thread at a time. No call makes a system call; memory grows to at most 2 MB, with the
/// calls of the largest step.
class ModuleTimer {
 public:
  /// `now`: CLOCK_MONOTONIC in ns, or a clock of a test.
  explicit ModuleTimer(std::int64_t (*now)() noexcept = nullptr) noexcept;

  /// A step begins: forgets the calls of the one before. Stamps of earlier steps mean nothing from now on.
  void Begin() noexcept;
  /// A call of a module begins, inside those that have not ended; its time begins with Resume. Returns its
  /// number, or kNoId beyond 32,768 calls: then it is not told from the call around it.
  [[nodiscard]] std::uint32_t Enter(std::uint32_t module) noexcept;
  /// The call has ended, with all inside it that have not. The time of the one around it goes on with Resume.
  void Leave(std::uint32_t call) noexcept;
  /// From here to Resume time belongs to no module.
  void Pause() noexcept;
  void Resume() noexcept;

  /// What a node of the graph has to say when a backward pass comes to it: a call's own nodes begin
  /// (`leaves`: have all been passed).
  [[nodiscard]] std::uint64_t StampOf(std::uint32_t call, bool leaves) const noexcept;
  /// A backward pass begins: stamps count until it ends. Those of other passes (torch.autograd.grad) do not.
  void BackwardBegins() noexcept;
  /// A backward pass has come to a node with this stamp. Of several at one node, any order is right.
  void At(std::uint64_t stamp) noexcept;
  /// The backward pass has ended.
  void BackwardEnds() noexcept;

  /// Says what of the step could not be seen: kModulesHidden or kModulesRecomputed. Times of a backward pass
  /// that computes activations again are left out.
  void Tell(std::uint32_t flag) noexcept { flags_ |= flag; }

  /// The modules of the step, those with most time of their own first; of more than kMaxModuleRows the rest
  /// is one row. Without rows: nothing was called. May throw std::bad_alloc.
  [[nodiscard]] store::StepModules Times() const;

 private:
  static constexpr std::uint32_t kNone = format::kNoId;
  struct Call {
    std::uint32_t module = 0;
    std::uint32_t around = kNone;                  // the call that made it, which has a smaller number
    bool seen = false;                             // by a backward pass
    std::int64_t forward_ns = 0, backward_ns = 0;  // of its own
  };
  [[nodiscard]] bool IsWithin(std::uint32_t call, std::uint32_t other) const noexcept;
  void Count() noexcept;
  void CountBackward() noexcept;

  std::int64_t (*now_)() noexcept;
  std::vector<Call> calls_;
  std::uint32_t step_ = 0;
  bool passing_ = false;
  std::uint32_t flags_ = 0;
  std::uint32_t call_ = kNone, back_ = kNone;        // that time is counted for
  std::int64_t since_ns_ = -1, back_since_ns_ = -1;  // -1: for none
};

}  // namespace luff::capture
