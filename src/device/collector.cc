#include "device/collector.h"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "base/signals_blocked.h"
#include "device/borders.h"
#include "device/driver.h"
#include "device/fetcher.h"
#include "device/kernels/arguments.h"
#include "device/slots.h"
#include "luff/base/mutex.h"

namespace luff::device {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::chrono::milliseconds kShortestRest{1}, kLongestRest{16};
constexpr std::chrono::milliseconds kLinger{500};  // without work, before the thread sleeps until it is woken
constexpr std::chrono::milliseconds kLastLooks{50};  // for copies on their way, at the end, of all devices
constexpr std::size_t kMaxErrors = 64;

/// Makes a context the thread's current one for a scope, unless it is already, and lets the thread's calls
/// through while another thread captures a graph.
class InContext {
 public:
  InContext(const Driver& driver, const KnownContext& context) : driver_(driver) {
    Context current = nullptr;
    error_ = driver.Check(context);
    if (error_ == kSuccess) error_ = driver.CtxGetCurrent(&current);
    if (error_ == kSuccess && current != context.handle) {
      error_ = driver.CtxPushCurrent(context.handle);
      pushed_ = error_ == kSuccess;
    }
    // Without it, a call of ours would end another thread's capture.
    if (error_ == kSuccess) error_ = driver.ThreadExchangeStreamCaptureMode(&mode_);
    relaxed_ = error_ == kSuccess;
  }
  ~InContext() {
    if (relaxed_) static_cast<void>(driver_.ThreadExchangeStreamCaptureMode(&mode_));
    Context popped = nullptr;
    if (pushed_) static_cast<void>(driver_.CtxPopCurrent(&popped));
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  [[nodiscard]] Code error() const noexcept { return error_; }

 private:
  const Driver& driver_;
  Code error_ = kSuccess;
  bool pushed_ = false, relaxed_ = false;
  int mode_ = kCaptureRelaxed;
};

class CollectorImpl;

class TicketImpl final : public Ticket {
 public:
  TicketImpl(std::shared_ptr<CollectorImpl> collector, std::shared_ptr<Slot> slot,
             std::shared_ptr<Fetch> fetch, Use* use, std::size_t headroom);
  ~TicketImpl() override;
  [[nodiscard]] Arrival arrival() const noexcept override {
    return slot_->arrival.load(std::memory_order_acquire);
  }
  [[nodiscard]] Summary summary(std::size_t i) const noexcept override { return slot_->SummaryOf(i); }
  [[nodiscard]] std::span<const std::byte> piece(std::size_t i) const noexcept override {
    return slot_->PieceAt(i);
  }
  [[nodiscard]] Arrival rest() const noexcept override {
    return fetch_ == nullptr ? Arrival::kHere : fetch_->arrival.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint8_t refused(std::size_t i) const noexcept override {
    return slot_->extras.empty() ? std::uint8_t{0} : slot_->extras[i].refused;
  }
  [[nodiscard]] bool difference(std::size_t i, Difference* out) const noexcept override {
    return slot_->DifferenceOf(i, out);
  }
  [[nodiscard]] std::span<const std::uint64_t> histogram(std::size_t i) const noexcept override {
    const std::byte* at = At(i, &Extra::histogram);
    if (at == nullptr) return {};
    return {reinterpret_cast<const std::uint64_t*>(at), kHistogramBins};
  }
  [[nodiscard]] bool units(std::size_t i, UnitCounts* out) const override {
    const std::byte* at = At(i, &Extra::units);
    if (at == nullptr) return false;
    const Extra& extra = slot_->extras[i];
    out->axis = extra.axis;
    out->values_per_unit = extra.values_per_unit;
    out->positive.resize(extra.unit_count);
    out->zero.resize(extra.unit_count);
    out->sum.resize(extra.unit_count);
    for (std::size_t u = 0; u < extra.unit_count; ++u) {
      const UnitCount& count = reinterpret_cast<const UnitCount*>(at)[u];
      out->positive[u] = count.positive;
      out->zero[u] = count.zero;
      out->sum[u] = count.sum;
    }
    return true;
  }
  [[nodiscard]] std::byte* part(std::size_t i, std::size_t part) const noexcept override {
    std::byte* at = At(i, &Extra::value);
    return at == nullptr ? nullptr : at + part * PartSpace(headroom_);
  }

 private:
  [[nodiscard]] std::byte* At(std::size_t i, std::uint64_t Extra::* offset) const noexcept {
    if (fetch_ == nullptr || slot_->extras.empty() || slot_->extras[i].*offset == Extra::kNone)
      return nullptr;
    return fetch_->host.get() + slot_->extras[i].*offset;
  }

  const std::shared_ptr<CollectorImpl> collector_;  // whose memory it is
  const std::shared_ptr<Slot> slot_;
  const std::shared_ptr<Fetch> fetch_;  // null: nothing takes the longer way
  Use* const use_;                      // the collector's
  const std::size_t headroom_;
};

class StepPassedImpl final : public StepPassed {
 public:
  explicit StepPassedImpl(std::shared_ptr<StepBorders> step) : step_(std::move(step)) {
    step_->held.store(true, std::memory_order_relaxed);  // the ring is locked
  }
  ~StepPassedImpl() override { step_->held.store(false, std::memory_order_release); }
  StepPassedImpl(const StepPassedImpl&) = delete;
  StepPassedImpl& operator=(const StepPassedImpl&) = delete;
  [[nodiscard]] Arrival arrival() const noexcept override {
    return step_->arrival.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::int64_t total_ns() const noexcept override { return step_->total_ns; }
  [[nodiscard]] std::span<const Stretch> stretches() const noexcept override { return step_->stretches; }
  [[nodiscard]] bool was_idle() const noexcept override { return step_->was_idle; }

 private:
  const std::shared_ptr<StepBorders> step_;
};

class CollectorImpl final : public Collector, public std::enable_shared_from_this<CollectorImpl> {
 public:
  explicit CollectorImpl(const CollectorOptions& options) : options_(options) {}
  ~CollectorImpl() override { Close(std::chrono::milliseconds(0)); }

  Refusal Read(int device, std::uint64_t stream, std::span<const Input> inputs, std::span<const Piece> pieces,
               std::shared_ptr<Ticket>* ticket, std::chrono::nanoseconds* patience) noexcept override {
    ticket->reset();
    Refusal refusal = Refusal::kNoDevice;
    try {
      if (patience != nullptr) WaitForRoom(device, inputs, patience);
      refusal = TryRead(device, stream, inputs, pieces, ticket);
    } catch (const std::exception&) {  // no memory for a table
      refusal = Refusal::kBusy;
      ticket->reset();
    }
    if (refusal != Refusal::kNone) refused_.fetch_add(1, std::memory_order_relaxed);
    return refusal;
  }

  void BeginPhase(int device, std::uint64_t stream, std::uint8_t phase) noexcept override {
    AtBorder(device, stream, false, [&](BorderRing* ring, Stream handle, const char** doing) {
      return ring->Begin(handle, phase, doing);
    });
  }
  std::shared_ptr<StepPassed> EndStep(int device, std::uint64_t stream) noexcept override {
    std::shared_ptr<StepPassed> passed;
    AtBorder(device, stream, true, [&](BorderRing* ring, Stream handle, const char** doing) {
      std::shared_ptr<StepBorders> ended;
      const Code error = ring->End(handle, &ended, doing);
      if (ended == nullptr) return error;
      Expect({device, nullptr, nullptr, nullptr, ended});
      passed = std::make_shared<StepPassedImpl>(std::move(ended));
      return error;
    });
    return passed;
  }

  [[nodiscard]] bool has_errors() const noexcept override {
    return untaken_.load(std::memory_order_acquire) != 0;
  }
  bool TakeError(DeviceError* error) noexcept override {
    MutexLock lock(error_mutex_);
    if (errors_.empty()) return false;
    *error = std::move(errors_.front());
    errors_.erase(errors_.begin());
    untaken_.store(errors_.size(), std::memory_order_release);
    return true;
  }

  [[nodiscard]] CollectorCounts counts() const noexcept override {
    CollectorCounts out;
    out.reads = reads_.load(std::memory_order_relaxed);
    out.tables_built = use_.tables_built.load(std::memory_order_relaxed);
    out.refused = refused_.load(std::memory_order_relaxed);
    out.errors = error_count_.load(std::memory_order_relaxed);
    out.device_bytes = use_.device_bytes.load(std::memory_order_relaxed);
    out.pinned_bytes = use_.pinned_bytes.load(std::memory_order_relaxed);
    out.slots = use_.slots.load(std::memory_order_relaxed);
    out.staging_bytes = use_.staging_bytes.load(std::memory_order_relaxed);
    out.host_bytes = use_.host_bytes.load(std::memory_order_relaxed);
    out.values = use_.values.load(std::memory_order_relaxed);
    out.waits = use_.waits.load(std::memory_order_relaxed);
    return out;
  }
  [[nodiscard]] std::uint64_t device_ns() const noexcept override {
    return use_.device_ns.load(std::memory_order_relaxed);
  }

  void Close(std::chrono::milliseconds patience) noexcept override {
    closed_.store(true);
    const auto until = std::chrono::steady_clock::now() + patience;
    MutexLock lock(mutex_);
    closing_ = true;  // a read that is under way starts no thread any more
    if (!thread_.joinable()) return;
    if (thread_.get_id() == std::this_thread::get_id()) {  // the last reference was the thread's own
      thread_.detach();
      return;
    }
    std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
    changed_.notify_all();
    while (!ended_ && changed_.wait_until(native, until) != std::cv_status::timeout) {
    }
    std::thread thread = std::move(thread_);
    const bool ended = ended_;
    native.unlock();
    if (ended) {
      thread.join();
    } else {
      thread.detach();  // it hangs in the driver; it holds a reference to everything that it uses
    }
    native.lock();
    native.release();
  }

 private:
  struct PerDevice {
    Mutex enqueueing;  // held while the driver takes work, which it may do slowly
    bool known LUFF_GUARDED_BY(enqueueing) = false;
    std::unique_ptr<Slots> slots LUFF_GUARDED_BY(enqueueing);
    std::unique_ptr<BorderRing> borders LUFF_GUARDED_BY(enqueueing);
    std::atomic<bool> off{false};
    // Of the watching thread.
    std::unique_ptr<Fetcher> fetcher;
    std::shared_ptr<Staging> staging;
    KnownContext context;
  };

  /// Waits until staging memory has room for the values, at most `*patience`.
  void WaitForRoom(int device, std::span<const Input> inputs, std::chrono::nanoseconds* patience) {
    std::uint64_t bytes = 0;
    for (const Input& input : inputs)
      bytes += (input.wants & kWantValue) != 0 ? input.layout->byte_count() : 0;
    if (bytes == 0 || patience->count() <= 0 || device < 0 || device >= kMaxDevices) return;
    PerDevice& of = devices_[static_cast<std::size_t>(device)];
    std::shared_ptr<Staging> staging;
    {
      MutexLock lock(of.enqueueing);
      if (of.slots == nullptr || of.off.load(std::memory_order_acquire)) return;
      staging = of.slots->staging();
    }
    const auto begin = std::chrono::steady_clock::now();
    if (!staging->WaitForRoom(bytes, begin + *patience)) return;
    use_.waits.fetch_add(1, std::memory_order_relaxed);
    *patience -= std::chrono::steady_clock::now() - begin;
  }

  Refusal TryRead(int device, std::uint64_t stream, std::span<const Input> inputs,
                  std::span<const Piece> pieces, std::shared_ptr<Ticket>* ticket) {
    if (device < 0 || device >= kMaxDevices) return Refusal::kNoDevice;
    PerDevice& of = devices_[static_cast<std::size_t>(device)];
    if (of.off.load(std::memory_order_acquire) || closed_.load()) return Refusal::kOff;
    MutexLock lock(of.enqueueing);
    if (closed_.load()) return Refusal::kOff;  // luff-device may have given all back
    if (of.slots == nullptr) {
      if (const Refusal refusal = Begin(device, &of); refusal != Refusal::kNone) return refusal;
    }
    BeginWatching();
    Slots& slots = *of.slots;
    const InContext inside(slots.driver(), slots.context());
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the framework hands its streams over as numbers
    const auto handle = reinterpret_cast<Stream>(stream);
    int capturing = 0;
    Code error = inside.error();
    if (error == kSuccess) error = slots.driver().StreamIsCapturing(handle, &capturing);
    if (IsOfCapture(error) || (error == kSuccess && capturing != 0)) return Refusal::kCaptured;
    if (error != kSuccess) return Fail(device, &of, error, "asking for the state of a stream");
    const char* doing = "";
    std::shared_ptr<Slot> slot;
    std::shared_ptr<Fetch> fetch;
    while (slots.Rescue(handle, &slot, &fetch)) {
      if (fetch != nullptr) fetch->wanted.store(false);
      Expect({device, std::exchange(slot, nullptr), std::exchange(fetch, nullptr), slots.staging()});
    }
    error = slots.Enqueue(handle, inputs, pieces, &slot, &fetch, &doing);
    if (error == kOutOfMemory || IsOfCapture(error) || (error == kSuccess && slot == nullptr)) {
      if (fetch != nullptr) fetch->wanted.store(false);
      if (slot != nullptr) Expect({device, std::move(slot), std::move(fetch), slots.staging()});
      return IsOfCapture(error) ? Refusal::kCaptured : Refusal::kBusy;
    }
    if (error != kSuccess) return Fail(device, &of, error, doing);
    reads_.fetch_add(1, std::memory_order_relaxed);
    *ticket = std::make_shared<TicketImpl>(shared_from_this(), slot, fetch, &use_, options_.headroom);
    Expect({device, std::move(slot), std::move(fetch), slots.staging()});
    return Refusal::kNone;
  }

  /// Calls `mark` with the device's ring if its stream can take an event.
  template <typename F>
  void AtBorder(int device, std::uint64_t stream, bool ends_step, const F& mark) noexcept {
    if (device < 0 || device >= kMaxDevices) return;
    PerDevice& of = devices_[static_cast<std::size_t>(device)];
    if (of.off.load(std::memory_order_acquire) || closed_.load()) return;
    MutexLock lock(of.enqueueing);
    if (closed_.load() || of.slots == nullptr) return;
    try {
      Slots& slots = *of.slots;
      if (of.borders == nullptr)
        of.borders = std::make_unique<BorderRing>(slots.shared_driver(), slots.context());
      const InContext inside(slots.driver(), slots.context());
      // NOLINTNEXTLINE(performance-no-int-to-ptr): as in TryRead
      const auto handle = reinterpret_cast<Stream>(stream);
      const char* doing = "asking for the state of a stream";
      int capturing = 0;
      Code error = inside.error();
      if (error == kSuccess) error = slots.driver().StreamIsCapturing(handle, &capturing);
      if (error == kSuccess && capturing == 0) error = mark(of.borders.get(), handle, &doing);
      if (IsOfCapture(error) || error == kOutOfMemory || capturing != 0) {
        of.borders->Miss(ends_step);
      } else if (error != kSuccess) {
        of.borders->Miss(true);
        static_cast<void>(Fail(device, &of, error, doing));
      }
    } catch (const std::exception&) {  // no memory
      if (of.borders != nullptr) of.borders->Miss(true);
    }
  }

  /// Finds driver, context and kernels of a device that is read for the first time.
  Refusal Begin(int device, PerDevice* of) LUFF_REQUIRES(of->enqueueing) {
    MutexLock lock(driver_mutex_);
    if (driver_ == nullptr) {
      FoundDriver found = FindDriver();
      if (found.driver == nullptr) {
        if (!found.why.empty()) return Fail(device, of, found.why);
        return Refusal::kNoDevice;
      }
      driver_ = std::move(found.driver);
    }
    KnownContext context{ContextOf(*driver_, device)};
    if (context.handle == nullptr) return Refusal::kNoDevice;
    if (driver_->CtxGetId != nullptr && driver_->CtxGetId(context.handle, &context.number) != kSuccess)
      context.number = 0;
    const InContext inside(*driver_, context);
    if (inside.error() != kSuccess) return Fail(device, of, inside.error(), "entering the context");
    int pools = 0;
    static_cast<void>(driver_->DeviceGetAttribute(&pools, kMemoryPoolsAttribute, device));
    if (pools == 0) return Fail(device, of, "the device has no memory pools");
    auto slots = std::make_unique<Slots>(driver_, context, device, options_, &use_);
    const char* doing = "";
    if (const Code error = slots->Load(&doing); error != kSuccess) {
      if (!IsSticky(error)) slots->GiveBack();
      return Fail(device, of, error, doing);
    }
    of->slots = std::move(slots);
    return Refusal::kNone;
  }

  /// The context of the thread if it is the device's, else the primary one if somebody uses it. Makes none.
  static Context ContextOf(const Driver& driver, int ordinal) {
    Context current = nullptr;
    int device = 0, of_current = 0;
    if (driver.DeviceGet(&device, ordinal) != kSuccess) return nullptr;
    if (driver.CtxGetCurrent(&current) == kSuccess && current != nullptr &&
        driver.CtxGetDevice(&of_current) == kSuccess && of_current == device) {
      return current;
    }
    unsigned flags = 0;
    int active = 0;
    Context primary = nullptr;
    if (driver.DevicePrimaryCtxGetState(device, &flags, &active) != kSuccess || active == 0) return nullptr;
    if (driver.DevicePrimaryCtxRetain(&primary, device) != kSuccess) return nullptr;
    static_cast<void>(driver.DevicePrimaryCtxRelease(device));
    return primary;
  }

  Refusal Fail(int device, PerDevice* of, Code error, const char* where) {
    const bool sticky = IsSticky(error);
    Tell(of, {device, driver_->NameOf(error), sticky ? "" : where, sticky}, error == kDeinitialized);
    return Refusal::kOff;
  }
  Refusal Fail(int device, PerDevice* of, const std::string& what) {
    Tell(of, {device, what, "finding the driver", false}, false);
    return Refusal::kOff;
  }
  void Tell(PerDevice* of, DeviceError error, bool silently) {
    if (of->off.exchange(true, std::memory_order_acq_rel) || silently) return;
    error_count_.fetch_add(1, std::memory_order_relaxed);
    MutexLock lock(error_mutex_);
    if (errors_.size() < kMaxErrors) errors_.push_back(std::move(error));
    untaken_.store(errors_.size(), std::memory_order_release);
  }

  // ---- What is on its way ----

  struct Pending {
    int device;
    std::shared_ptr<Slot> slot;
    std::shared_ptr<Fetch> fetch;  // null: none
    std::shared_ptr<Staging> staging;
    std::shared_ptr<StepBorders> step = {};  // null: a read
    [[nodiscard]] const KnownContext& context() const noexcept {
      return step == nullptr ? slot->context : step->context;
    }
    [[nodiscard]] Event last() const noexcept {
      return step == nullptr ? slot->event : step->events[step->used - 1];
    }
    [[nodiscard]] std::atomic<Arrival>& arrival() const noexcept {
      return step == nullptr ? slot->arrival : step->arrival;
    }
  };

  void Expect(Pending pending) {
    MutexLock lock(mutex_);
    pending_.push_back(std::move(pending));
    if (asleep_) changed_.notify_all();
  }

  /// Begins the thread, which also gives back at the end what a device was begun with.
  void BeginWatching() {
    MutexLock lock(mutex_);
    if (thread_.joinable() || closing_) return;
    const SignalsBlocked quiet;
    thread_ = std::thread([self = shared_from_this()]() mutable {
      static_cast<void>(prctl(PR_SET_NAME, "luff-device"));
      self->Watch();
      self.reset();
    });
  }

  void Watch() {
    std::list<Pending> here;
    auto rest = kShortestRest;
    auto last = std::chrono::steady_clock::now();
    bool closing = false;
    while (!closing) {
      {
        MutexLock lock(mutex_);
        std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
        const auto now = std::chrono::steady_clock::now();
        if (pending_.empty() && !fetching_ && now - last > kLinger) {
          asleep_ = true;
          while (pending_.empty() && !closing_) {
            if (use_.staging_bytes.load(std::memory_order_relaxed) == 0) {
              changed_.wait(native);
            } else if (changed_.wait_for(native, options_.idle) == std::cv_status::timeout) {
              break;  // to give back what is idle
            }
          }
          asleep_ = false;
          last = std::chrono::steady_clock::now();
        } else if (!closing_) {
          changed_.wait_for(native, rest);
        }
        closing = closing_;
        here.swap(pending_);
        native.release();
      }
      bool any = Ask(&here);
      any = GoOn() || any;
      if (any) last = std::chrono::steady_clock::now();
      rest = any ? kShortestRest : std::min(rest * 2, kLongestRest);
      MutexLock lock(mutex_);
      pending_.splice(pending_.begin(), here);
    }
    GiveBack();
    MutexLock lock(mutex_);
    pending_.clear();
    ended_ = true;
    changed_.notify_all();
  }

  /// Asks for each of these whether it has arrived; keeps those that have not. True if any has.
  bool Ask(std::list<Pending>* here) {
    const auto old = here->size();
    const Pending* first = nullptr;  // step that has not come: those behind it in its stream have not, either
    std::erase_if(*here, [this, &first](const Pending& one) {
      PerDevice& of = devices_[static_cast<std::size_t>(one.device)];
      Arrival arrival = Arrival::kLost;
      if (!of.off.load(std::memory_order_acquire)) {
        if (one.step != nullptr && first != nullptr && one.device == first->device &&
            one.step->stream == first->step->stream) {
          return false;
        }
        const InContext inside(*driver_, one.context());
        const Code error = inside.error() == kSuccess ? driver_->EventQuery(one.last()) : inside.error();
        if (error == kNotReady || IsOfCapture(error)) {
          if (one.step != nullptr && first == nullptr) first = &one;
          return false;
        }
        if (error == kSuccess) arrival = Arrival::kHere;
        if (error != kSuccess) static_cast<void>(Fail(one.device, &of, error, "asking for results"));
        if (error == kSuccess && one.slot != nullptr) CountTime(*one.slot);
        if (error == kSuccess && one.slot != nullptr && !one.slot->Take()) arrival = Arrival::kLost;
        if (error == kSuccess && one.step != nullptr && !one.step->Measure(*driver_))
          arrival = Arrival::kLost;
      }
      if (one.fetch != nullptr) {
        if (arrival == Arrival::kHere) {
          BeginFetching(one, &of);
        } else {
          if (!of.off.load(std::memory_order_acquire)) one.staging->Return(one.fetch->block);
          one.fetch->arrival.store(arrival, std::memory_order_release);
        }
      }
      one.arrival().store(arrival, std::memory_order_release);
      return true;
    });
    return here->size() != old;
  }

  /// The context is current.
  void CountTime(const Slot& slot) {
    float milliseconds = 0;
    if (driver_->EventElapsedTime(&milliseconds, slot.begin, slot.event) != kSuccess) return;
    if (milliseconds > 0) use_.device_ns.fetch_add(static_cast<std::uint64_t>(milliseconds * 1e6F));
  }

  void BeginFetching(const Pending& one, PerDevice* of) {
    if (of->fetcher == nullptr) {
      of->fetcher = std::make_unique<Fetcher>(driver_, one.staging, &use_);
      of->context = one.slot->context;
      of->staging = one.staging;
    }
    of->fetcher->Add(one.fetch);
  }

  /// Goes on with values on their way to the host, and gives back memory that is idle. True if anything came.
  bool GoOn() {
    bool any = false;
    fetching_ = false;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      PerDevice& of = devices_[device];
      if (of.fetcher == nullptr) continue;
      if (of.off.load(std::memory_order_acquire)) {
        of.fetcher->Drop();
        continue;
      }
      const InContext inside(*driver_, of.context);
      Code error = inside.error();
      const char* doing = "entering the context";
      if (error == kSuccess) any = of.fetcher->Go(&error, &doing) || any;
      if (error != kSuccess) {
        static_cast<void>(Fail(static_cast<int>(device), &of, error, doing));
        of.fetcher->Drop();
        continue;
      }
      fetching_ = fetching_ || !of.fetcher->empty();
      of.staging->GiveBack(options_.idle);
    }
    return any;
  }

  void GiveBack() noexcept {
    const auto until = std::chrono::steady_clock::now() + kLastLooks;
    for (PerDevice& of : devices_) {
      if (of.off.load(std::memory_order_acquire) || !of.enqueueing.TryLock()) continue;
      if (of.slots != nullptr) {
        const InContext inside(*driver_, of.slots->context());
        if (inside.error() == kSuccess && of.borders != nullptr) of.borders->GiveBack();
        if (inside.error() == kSuccess && of.fetcher != nullptr) of.fetcher->GiveBack(until);
        if (inside.error() == kSuccess) of.slots->GiveBack();
      }
      of.enqueueing.Unlock();
    }
  }

  const CollectorOptions options_;
  std::array<PerDevice, kMaxDevices> devices_;
  Mutex driver_mutex_;
  std::shared_ptr<const Driver> driver_;
  Use use_;
  std::atomic<std::uint64_t> reads_{0}, refused_{0}, error_count_{0};
  std::atomic<bool> closed_{false};
  std::atomic<std::size_t> untaken_{0};
  Mutex error_mutex_;
  std::vector<DeviceError> errors_ LUFF_GUARDED_BY(error_mutex_);
  Mutex mutex_;
  std::condition_variable changed_;
  std::list<Pending> pending_ LUFF_GUARDED_BY(mutex_);
  std::thread thread_ LUFF_GUARDED_BY(mutex_);
  bool asleep_ LUFF_GUARDED_BY(mutex_) = false;
  bool closing_ LUFF_GUARDED_BY(mutex_) = false;
  bool ended_ LUFF_GUARDED_BY(mutex_) = false;
  bool fetching_ = false;  // of the watching thread: values are on their way to the host
};

TicketImpl::TicketImpl(std::shared_ptr<CollectorImpl> collector, std::shared_ptr<Slot> slot,
                       std::shared_ptr<Fetch> fetch, Use* use, std::size_t headroom)
    : collector_(std::move(collector)),
      slot_(std::move(slot)),
      fetch_(std::move(fetch)),
      use_(use),
      headroom_(headroom) {
  if (fetch_ != nullptr) use_->host_bytes.fetch_add(fetch_->host_bytes, std::memory_order_relaxed);
}

TicketImpl::~TicketImpl() {
  slot_->held.store(false, std::memory_order_release);
  if (fetch_ == nullptr) return;
  fetch_->wanted.store(false, std::memory_order_release);
  use_->host_bytes.fetch_sub(fetch_->host_bytes, std::memory_order_relaxed);
}

}  // namespace

std::shared_ptr<Collector> Collector::Make(const CollectorOptions& options) {
  return std::make_shared<CollectorImpl>(options);
}

}  // namespace luff::device
