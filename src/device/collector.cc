#include "device/collector.h"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "base/signals_blocked.h"
#include "device/driver.h"
#include "device/slots.h"
#include "luff/base/mutex.h"

namespace luff::device {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::chrono::milliseconds kShortestRest{1}, kLongestRest{16};
constexpr std::chrono::milliseconds kLinger{500};  // without work, before the thread sleeps until it is woken
constexpr std::size_t kMaxErrors = 64;

/// Makes a context the thread's current one for a scope, unless it is already, and lets the thread's calls
/// through while another thread captures a graph.
class InContext {
 public:
  InContext(const Driver& driver, Context context) : driver_(driver) {
    Context current = nullptr;
    error_ = driver.CtxGetCurrent(&current);
    if (error_ == kSuccess && current != context) {
      error_ = driver.CtxPushCurrent(context);
      pushed_ = error_ == kSuccess;
    }
    if (error_ == kSuccess) relaxed_ = driver.ThreadExchangeStreamCaptureMode(&mode_) == kSuccess;
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
  TicketImpl(std::shared_ptr<CollectorImpl> collector, std::shared_ptr<Slot> slot)
      : collector_(std::move(collector)),
        slot_(std::move(slot)) {}
  ~TicketImpl() override { slot_->held.store(false, std::memory_order_release); }
  [[nodiscard]] Arrival arrival() const noexcept override {
    return slot_->arrival.load(std::memory_order_acquire);
  }
  [[nodiscard]] Summary summary(std::size_t i) const noexcept override { return slot_->SummaryOf(i); }
  [[nodiscard]] std::span<const std::byte> piece(std::size_t i) const noexcept override {
    return slot_->PieceAt(i);
  }

 private:
  const std::shared_ptr<CollectorImpl> collector_;  // whose memory it is
  const std::shared_ptr<Slot> slot_;
};

class CollectorImpl final : public Collector, public std::enable_shared_from_this<CollectorImpl> {
 public:
  ~CollectorImpl() override { Close(std::chrono::milliseconds(0)); }

  Refusal Read(int device, std::uint64_t stream, std::span<const Input> inputs, std::span<const Piece> pieces,
               std::shared_ptr<Ticket>* ticket) noexcept override {
    ticket->reset();
    Refusal refusal = Refusal::kNoDevice;
    try {
      refusal = TryRead(device, stream, inputs, pieces, ticket);
    } catch (const std::exception&) {  // no memory for a table
      refusal = Refusal::kBusy;
      ticket->reset();
    }
    if (refusal != Refusal::kNone) refused_.fetch_add(1, std::memory_order_relaxed);
    return refusal;
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
    return out;
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
    std::atomic<bool> off{false};
  };

  Refusal TryRead(int device, std::uint64_t stream, std::span<const Input> inputs,
                  std::span<const Piece> pieces, std::shared_ptr<Ticket>* ticket) {
    if (device < 0 || device >= kMaxDevices) return Refusal::kNoDevice;
    PerDevice& of = devices_[static_cast<std::size_t>(device)];
    if (of.off.load(std::memory_order_acquire) || closed_.load()) return Refusal::kOff;
    MutexLock lock(of.enqueueing);
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
    error = slots.Enqueue(handle, inputs, pieces, &slot, &doing);
    if (error == kOutOfMemory || (error == kSuccess && slot == nullptr)) {
      if (slot != nullptr) Expect(device, std::move(slot));
      return Refusal::kBusy;
    }
    if (IsOfCapture(error)) return Refusal::kCaptured;
    if (error != kSuccess) return Fail(device, &of, error, doing);
    reads_.fetch_add(1, std::memory_order_relaxed);
    *ticket = std::make_shared<TicketImpl>(shared_from_this(), slot);
    Expect(device, std::move(slot));
    return Refusal::kNone;
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
    const Context context = ContextOf(*driver_, device);
    if (context == nullptr) return Refusal::kNoDevice;
    const InContext inside(*driver_, context);
    if (inside.error() != kSuccess) return Fail(device, of, inside.error(), "entering the context");
    int pools = 0;
    static_cast<void>(driver_->DeviceGetAttribute(&pools, kMemoryPoolsAttribute, device));
    if (pools == 0) return Fail(device, of, "the device has no memory pools");
    auto slots = std::make_unique<Slots>(driver_, context, device, &use_);
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
    Tell(device, of, {device, driver_->NameOf(error), sticky ? "" : where, sticky}, error == kDeinitialized);
    return Refusal::kOff;
  }
  Refusal Fail(int device, PerDevice* of, const std::string& what) {
    Tell(device, of, {device, what, "finding the driver", false}, false);
    return Refusal::kOff;
  }
  void Tell(int, PerDevice* of, DeviceError error, bool silently) {
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
  };

  void Expect(int device, std::shared_ptr<Slot> slot) {
    MutexLock lock(mutex_);
    pending_.push_back({device, std::move(slot)});
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
        if (pending_.empty() && now - last > kLinger) {
          asleep_ = true;
          while (pending_.empty() && !closing_) changed_.wait(native);
          asleep_ = false;
          last = std::chrono::steady_clock::now();
        } else if (!closing_) {
          changed_.wait_for(native, rest);
        }
        closing = closing_;
        here.swap(pending_);
        native.release();
      }
      const bool any = Ask(&here);
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
    std::erase_if(*here, [this](const Pending& one) {
      PerDevice& of = devices_[static_cast<std::size_t>(one.device)];
      Arrival arrival = Arrival::kLost;
      if (!of.off.load(std::memory_order_acquire)) {
        const InContext inside(*driver_, one.slot->context);
        const Code error = inside.error() == kSuccess ? driver_->EventQuery(one.slot->event) : inside.error();
        if (error == kNotReady || IsOfCapture(error)) return false;
        if (error == kSuccess) arrival = Arrival::kHere;
        if (error != kSuccess) static_cast<void>(Fail(one.device, &of, error, "asking for results"));
      }
      one.slot->arrival.store(arrival, std::memory_order_release);
      return true;
    });
    return here->size() != old;
  }

  void GiveBack() noexcept {
    for (PerDevice& of : devices_) {
      if (of.off.load(std::memory_order_acquire) || !of.enqueueing.TryLock()) continue;
      if (of.slots != nullptr) {
        const InContext inside(*driver_, of.slots->context());
        if (inside.error() == kSuccess) of.slots->GiveBack();
      }
      of.enqueueing.Unlock();
    }
  }

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
};

}  // namespace

std::shared_ptr<Collector> Collector::Make() { return std::make_shared<CollectorImpl>(); }

}  // namespace luff::device
