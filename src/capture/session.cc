#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "capture/json_text.h"
#include "capture/session_impl.h"
#include "luff/base/env.h"
#include "luff/capture/module_timer.h"
#include "luff/format/collections.h"
#include "luff/store/loss.h"
#include "luff/tensor/hash.h"

namespace luff::capture {
namespace {

constexpr std::size_t kMostMarked = 256;  // steps that have ended and are not handed over

using format::Form;
using format::GapReason;

constexpr std::size_t kMaxDocument = 16U << 20;
constexpr std::size_t kMaxDocuments = 64;  // waiting for the next step
constexpr std::size_t kMaxText = 1U << 20;
constexpr std::uint64_t kWorthReleasing = 32U << 10;
constexpr std::size_t kSpareBlocks = 4;

std::atomic<std::uint64_t> g_fork_count{0};
std::atomic<std::uint64_t> g_next_session{1};

// A thread's producers, one for each live session. When the thread ends, other threads may take them over.
struct ThreadProducers {
  struct Entry {
    std::uint64_t session;
    std::shared_ptr<Producer> producer;
  };
  std::vector<Entry> entries;
  ~ThreadProducers() {
    for (Entry& e : entries) e.producer->abandoned.store(true, std::memory_order_release);
  }
};
// One word of static TLS, and a pthread key for the destructor. The loader allocates other thread-locals of a
// library at their first use in a thread, and registering their destructors allocates too; both end the
// process when malloc fails.
[[gnu::tls_model("initial-exec")]] constinit thread_local ThreadProducers* t_producers = nullptr;

/// Makes the thread-local state that a thread needs before its first recording. Returns false if there is no
/// memory. Must not throw: the first exception of a thread makes the loader allocate the C++ library's own
/// thread-locals.
bool BeginProducers() noexcept {
  static const std::pair<int, pthread_key_t> made = [] {
    pthread_key_t key{};
    const int error = pthread_key_create(&key, [](void* producers) {
      t_producers = nullptr;
      static_cast<ThreadProducers*>(producers)->~ThreadProducers();
      std::free(producers);
    });
    return std::pair(error, key);
  }();
  void* memory = made.first == 0 ? std::malloc(sizeof(ThreadProducers)) : nullptr;  // `new` throws inside
  if (memory == nullptr) return false;
  if (pthread_setspecific(made.second, memory) != 0) {
    std::free(memory);
    return false;
  }
  t_producers = new (memory) ThreadProducers();
  [[maybe_unused]] const volatile int in_flight = std::uncaught_exceptions();  // makes those thread-locals
  return true;
}

}  // namespace

std::uint64_t ForkCount() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_fork_count.fetch_add(1); });
  static_cast<void>(registered);
  return g_fork_count.load(std::memory_order_relaxed);
}

SessionImpl::SessionImpl(std::shared_ptr<Core> core, std::uint32_t worker)
    : core_(std::move(core)),
      worker_(worker),
      reads_accelerators_(core_->plans.now().config().accelerators && core_->device != nullptr),
      serial_(g_next_session.fetch_add(1)),
      fork_count_(ForkCount()) {}

Result<std::unique_ptr<Session>> SessionImpl::Start(Config config,
                                                    std::unique_ptr<store::WorkerWriter> writer,
                                                    std::uint32_t worker, std::unique_ptr<FileThread> thread,
                                                    std::string control_directory,
                                                    std::uint64_t control_after, ControlPoll::Read read,
                                                    ControlPoll::Decide decide, const QueueLimits& limits,
                                                    std::unique_ptr<SamplerKeeper> sampler) {
  try {
    std::string collections = DescribeCollections(config);
    LUFF_ASSIGN_OR_RETURN(Plan plan, Plan::Make(std::move(config)));
    auto core = std::make_shared<Core>(std::move(plan), std::move(writer), std::move(control_directory),
                                       control_after, std::move(read), std::move(decide), limits);
    core->sampler = std::move(sampler);
    std::unique_ptr<SessionImpl> session(new SessionImpl(core, worker));
    session->SetDocument("collections", collections);
    if (thread != nullptr) {
      session->thread_ = thread->Become([core] { core->RunWriter(); });
      session->has_thread_ = true;
    }
    return std::unique_ptr<Session>(std::move(session));
  } catch (const std::exception& e) {
    return ResourceExhausted(std::string("the capture session cannot start: ") + e.what());
  }
}

SessionImpl::~SessionImpl() {
  if (ForkCount() != fork_count_) {
    // A child has neither the thread nor the right to the files: forgets both without touching them.
    new (&thread_) std::thread();
    if (t_producers != nullptr) {
      for (ThreadProducers::Entry& e : t_producers->entries)
        static_cast<void>(new (std::nothrow) std::shared_ptr<Producer>(e.producer));
    }
    static_cast<void>(new (std::nothrow) std::shared_ptr<Core>(std::move(core_)));
    static_cast<void>(new (std::nothrow) std::vector<std::shared_ptr<Producer>>(std::move(producers_)));
    return;
  }
  Close(format::EndReason::kFailed, std::chrono::seconds(2));
  if (t_producers != nullptr)
    std::erase_if(t_producers->entries, [&](const auto& e) { return e.session == serial_; });
}

bool SessionImpl::accepting() const noexcept {
  return core_->accepting.load() &&  // seq_cst, ordered with handing_over_
         g_fork_count.load(std::memory_order_relaxed) == fork_count_;
}

bool SessionImpl::Accepts() noexcept {
  if (!accepting()) return false;
  if (t_producers != nullptr || BeginProducers()) return true;
  core_->GiveUp();
  Sleep();
  return false;
}

void SessionImpl::Sleep() noexcept {
  core_->accepting.store(false);
  core_->step.due.store(0, std::memory_order_relaxed);
  NoRoleIsDue();
}

void SessionImpl::NoRoleIsDue() noexcept {
  for (auto& forms : role_forms_) forms.store(0, std::memory_order_relaxed);
  due_roles_.store(0, std::memory_order_relaxed);
}

void SessionImpl::Fail(const char* where) noexcept {
  core_->publisher.KeepException(where);
  core_->GiveUp();
  Sleep();
}

ProducerContext SessionImpl::MakeContext() const {
  Core* core = core_.get();
  ProducerContext context;
  context.plans = &core->plans;
  context.registry = &core->registry;
  context.pool = &core->pool;
  context.queue = &core->queue;
  context.counters = &core->counters;
  context.step = &core->step;
  context.next_serial = &core->next_serial;
  context.device = reads_accelerators_ ? core->device.get() : nullptr;
  return context;
}

Producer* SessionImpl::ThisThread() {
  for (const ThreadProducers::Entry& e : t_producers->entries) {
    if (e.session == serial_) return e.producer.get();
  }
  std::shared_ptr<Producer> mine;
  {
    MutexLock lock(mutex_);
    for (const auto& p : producers_) {
      if (p->abandoned.exchange(false, std::memory_order_acq_rel)) {
        mine = p;
        break;
      }
    }
    if (mine == nullptr) {
      // The producer's shared pointer keeps the core alive, whose pool owns its block.
      auto* made = new Producer(MakeContext());
      mine = std::shared_ptr<Producer>(made, [core = core_](Producer* p) { delete p; });
      producers_.push_back(mine);
    }
  }
  // Of sessions that are gone: a thread that lives on would keep their memory.
  std::erase_if(t_producers->entries, [](const auto& e) { return e.producer.use_count() == 1; });
  t_producers->entries.push_back({serial_, mine});
  return mine.get();
}

TensorId SessionImpl::DefineTensor(std::string_view name, format::Role role, std::string_view module_path,
                                   std::string_view module_type) noexcept {
  if (!Accepts()) return format::kNoId;
  try {
    const TensorId id = core_->registry.DefineTensor(name, role, module_path, module_type);
    if (id == format::kNoId) Gap(id, GapReason::kTooMany, 0, 1);
    return id;
  } catch (...) {
    Fail("DefineTensor");
    return format::kNoId;
  }
}

LayoutId SessionImpl::DefineLayout(const Layout& layout) noexcept {
  return DefineShardLayout(layout, {}, {});
}

LayoutId SessionImpl::DefineShardLayout(const Layout& layout, std::span<const std::int64_t> global_shape,
                                        std::span<const std::int64_t> global_offset) noexcept {
  if (!Accepts()) return format::kNoId;
  try {
    const LayoutId id = core_->registry.DefineLayout(layout, {global_shape.begin(), global_shape.end()},
                                                     {global_offset.begin(), global_offset.end()});
    if (id == format::kNoId) Gap(id, GapReason::kTooMany, 0, 1);
    return id;
  } catch (...) {
    Fail("DefineLayout");
    return format::kNoId;
  }
}

void SessionImpl::SetDocument(std::string_view name, std::string_view json) noexcept {
  if (!Accepts()) return;
  if (json.size() > kMaxDocument || name.size() > 255) {
    Gap(format::kNoId, GapReason::kTooMany, 0, 1);
    return;
  }
  try {
    {
      MutexLock lock(mutex_);
      for (auto& [key, value] : documents_) {
        if (key == name) {
          value = json;
          return;
        }
      }
      if (documents_.size() < kMaxDocuments) {
        documents_.emplace_back(name, json);
        return;
      }
    }
    Gap(format::kNoId, GapReason::kTooMany, 0, 1);
  } catch (...) {
    Fail("SetDocument");
  }
}

void SessionImpl::BeginStep(format::Mode mode, std::int64_t mode_step) noexcept {
  if (!Accepts()) return;
  if (!in_step_) first_open_.store(mode_step, std::memory_order_relaxed);
  last_open_.store(mode_step, std::memory_order_relaxed);
  in_step_ = true;
  phases_.BeginOnce();
  waited_ns_ = 0;
  step_begin_ns_.store(Env::Real().NowMonotonicNs(), std::memory_order_relaxed);
  capture_ns_.store(0, std::memory_order_relaxed);
  const Plan& plan = core_->plans.now();
  StepPlan& step = core_->step;
  const std::uint64_t due = plan.DueCollections(mode, mode_step);
  const std::uint64_t raw_due = due & plan.raw_collections();
  std::uint64_t denied = 0;
  if (raw_due != 0) {
    core_->wanted_spare.store(kSpareBlocks, std::memory_order_relaxed);
    denied = core_->publisher.over_budget.load(std::memory_order_relaxed) & raw_due;
    GapReason reason = GapReason::kByteBudget;
    const bool again = mode == allowed_mode_ && mode_step == allowed_step_;  // a step may begin again
    const bool allowed = again ? allowed_ : denied == raw_due || core_->governor.AllowRaw();
    allowed_mode_ = mode;
    allowed_step_ = mode_step;
    allowed_ = allowed;
    if (denied != raw_due && !allowed) {
      denied = raw_due;
      reason = GapReason::kOverheadBudget;
    }
    step.deny_reason.store(static_cast<std::uint16_t>(reason), std::memory_order_relaxed);
  }
  step.raw_denied.store(denied, std::memory_order_relaxed);
  step.mode.store(mode, std::memory_order_relaxed);
  step.due.store(due, std::memory_order_release);
  if (due == planned_due_ && mode == planned_mode_) return;
  planned_due_ = due;
  planned_mode_ = mode;
  std::uint32_t roles = 0;
  for (std::size_t r = 0; r < kRoleCount; ++r) {
    const auto role = static_cast<format::Role>(r);
    const std::uint64_t possible = Plan::RoleSavedIn(role, mode) ? due & plan.PossibleFor(role) : 0;
    const std::uint32_t forms = plan.FormsOf(possible);
    role_forms_[r].store(forms, std::memory_order_relaxed);
    if (forms != 0) roles |= format::RoleBit(role);
  }
  due_roles_.store(roles, std::memory_order_relaxed);
}

std::uint32_t SessionImpl::DueForms(format::Role role) const noexcept {
  const auto r = static_cast<std::size_t>(role);
  return r < kRoleCount ? role_forms_[r].load(std::memory_order_relaxed) : 0;
}

std::uint32_t SessionImpl::DueForms(TensorId id) const noexcept {
  if (!accepting()) return 0;
  const TensorState* tensor = core_->registry.tensor(id);
  if (tensor == nullptr || !Plan::RoleSavedIn(tensor->role, core_->step.mode.load(std::memory_order_relaxed)))
    return 0;
  const std::uint64_t due = core_->step.due.load(std::memory_order_acquire);
  return core_->plans.now().FormsOf(due & tensor->collections.load(std::memory_order_relaxed));
}

bool SessionImpl::WorthReleasing(std::span<const TensorRef> refs) const noexcept {
  const std::uint64_t due = core_->step.due.load(std::memory_order_relaxed);
  if (due == 0 || !accepting()) return false;
  std::uint64_t bytes = 0;
  for (const TensorRef& ref : refs) {
    const TensorState* tensor = core_->registry.tensor(ref.id);
    const LayoutState* layout = core_->registry.layout(ref.layout);
    if (tensor == nullptr || layout == nullptr) continue;
    if ((tensor->collections.load(std::memory_order_relaxed) & due) == 0) continue;
    bytes += layout->bytes;
    if (bytes > kWorthReleasing) return true;
  }
  return false;
}

void SessionImpl::CaptureRefs(std::span<const TensorRef> refs, double factor) noexcept {
  if (core_->step.due.load(std::memory_order_relaxed) == 0 || !Accepts()) return;
  Timed("Capture", [&] { ThisThread()->Capture(refs, factor); });
}

void SessionImpl::Capture(std::span<const TensorRef> refs) noexcept { CaptureRefs(refs, 1.0); }
void SessionImpl::CaptureScaled(std::span<const TensorRef> refs, double factor) noexcept {
  CaptureRefs(refs, factor);
}

void SessionImpl::CaptureSummary(TensorId id, LayoutId layout, const GivenSummary& summary) noexcept {
  if (core_->step.due.load(std::memory_order_relaxed) == 0 || !Accepts()) return;
  try {
    ThisThread()->CaptureSummary(id, layout, summary);
  } catch (...) {
    Fail("CaptureSummary");
  }
}

void SessionImpl::Add(std::uint64_t bytes_of_text, auto&& add) noexcept {
  if (!Accepts()) return;
  if (bytes_of_text > kMaxText) {
    Gap(format::kNoId, GapReason::kTooMany, 0, 1);
    return;
  }
  try {
    constexpr std::uint64_t kRowBytes = 48;
    ThisThread()->AddRows(kRowBytes + bytes_of_text, add);
  } catch (...) {
    Fail("a row");
  }
}

void SessionImpl::Scalar(TensorId id, double value) noexcept {
  if (id == format::kNoId) return;
  Add(0, [&](store::StepBatch* rows) { rows->scalars.push_back({id, 0, value}); });
}

void SessionImpl::Text(TensorId id, std::string_view utf8) noexcept {
  Add(utf8.size(), [&](store::StepBatch* rows) {
    rows->event_json.push_back("{\"kind\":\"text\",\"tensor\":" + std::to_string(id) +
                               ",\"text\":" + JsonQuoted(utf8) + "}");
  });
}

void SessionImpl::Event(format::EventKind kind, std::uint32_t subject, std::uint64_t argument) noexcept {
  if (!core_->plans.now().config().events) return;
  const std::int64_t begin = step_begin_ns_.load(std::memory_order_relaxed);
  Add(0, [&](store::StepBatch* rows) {
    rows->events.push_back({static_cast<std::uint16_t>(kind), 0, subject, argument,
                            begin == 0 ? 0 : Env::Real().NowMonotonicNs() - begin});
  });
}

void SessionImpl::EventJson(std::string_view json) noexcept {
  if (!core_->plans.now().config().events) return;
  Add(json.size(), [&](store::StepBatch* rows) { rows->event_json.emplace_back(json); });
}

void SessionImpl::Gap(TensorId id, GapReason reason, std::uint32_t forms, std::uint64_t count) noexcept {
  core_->counters.gaps.fetch_add(count, std::memory_order_relaxed);
  Add(0, [&](store::StepBatch* rows) {
    format::GapRow row{};
    row.tensor = id;
    row.collection = format::kNoId;
    row.reason = static_cast<std::uint16_t>(reason);
    row.forms = static_cast<std::uint16_t>(forms);
    row.count = count;
    row.first_step = row.last_step = -1;
    rows->gaps.push_back(row);
  });
}

std::uint64_t SessionImpl::Hash(const std::byte* data, std::size_t bytes) const noexcept {
  return bytes == 0 || data == nullptr ? 0 : HashBytes(data, bytes);
}

void SessionImpl::ModuleTimes(const ModuleTimer& timer) noexcept {
  if (!Accepts() || core_->plans.now().config().profile != Profile::kFull) return;
  Timed("ModuleTimes", [&] { modules_ = timer.Times(); });
}

void SessionImpl::MarkStepEnd() noexcept {
  if (!Accepts() || core_->plans.now().config().profile == Profile::kOff) return;
  try {
    if (marked_.size() == kMostMarked) marked_.pop_front();
    Marked& marked = marked_.emplace_back();
    marked.end = phases_.EndStep(&marked.phases);
  } catch (...) {
    Fail("MarkStepEnd");
  }
}

void SessionImpl::EndStep(const StepEnd& end) noexcept {
  const std::int64_t begin = Env::Real().NowMonotonicNs();
  handing_over_.store(true);
  HandOver(end);
  handing_over_.store(false);
  const std::int64_t spent = capture_ns_.exchange(0, std::memory_order_relaxed);
  core_->spent_ns.fetch_add(spent + Env::Real().NowMonotonicNs() - begin, std::memory_order_relaxed);
}

void SessionImpl::HandOver(const StepEnd& end) noexcept {
  if (!Accepts()) {
    if (Failed()) core_->NotRecorded(end.global_step);
    return;
  }
  bool accounted = false;
  try {
    std::unique_ptr<Work> work = core_->queue.Blank();
    work->kind = Work::Kind::kStep;
    work->global_step = end.global_step;
    Collect(work.get());
    const std::int64_t now = Env::Real().NowMonotonicNs();
    work->late_since_ns = now;
    const std::int64_t begin = step_begin_ns_.load(std::memory_order_relaxed);
    format::StepMark& mark = work->batch.mark;
    mark.global_step = end.global_step;
    mark.mode_step = end.mode_step;
    mark.update = end.update;
    mark.mode = static_cast<std::uint8_t>(end.mode);
    std::int64_t since = 0;
    if (end.wall_unix_ns != 0) {
      mark.wall_unix_ns = end.wall_unix_ns;
      since = mark.duration_ns = std::max<std::int64_t>(end.duration_ns, 0);
    } else {
      mark.wall_unix_ns = Env::Real().NowUnixNs();
      mark.duration_ns = in_step_ ? now - begin : 0;
      // The training also runs between two steps, so its time is measured from one end of a step to the next.
      since = std::max<std::int64_t>(last_end_ns_ != 0 ? now - last_end_ns_ : now - begin, 1);
    }
    if (core_->plans.now().config().profile != Profile::kOff) {
      if (end.wall_unix_ns == 0) {
        work->ended = phases_.EndStep(&work->batch.phases);
        work->passed = std::exchange(passed_, nullptr);
        marked_.clear();
      } else if (!marked_.empty()) {
        work->batch.phases = marked_.front().phases;
        work->ended = marked_.front().end;
        marked_.pop_front();
      }
      BeganWithWait(format::Phase::kCompute, waited_ns_, &work->batch.phases);
      AddMarks(&work->batch);
    }
    // A device tells a little later; on the mean of many steps it is the same.
    const std::uint64_t device_ns = core_->device->device_ns();
    const auto of_device = static_cast<std::int64_t>(device_ns - std::exchange(last_device_ns_, device_ns));
    if (since > 0) core_->governor.EndStep(capture_ns_.load(std::memory_order_relaxed) + of_device, since);
    core_->time_ns.fetch_add(since, std::memory_order_relaxed);
    last_end_ns_ = now;
    core_->step.due.store(0, std::memory_order_relaxed);
    NoRoleIsDue();
    planned_due_ = 0;
    core_->counters.steps.fetch_add(1, std::memory_order_relaxed);
    const bool pushed = core_->queue.Push(work);  // may throw, but before it takes the work
    accounted = true;
    if (pushed) {
      untold_.store(0);
    } else {
      Drop(work.get());
    }
    core_->step.expected_step.store(end.global_step + 1, std::memory_order_relaxed);
    in_step_ = false;
    if (end.mode == format::Mode::kTrain) core_->gate.StepFinished(end.mode_step + 1);
    if (!has_thread_) core_->Pump();
  } catch (...) {
    Fail("EndStep");
    if (!accounted) core_->NotRecorded(end.global_step);
  }
}

void SessionImpl::Collect(Work* work) {
  work->step = core_->step.number.fetch_add(1, std::memory_order_relaxed);
  core_->registry.TakeDefinitions(&work->batch);
  MutexLock lock(mutex_);
  for (const auto& producer : producers_) producer->EndStep(work->step, &work->batch, &work->late);
  for (auto& document : documents_) work->batch.documents.push_back(std::move(document));
  documents_.clear();
  lost_.Release(0, true, &work->batch);
}

// The queue is full: the writer thread hangs or is slower than the training. The step is lost; the next step
// that finds room records that.
void SessionImpl::Drop(Work* work) {
  core_->counters.dropped_steps.fetch_add(1, std::memory_order_relaxed);
  core_->counters.gaps.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (!lost_.Fold(&work->batch, true, GapReason::kPoolFull)) throw std::bad_alloc();
  if (untold_.load() == 0) first_untold_.store(work->global_step);
  last_untold_.store(work->global_step);
  untold_.fetch_add(1);
}

void SessionImpl::Close(format::EndReason reason, std::chrono::milliseconds deadline) noexcept {
  if (g_fork_count.load() != fork_count_) return;
  try {
    try {
      if (!core_->close_asked.load()) HandOverRest();
    } catch (...) {
      Fail("Close");
    }
    Sleep();
    {
      MutexLock lock(mutex_);
      reads_.clear();  // nobody takes them any more
    }
    core_->gate.Close();
    if (!core_->close_asked.load()) core_->close_reason.store(reason);
    WaitForLate(deadline);
    const bool first = !core_->close_asked.exchange(true, std::memory_order_acq_rel);
    if (!has_thread_) {
      if (first) {
        core_->PumpRest();
        core_->Finish();
      }
      return;
    }
    if (!thread_.joinable()) return;
    core_->queue.Wake();
    if (WaitForWriter(deadline)) {
      thread_.join();
    } else {
      core_->give_up.store(true, std::memory_order_relaxed);
      // The thread keeps the core alive. If it continues before the process ends, the rest becomes a gap.
      thread_.detach();
      core_->publisher.KeepError(DeadlineExceeded(
          "the disk did not answer in time at the end of the run; " +
          std::to_string(core_->queue.pushed() - core_->processed.load()) + " steps and values wait for it"));
    }
  } catch (...) {
    Fail("Close");
  }
}

void SessionImpl::AfterForkInChild() noexcept { Sleep(); }

Health SessionImpl::health() const {
  Health out;
  out.accepting = accepting();
  if (g_fork_count.load() != fork_count_) return out;
  out.first_error = core_->publisher.first_error();
  const Counters& c = core_->counters;
  const auto add = [&](const char* name, std::uint64_t value) { out.counters.push_back({name, value}); };
  add("captured", c.captured.load());
  add("raw_values", c.raw_values.load());
  add("raw_bytes", c.raw_bytes.load());
  add("aliases", c.aliases.load());
  add("replicas", c.replicas.load());
  add("unchanged", c.unchanged.load());
  add("degraded", c.degraded.load());
  add("waits", c.waits.load());
  add("steps", c.steps.load());
  add("abandoned_steps", c.abandoned_steps.load());
  add("dropped_steps", c.dropped_steps.load());
  add("written_chunks", c.written_chunks.load());
  add("store_errors", c.store_errors.load());
  add("gaps", c.gaps.load());
  const device::CollectorCounts device = core_->device->counts();
  add("device_reads", device.reads);
  add("device_errors", device.errors);
  add("device_ns", core_->device->device_ns());
  add("device_values", device.values);
  add("device_staging_bytes", device.staging_bytes);
  add("late_values", c.late_values.load());
  add("late_steps", c.late_steps.load());
  add("late_times", c.late_times.load());
  add("pool_blocks", core_->pool.block_count());
  add("raw_stride", core_->governor.stride());
  add("tensors", core_->registry.tensor_count());
  add("queued_bytes", core_->queue.memory());
  out.overhead_ratio = core_->governor.overhead_ratio();
  return out;
}

}  // namespace luff::capture
