#include "capture/registry.h"

#include <utility>

namespace luff::capture {
namespace {

constexpr std::size_t kMaxNameBytes = 4096;

void AppendKey(std::string* key, std::int64_t value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Longer names are cut between two UTF-8 characters.
std::string_view Bounded(std::string_view text) {
  if (text.size() <= kMaxNameBytes) return text;
  std::size_t end = kMaxNameBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

}  // namespace

TensorId Registry::DefineTensor(std::string_view name, format::Role role, std::string_view module_path,
                                std::string_view module_type) {
  name = Bounded(name);
  if (static_cast<std::size_t>(role) >= kRoleCount) role = format::Role::kOther;
  MutexLock lock(mutex_);
  std::string key(name);
  if (const auto found = by_name_.find(key); found != by_name_.end()) return found->second;
  if (tensors_.size() >= StableArray<TensorState>::kMax) return format::kNoId;
  const std::uint64_t collections = plan_->Match(name, role, module_type);
  const auto id = static_cast<TensorId>(tensors_.Append([&](TensorState& state) {
    state.collections.store(collections, std::memory_order_relaxed);
    state.role = role;
  }));
  store::TensorDef def;
  def.id = id;
  def.role = role;
  def.name = key;
  def.module_path = Bounded(module_path);
  def.module_type = Bounded(module_type);
  for (std::uint32_t i = 0; i < listed_; ++i) {
    if ((collections >> i & 1U) != 0) def.collections.push_back(i);
  }
  new_tensors_.push_back(std::move(def));
  names_.push_back(&by_name_.emplace(std::move(key), id).first->first);
  type_of_.push_back(&*types_.emplace(module_type).first);
  return id;
}

void Registry::Adopt(const Plan& plan, std::size_t first) {
  MutexLock lock(mutex_);
  plan_ = &plan;
  const std::uint64_t kept = first >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << first) - 1;
  for (std::size_t id = 0; id < names_.size(); ++id) {
    TensorState& state = *tensors_.Find(id);
    const std::uint64_t more = plan.Match(*names_[id], state.role, *type_of_[id], first);
    state.collections.store((state.collections.load(std::memory_order_relaxed) & kept) | more,
                            std::memory_order_relaxed);
  }
}

LayoutId Registry::DefineLayout(const Layout& layout, std::vector<std::int64_t> global_shape,
                                std::vector<std::int64_t> global_offset) {
  std::string key;
  key.reserve(256);
  AppendKey(&key, static_cast<std::int64_t>(layout.dtype));
  AppendKey(&key, layout.rank);
  for (std::size_t i = 0; i < layout.rank; ++i) {
    AppendKey(&key, layout.dims[i]);
    AppendKey(&key, layout.strides[i]);
  }
  AppendKey(&key, static_cast<std::int64_t>(global_shape.size()));
  for (const std::int64_t d : global_shape) AppendKey(&key, d);
  for (const std::int64_t d : global_offset) AppendKey(&key, d);
  MutexLock lock(mutex_);
  if (const auto found = by_layout_.find(key); found != by_layout_.end()) return found->second;
  if (layouts_.size() >= StableArray<LayoutState>::kMax) return format::kNoId;
  const auto id = static_cast<LayoutId>(layouts_.Append([&](LayoutState& state) {
    state.layout = layout;
    state.bytes = layout.byte_count();
  }));
  by_layout_.emplace(std::move(key), id);
  new_layouts_.push_back({id, layout, std::move(global_shape), std::move(global_offset)});
  return id;
}

void Registry::TakeDefinitions(store::StepBatch* batch) {
  MutexLock lock(mutex_);
  if (!new_tensors_.empty()) {
    batch->tensors.insert(batch->tensors.end(), std::make_move_iterator(new_tensors_.begin()),
                          std::make_move_iterator(new_tensors_.end()));
    new_tensors_.clear();
  }
  if (!new_layouts_.empty()) {
    batch->layouts.insert(batch->layouts.end(), std::make_move_iterator(new_layouts_.begin()),
                          std::make_move_iterator(new_layouts_.end()));
    new_layouts_.clear();
  }
}

std::string Registry::NameOf(TensorId id) {
  MutexLock lock(mutex_);
  return id < names_.size() ? *names_[id] : std::string();
}

}  // namespace luff::capture
