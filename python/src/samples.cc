// luff._core.Samples: what the samplers of a run's hosts measured. luff/profile.py makes columns of it.
#include "luff/query/samples.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "text.h"

namespace luff::python {
namespace nb = nanobind;
namespace {

/// Threads may share it: a call holds the lock while C++ works, and never while Python does.
class SharedSamples {
 public:
  explicit SharedSamples(std::unique_ptr<query::Samples> samples) : samples_(std::move(samples)) {}
  template <typename Use>
  auto With(Use use) {
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return use(*samples_);
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<query::Samples> samples_;
};

const query::HostSamples& HostAt(const query::Samples& samples, std::size_t at) {
  if (at >= samples.hosts().size()) ThrowIfError(OutOfRange("there is no host number " + std::to_string(at)));
  return samples.hosts()[at];
}

template <typename T>
nb::object Array(std::vector<T> values) {
  auto* keep = new std::vector<T>(std::move(values));
  nb::capsule capsule(keep, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  const std::size_t size = keep->size();
  return nb::cast(nb::ndarray<nb::numpy, const T>(keep->data(), 1, &size, capsule));
}

}  // namespace

void InitSamples(nb::module_& m);
void InitSamples(nb::module_& m) {
  nb::class_<SharedSamples> samples(m, "Samples");
  m.def(
      "open_samples",
      [](const std::string& path) {
        std::unique_ptr<SharedSamples> opened;
        {
          nb::gil_scoped_release release;
          opened = std::make_unique<SharedSamples>(Unwrap(query::Samples::Open(path)));
        }
        return opened.release();
      },
      nb::arg("path"), nb::rv_policy::take_ownership);
  samples.def("refresh", [](SharedSamples& shared) {
    return shared.With([](query::Samples& all) { return Unwrap(all.Refresh()); });
  });
  samples.def("hosts", [](SharedSamples& shared) {
    nb::list list;
    for (const std::uint32_t number : shared.With([](query::Samples& all) {
           std::vector<std::uint32_t> numbers;
           for (const query::HostSamples& host : all.hosts()) numbers.push_back(host.number());
           return numbers;
         }))
      list.append(number);
    return list;
  });
  samples.def(
      "document",
      [](SharedSamples& shared, std::size_t host, const std::string& name) {
        return shared.With([&](query::Samples& all) { return HostAt(all, host).Document(name); });
      },
      nb::arg("host"), nb::arg("name"));
  samples.def(
      "series",
      [](SharedSamples& shared, std::size_t host) {
        nb::list list;
        for (const format::SeriesDef& one :
             shared.With([&](query::Samples& all) { return HostAt(all, host).series(); })) {
          list.append(nb::make_tuple(one.name, std::string(format::UnitName(one.unit)),
                                     one.kind == format::SeriesKind::kCounter));
        }
        return list;
      },
      nb::arg("host"));
  samples.def(
      "read",
      [](SharedSamples& shared, std::size_t host, const std::string& name) {
        query::SampleColumns columns =
            shared.With([&](query::Samples& all) { return Unwrap(HostAt(all, host).Read(name)); });
        return nb::make_tuple(Array(std::move(columns.unix_ns)), Array(std::move(columns.value)),
                              Array(std::move(columns.most)), Array(std::move(columns.merged)));
      },
      nb::arg("host"), nb::arg("name"));
}

}  // namespace luff::python
