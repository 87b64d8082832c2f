// The kernels of the paper GPU: one function for almost every operator, and a few of their own.
//
// An operator whose arguments are all known runs for real, on host tensors. Any other gives tensors of the right shape
// whose values are unknown. What needs a value that is unknown is refused: see python.h.
#include "kernels.h"

#include "memory.h"
#include "program.h"
#include "python.h"
#include "shapes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <mutex>
#include <set>
#include <unordered_map>

namespace regbot::paper {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Results that repeat are kept up to this size, then forgotten.
constexpr int64_t kMaxKeptBytes = int64_t{64} << 20;
// A copy to the host of unknown floats is filled with ones up to this size; a larger one is left as it is.
constexpr int64_t kMaxFilledBytes = int64_t{64} << 20;

std::mutex kept_mutex; // guards `Entry::computed`
int64_t kept_bytes = 0;
std::vector<std::weak_ptr<Entry>> keepers;

// Storages of the host that unknown floats were copied to: they hold ones, and a copy back is unknown again.
std::mutex filled_mutex;
std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> filled;
constexpr size_t kMaxFilled = 4096; // then those that are gone are forgotten

void remember_filled(const at::Tensor& host) {
  const std::lock_guard<std::mutex> guard(filled_mutex);
  if (filled.size() >= kMaxFilled) {
    for (auto place = filled.begin(); place != filled.end();) {
      place = place->second.expired() ? filled.erase(place) : std::next(place);
    }
  }
  const c10::Storage& storage = host.storage();
  filled.insert_or_assign(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
}

bool was_filled(const at::Tensor& host) {
  if (!host.is_cpu() || !host.has_storage()) {
    return false;
  }
  const std::lock_guard<std::mutex> guard(filled_mutex);
  const auto place = filled.find(host.storage().unsafeGetStorageImpl());
  return place != filled.end() && !place->second.expired();
}

bool is_float(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

std::string in_words(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes();
  return text.str();
}

// ---- values --------------------------------------------------------------------------------------------------------

bool reads_only_known_values(const Operator& info, const std::vector<IValue>& arguments) {
  bool known = true;
  for (size_t i = 0; i < arguments.size() && known; ++i) {
    if (info.is_read[i]) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        known = known && (is_on_paper(tensor) ? is_known(tensor) : tensor.is_cpu() && !was_filled(tensor));
      });
    }
  }
  return known;
}

bool results_may_be_known(const Entry& entry) {
  const auto fits = [](const Result& result) {
    if (result.kind != Result::Kind::fresh) {
      return true;
    }
    const int64_t bytes = c10::multiply_integers(result.sizes) * static_cast<int64_t>(c10::elementSize(result.dtype));
    return bytes <= (at::isIntegralType(result.dtype, true) ? kMaxKnownBytes : kMaxKnownFloatBytes);
  };
  for (const auto& result : entry.results) {
    if (!fits(result) || !std::all_of(result.items.begin(), result.items.end(), fits)) {
      return false;
    }
  }
  return true;
}

bool writes_only_what_may_be_known(const Operator& info, const std::vector<IValue>& arguments) {
  bool fits = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_written[i]) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { fits = fits && may_be_known(tensor); });
    }
  }
  return fits;
}

// The ids of all values that the operator reads; nothing where a host tensor with many values is among them.
std::optional<std::vector<uint64_t>> ids_of(const Operator& info, const std::vector<IValue>& arguments) {
  std::vector<uint64_t> ids;
  bool complete = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!info.is_read[i]) {
        return;
      }
      if (is_on_paper(tensor)) {
        ids.push_back(values_id(tensor));
      } else if (tensor.numel() == 1 && tensor.is_cpu()) {
        ids.push_back(hash_bytes(tensor.data_ptr(), tensor.dtype().itemsize()));
      } else {
        complete = false;
      }
    });
  }
  return complete ? std::optional(std::move(ids)) : std::nullopt;
}

// A host tensor that the operator may write: what it reads of it is there, and nobody else sees what it writes.
at::Tensor scratch_of(const at::Tensor& tensor, bool is_read, bool is_out) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (is_out) {
    return at::empty({0}, options);
  }
  auto scratch = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  if (is_read) {
    without_repeats(scratch, scratch).copy_(without_repeats(host_view(tensor), scratch));
  }
  return scratch;
}

// What an operator made and wrote when it ran on the host.
struct HostRun {
  Stack results;
  Stack arguments;
};

// Unknown floats are ones on the host. Unknown integers are refused.
void fill_host(const at::Tensor& target) {
  if (!is_float(target)) {
    refuse("values that depend on real data were copied to the host as integers (" + in_words(target) + ")");
  }
  remember_filled(target);
  if (static_cast<int64_t>(target.nbytes()) <= kMaxFilledBytes) {
    note("floats that depend on data were copied to the host and answered with 1.0");
    target.fill_(1.0);
  } else {
    note("floats that depend on data were copied to the host, too many to fill in");
  }
}

// Run the operator on the host. Nothing where the host has no kernel for it.
std::optional<HostRun> run_on_host(
    const c10::OperatorHandle& op, const Operator& info, const std::vector<IValue>& arguments) {
  Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_out = op.schema().arguments()[i].is_out();
    if (arguments[i].isDevice()) {
      stack.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else {
      stack.push_back(map_tensors(arguments[i], [&](const at::Tensor& tensor) {
        if (!is_on_paper(tensor)) {
          return tensor;
        }
        return info.is_written[i] ? scratch_of(tensor, info.is_read[i], is_out) : host_view(tensor);
      }));
    }
  }
  HostRun run{stack, stack};
  try {
    op.callBoxed(run.results);
    return run;
  } catch (const c10::NotImplementedError&) {
  }
  // A CPU has no kernel for this dtype where a GPU has one, such as histc of integers.
  for (auto& value : stack) {
    value = map_tensors(value, [](const at::Tensor& tensor) {
      const bool integral = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
      return integral ? tensor.to(at::kDouble) : tensor;
    });
  }
  run = {stack, stack};
  try {
    op.callBoxed(run.results);
    return run;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// The tensors that an operator has made or written.
std::vector<at::Tensor> written_tensors(
    const Operator& info, const Entry& entry, const std::vector<IValue>& arguments, const Stack& results) {
  std::vector<at::Tensor> tensors;
  const auto take = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
  for (size_t i = 0; i < results.size(); ++i) {
    if (entry.results[i].kind != Result::Kind::argument) {
      for_each_tensor(results[i], take);
    }
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_written[i]) {
      for_each_tensor(arguments[i], take);
    }
  }
  return tensors;
}

void keep(const std::shared_ptr<Entry>& entry, std::vector<uint64_t> ids, std::vector<Computed> computed) {
  const std::lock_guard<std::mutex> guard(kept_mutex);
  for (const auto& item : computed) {
    kept_bytes += static_cast<int64_t>(item.whole ? item.whole->bytes.nbytes() : item.value.nbytes());
  }
  if (kept_bytes > kMaxKeptBytes) {
    for (const auto& keeper : keepers) {
      if (const auto other = keeper.lock()) {
        other->computed.clear();
      }
    }
    keepers.clear();
    kept_bytes = 0;
  }
  if (entry->computed.empty()) {
    keepers.push_back(entry);
  }
  entry->computed.emplace(std::move(ids), std::move(computed));
}

std::optional<std::vector<Computed>> kept(const Entry& entry, const std::vector<uint64_t>& ids) {
  const std::lock_guard<std::mutex> guard(kept_mutex);
  const auto place = entry.computed.find(ids);
  return place == entry.computed.end() ? std::nullopt : std::optional(place->second);
}

void write(const at::Tensor& tensor, const Computed& computed) {
  if (!computed.whole) {
    write_known(tensor, computed.value, computed.id);
  } else if (covers_storage(tensor)) {
    share_values(tensor, computed.whole);
  } else {
    const auto whole = computed.whole->bytes.view(tensor.scalar_type()).as_strided(tensor.sizes(), tensor.strides(), 0);
    write_known(tensor, whole, computed.id);
  }
}

// Give values to what the operator made and wrote: those of an equal call before, or computed on the host. False where
// the host cannot compute them.
bool compute(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<IValue>& arguments,
    const std::shared_ptr<Entry>& entry,
    const Stack& results,
    bool may_keep) {
  const auto targets = written_tensors(info, *entry, arguments, results);
  auto ids = may_keep ? ids_of(info, arguments) : std::nullopt;
  if (ids) {
    if (const auto computed = kept(*entry, *ids)) {
      for (size_t i = 0; i < targets.size(); ++i) {
        write(targets[i], (*computed)[i]);
      }
      return true;
    }
  }
  const auto run = run_on_host(op, info, arguments);
  if (!run) {
    return false;
  }
  const auto values = written_tensors(info, *entry, run->arguments, run->results);
  const auto same_sizes = [](const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); };
  if (!std::equal(targets.begin(), targets.end(), values.begin(), values.end(), same_sizes)) {
    return false; // the operator has other results on a GPU, such as one more
  }
  std::vector<Computed> computed;
  uint64_t base = ids ? mix(hash_bytes(info.name.data(), info.name.size()), reinterpret_cast<uintptr_t>(entry.get())) : new_id();
  for (const uint64_t id : ids.value_or(std::vector<uint64_t>{})) {
    base = mix(base, id);
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!is_on_paper(targets[i])) {
      if (targets[i].is_cpu() && !targets[i].is_same(values[i])) {
        targets[i].copy_(values[i]);
      }
      ids.reset();
      continue;
    }
    const uint64_t id = mix(base, i);
    write_known(targets[i], values[i], id);
    const Block* block = block_of(targets[i]);
    if (block != nullptr && covers_storage(targets[i])) {
      computed.push_back({at::Tensor(), id, block->values});
    } else {
      computed.push_back({values[i].clone(), id, nullptr}); // a result may be a view of what the operator read
    }
  }
  if (ids) {
    keep(entry, std::move(*ids), std::move(computed));
  }
  return true;
}

// What an operator wrote depends on real data. Tensors of the host are filled with ones.
void write_unknown_anywhere(const at::Tensor& tensor) {
  if (is_on_paper(tensor) || !tensor.is_cpu()) {
    write_unknown(tensor);
  } else {
    fill_host(tensor);
  }
}

// ---- the kernel for almost everything --------------------------------------------------------------------------------

bool takes_masks(const std::string& name) {
  static const std::set<std::string> names{
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return names.count(name) != 0;
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

// Indices with every mask among them replaced by the positions that it selects. Refuses a mask that is not known.
IValue positions_of_masks(const IValue& indices) {
  c10::List<std::optional<at::Tensor>> positions;
  for (const std::optional<at::Tensor>& index : indices.toOptionalTensorList()) {
    if (!index.has_value() || !index->defined() || !is_mask(*index)) {
      positions.push_back(index);
      continue;
    }
    if (is_on_paper(*index) && !is_known(*index)) {
      refuse("a mask that depends on real data selects rows; how many is not known");
    }
    const auto mask = is_on_paper(*index) ? host_view(*index) : *index;
    for (const auto& position : mask.nonzero().unbind(1)) {
      positions.push_back(ghost_of(position.contiguous()));
    }
  }
  return positions;
}

bool has_mask(const std::vector<IValue>& arguments) {
  bool masked = false;
  for_each_tensor(arguments[1], [&](const at::Tensor& tensor) { masked = masked || is_mask(tensor); });
  return masked;
}

bool has_unknown_mask(const std::vector<IValue>& arguments) {
  bool unknown = false;
  for_each_tensor(arguments[1], [&](const at::Tensor& tensor) {
    unknown = unknown || (is_mask(tensor) && is_on_paper(tensor) && !is_known(tensor));
  });
  return unknown;
}

// For an operator that makes nothing and only writes its arguments; null for any other.
std::shared_ptr<Entry> entry_without_shapes(const Operator& info) {
  auto entry = std::make_shared<Entry>();
  for (size_t i = 0; i < info.source.size(); ++i) {
    if (!info.result_is_written[i] || info.source[i] < 0) {
      return nullptr;
    }
    Result result;
    result.kind = Result::Kind::argument;
    result.argument = static_cast<size_t>(info.source[i]);
    entry->results.push_back(std::move(result));
  }
  return entry;
}

// New tensors for values on the host, for operators whose shapes depend on values.
Stack copies_of(const Stack& values) {
  Stack results;
  for (const auto& value : values) {
    results.push_back(map_tensors(value, [](const at::Tensor& tensor) {
      auto copy = new_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type());
      write_known(copy, tensor, new_id());
      return copy;
    }));
  }
  return results;
}

bool has_output_size(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& name = op.schema().arguments()[i].name();
    if ((name == "output_size" || name == "size") && !arguments[i].isNone()) {
      return true;
    }
  }
  return false;
}

Stack run_dynamic(const c10::OperatorHandle& op, const Operator& info, const std::vector<IValue>& arguments) {
  if (reads_only_known_values(info, arguments)) {
    if (const auto run = run_on_host(op, info, arguments)) {
      return copies_of(run->results);
    }
    refuse(info.name + " has no kernel on a CPU, so that the size of its result is not known");
  }
  refuse(info.name + " makes a tensor whose size depends on real data");
}

std::shared_ptr<Entry> shapes_of(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<IValue>& arguments,
    const std::string& signature) {
  try {
    return entry_of(op, info, arguments, signature);
  } catch (const c10::NotImplementedError& error) {
    if (auto entry = entry_without_shapes(info)) {
      return entry;
    }
    refuse(info.name + " has no shape function in this torch, so it cannot run on a paper GPU: " + error.msg());
  }
}

// A GPU operator takes tensors of one GPU, and from the host only single numbers.
void check_devices(const Operator& info, const std::vector<IValue>& arguments, c10::Device device) {
  static const std::set<std::string> mixed{"aten::_pack_padded_sequence", "aten::_use_cudnn_ctc_loss", "aten::_cudnn_ctc_loss"};
  if (info.name.rfind("aten::", 0) != 0 || info.name.rfind("aten::_foreach_", 0) == 0 || mixed.count(info.name) != 0) {
    return;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == 1 && takes_masks(info.name)) {
      continue; // indices may be on the host
    }
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      const bool number = tensor.is_cpu() && tensor.dim() == 0;
      TORCH_CHECK(
          number || tensor.device() == device, "Expected all tensors to be on the same device, but found at least two devices, ",
          device, " and ", tensor.device(), "! (when checking arguments of ", info.name, ")");
    });
  }
}

// The GPU that runs the operator: that of its tensors, or the one that is asked for.
c10::Device device_of(const std::vector<IValue>& arguments) {
  std::optional<c10::Device> device;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!device && is_on_paper(tensor)) {
        device = tensor.device();
      }
    });
  }
  for (const auto& argument : arguments) {
    if (!device && argument.isDevice() && argument.toDevice().is_cuda()) {
      device = argument.toDevice();
    }
  }
  return device && device->has_index() ? *device : c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getDevice();
}

// A tensor is not written while a part of it is read.
void check_overlap(const Operator& info, const std::vector<IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.is_written[i] || !arguments[i].isTensor() || !is_on_paper(arguments[i].toTensor())) {
      continue;
    }
    for (size_t other = 0; other < arguments.size(); ++other) {
      if (other != i && arguments[other].isTensor() && is_on_paper(arguments[other].toTensor())) {
        at::assert_no_partial_overlap(arguments[i].toTensor(), arguments[other].toTensor());
      }
    }
  }
}

// Autograd leaves the versions of the tensors that are written to the GPU's foreach kernels.
void bump_versions(const Operator& info, const std::vector<IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_written[i]) {
      for_each_tensor(arguments[i], [](const at::Tensor& tensor) {
        if (!tensor.is_inference()) {
          tensor.unsafeGetTensorImpl()->bump_version();
        }
      });
    }
  }
}

void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& info = operator_of(op);
  const size_t count = op.schema().arguments().size();
  std::vector<IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const auto device = device_of(arguments);
  const c10::OptionalDeviceGuard on_device(device);
  check_devices(info, arguments, device);
  check_overlap(info, arguments);

  if (info.shape_depends_on_values && !takes_masks(info.name) && !has_output_size(op, arguments)) {
    auto results = run_dynamic(op, info, arguments);
    record_operator(op, signature_of(info, arguments), arguments, results);
    std::move(results.begin(), results.end(), std::back_inserter(*stack));
    return;
  }
  const bool known = !info.is_view && !info.draws_random_values && reads_only_known_values(info, arguments);
  std::vector<IValue> described = arguments;
  const bool masked = takes_masks(info.name) && has_mask(arguments);
  const bool writes_by_mask = masked && info.name.find("put") != std::string::npos;
  if (masked && !(writes_by_mask && has_unknown_mask(arguments))) {
    described[1] = positions_of_masks(arguments[1]);
  }
  const auto signature = signature_of(info, described);
  std::shared_ptr<Entry> entry;
  if (writes_by_mask && has_unknown_mask(arguments)) {
    entry = entry_without_shapes(info);
  } else {
    entry = shapes_of(op, info, described, signature);
  }
  auto results = make_results(*entry, arguments);
  const bool computed = known && results_may_be_known(*entry) && writes_only_what_may_be_known(info, arguments) &&
      compute(op, info, arguments, entry, results, !masked && !signature.empty());
  if (!computed) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (info.is_written[i]) {
        for_each_tensor(arguments[i], write_unknown_anywhere);
      }
    }
    route(info.name, arguments, results);
  }
  if (info.name.rfind("aten::_foreach_", 0) == 0) {
    bump_versions(info, arguments);
  }
  record_operator(op, signature, arguments, results);
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

// ---- kernels of their own ---------------------------------------------------------------------------------------------

c10::ScalarType dtype_of_new(std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype_of_new(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return new_tensor(size, stride, dtype_of_new(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (self.sizes() != size) { // else the strides stay as they are
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    grow_storage(self);
  }
  if (format.has_value()) {
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* implementation = self.unsafeGetTensorImpl();
  implementation->set_storage_offset(offset);
  if (stride.data() != nullptr) {
    implementation->set_sizes_and_strides(size, stride);
  } else if (self.sizes() != size) { // else the strides stay as they are
    implementation->set_sizes_contiguous(size);
  }
  grow_storage(self);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_nothing(at::Tensor& self) {
  const auto nothing = at::detail::empty_generic(
      {0}, allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), self.scalar_type(), std::nullopt);
  return set_storage(self, nothing.storage(), 0, {0}, {});
}

void copy_to_host(const at::Tensor& target, const at::Tensor& source) {
  read_on_host();
  if (is_known(source)) {
    target.copy_(host_view(source));
  } else if (!is_float(source)) {
    refuse("values that depend on real data were copied to the host (" + in_words(source) + ")");
  } else {
    fill_host(target);
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (self.is_same(source)) {
    return self;
  }
  if (self.is_cpu()) {
    copy_to_host(self, source);
    return self;
  }
  TORCH_CHECK(self.is_cuda() && (source.is_cuda() || source.is_cpu()), "a paper GPU cannot copy from ", source.device(), " to ", self.device());
  // Raises where the sizes do not fit.
  const auto expanded = source.expand(self.sizes());
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, source);
  const bool known = may_be_known(self) && (source.is_cpu() ? !was_filled(source) : is_known(source));
  if (!known) {
    write_unknown(self);
  } else if (source.is_cpu()) {
    write_known(self, expanded, id_of_host_values(expanded));
  } else {
    write_known(self, host_view(source).expand(self.sizes()), mix(values_id(source), layout_id(expanded)));
  }
  return self;
}

void copy_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const std::vector<IValue> arguments(stack->end() - 3, stack->end());
  stack->erase(stack->end() - 3, stack->end());
  at::Tensor self = arguments[0].toTensor();
  copy_(self, arguments[1].toTensor(), false);
  stack->emplace_back(self);
  record_operator(op, signature_of(operator_of(op), arguments), arguments, {IValue(self)});
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::Tensor written = target;
  return copy_(written, self, non_blocking);
}

at::Scalar read_scalar(const at::Tensor& self) {
  read_on_host();
  if (is_known(self)) {
    return host_view(self).item();
  }
  if (is_float(self)) {
    note("a float that depends on data was read and answered with 1.0");
    return {1.0};
  }
  refuse(
      self.scalar_type() == at::kBool
          ? "a condition that depends on real data was read"
          : "an integer that depends on real data was read (" + in_words(self) + ")");
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) {
    return false;
  }
  read_on_host();
  if (!is_known(self) || !is_known(other)) {
    refuse("two tensors that depend on real data were compared (torch.equal)");
  }
  return host_view(self).equal(host_view(other));
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  if (!is_known(mask)) {
    refuse("a mask that depends on real data selects elements; how many is not known");
  }
  const auto chosen = host_view(mask).expand(at::infer_size(self.sizes(), mask.sizes()));
  if (is_known(self)) {
    const auto values = host_view(self).masked_select(host_view(mask));
    auto selected = new_tensor(values.sizes(), values.strides(), self.scalar_type());
    write_known(selected, values, new_id());
    return selected;
  }
  return new_tensor({chosen.sum().item<int64_t>()}, {1}, self.scalar_type());
}

// Training that goes well has finite numbers: that is what the step under test is taken to see.
at::Tensor test_floats(const at::Tensor& self, const char* name, at::Tensor (*test)(const at::Tensor&), bool if_finite) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor flags = at::empty_like(self, self.options().dtype(at::kBool));
  if (is_known(self)) {
    write_known(flags, test(host_view(self)), new_id());
  } else if (may_be_known(flags)) {
    note(std::string("floats that depend on data were tested and taken to be finite (") + name + ")");
    write_known(flags, at::full({}, if_finite, at::TensorOptions().dtype(at::kBool)).expand(self.sizes()), new_id());
  }
  return flags;
}

at::Tensor isfinite(const at::Tensor& self) { return test_floats(self, "isfinite", &at::isfinite, true); }
at::Tensor isnan(const at::Tensor& self) { return test_floats(self, "isnan", &at::isnan, false); }
at::Tensor isinf(const at::Tensor& self) { return test_floats(self, "isinf", &at::isinf, false); }

void assert_async(const at::Tensor& self) {
  if (is_known(self)) {
    TORCH_CHECK(host_view(self).is_nonzero(), "torch._assert_async: the assertion failed");
    return;
  }
  note("an assertion about values that depend on data was taken to hold");
}

void assert_async_with_message(const at::Tensor& self, c10::string_view message) {
  if (is_known(self)) {
    TORCH_CHECK(host_view(self).is_nonzero(), message);
    return;
  }
  note("an assertion about values that depend on data was taken to hold");
}

void record_stream(at::Tensor&, at::Stream) {}

// A CPU build decomposes this one where a GPU has a kernel: the normalised rows and, in float32, one factor a row.
std::tuple<at::Tensor, at::Tensor> fused_rms_norm(
    const at::Tensor& input, at::IntArrayRef normalized_shape, const std::optional<at::Tensor>&, std::optional<double>) {
  at::DimVector sizes(input.sizes());
  for (size_t i = 0; i < normalized_shape.size(); ++i) {
    sizes[sizes.size() - 1 - i] = 1;
  }
  const auto type = input.scalar_type();
  const auto factor = type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
  const auto dense = c10::contiguous_strides(input.sizes());
  return {new_tensor(input.sizes(), dense, type), empty(sizes, factor, {}, input.device(), {}, {})};
}

struct IgnoreWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

using Registrations = std::vector<c10::RegistrationHandleRAII>;

Registrations& registrations() {
  static auto* all = new Registrations(); // never undone: torch may be gone when static objects are destroyed
  return *all;
}

void install(const char* name, const char* overload, c10::KernelFunction kernel) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (!dispatcher.findSchema({name, overload})) {
    return; // another version of torch
  }
  registrations().push_back(dispatcher.registerImpl(
      {name, overload}, c10::DispatchKey::CUDA, std::move(kernel), std::nullopt, nullptr, "regbot paper GPU"));
}

template <class Function> void install_own(const char* name, const char* overload, Function* function) {
  install(name, overload, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}

// A kernel of our own that is recorded as the boxed ones are, on the GPU of its tensors.
struct Recorded final : c10::OperatorKernel {
  explicit Recorded(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const std::vector<IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    const c10::OptionalDeviceGuard on_device(device_of(arguments));
    kernel_.callBoxed(op, keys, stack);
    const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    record_operator(op, signature_of(operator_of(op), arguments), arguments, {stack->end() - results, stack->end()});
  }

 private:
  c10::KernelFunction kernel_;
};

template <class Function> void install_recorded(const char* name, const char* overload, Function* function) {
  auto kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
  install(name, overload, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Recorded>(std::move(kernel))));
}

c10::KernelFunction boxed_kernel() { return c10::KernelFunction::makeFromBoxedFunction<&boxed>(); }

// Whether a GPU runs the operator in one kernel. A CUDA build has registered them, and they would call the driver. A CPU
// build decomposes those named here (native_functions.yaml of torch 2.13: a CUDA kernel beside a composite one).
bool has_gpu_kernel(const c10::OperatorHandle& op) {
  static const std::set<std::string> names{
      "aten::_chunk_cat", "aten::_grouped_mm", "aten::addr", "aten::convolution_backward", "aten::linalg__powsum",
      "aten::mish_backward", "aten::native_group_norm", "aten::native_layer_norm", "aten::silu_backward"};
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
    return true;
  }
  const auto& name = op.operator_name();
  if (name.name == "aten::all" || name.name == "aten::any") {
    return name.overload_name == "dims_out";
  }
  if (name.name == "aten::split_with_sizes_copy") {
    return name.overload_name == "out";
  }
  return names.count(name.name) != 0 || name.name.rfind("aten::_foreach_", 0) == 0;
}

using ViewFunction = at::Tensor(const at::Tensor&, at::IntArrayRef);
using AliasFunction = at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef);

} // namespace

void install_kernels() {
  lock_while_forking(kept_mutex);
  lock_while_forking(filled_mutex);
  IgnoreWarnings quiet; // CUDA's kernels are replaced on purpose
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.name.rfind("aten::", 0) == 0 && has_gpu_kernel(*op)) {
      registrations().push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::CUDA, boxed_kernel(), std::nullopt, nullptr, "regbot paper GPU"));
    }
  }
  registrations().push_back(dispatcher.registerFallback(c10::DispatchKey::CUDA, boxed_kernel(), "regbot paper GPU"));
  install_own("aten::empty", "memory_format", &empty);
  install_own("aten::empty_strided", "", &empty_strided);
  install_own("aten::resize_", "", &resize_);
  install_own("aten::set_", "source_Storage_storage_offset", &set_storage);
  install_own("aten::set_", "source_Tensor", &set_tensor);
  install_own("aten::set_", "source_Storage", &set_whole);
  install("aten::copy_", "", c10::KernelFunction::makeFromBoxedFunction<&copy_boxed>());
  install_own("aten::_copy_from", "", &copy_from);
  install_own("aten::_local_scalar_dense", "", &read_scalar);
  install_own("aten::set_", "", &set_nothing);
  install_own("aten::is_set_to", "", &at::native::is_set_to);
  install_own("aten::record_stream", "", &record_stream);
  install_recorded("aten::equal", "", &equal);
  install_recorded("aten::masked_select", "", &masked_select);
  install_recorded("aten::isfinite", "", &isfinite);
  install_recorded("aten::isnan", "", &isnan);
  install_recorded("aten::isinf", "", &isinf);
  install_recorded("aten::_assert_async", "", &assert_async);
  install_recorded("aten::_assert_async", "msg", &assert_async_with_message);
  install_recorded("aten::_fused_rms_norm", "", &fused_rms_norm);
  // Views need no table: torch's own functions look at nothing but metadata.
  install_recorded("aten::as_strided", "", &at::native::as_strided_tensorimpl);
  install_recorded("aten::_reshape_alias", "", static_cast<AliasFunction*>(&at::native::_reshape_alias));
  install_recorded("aten::view", "", static_cast<ViewFunction*>(&at::native::view));
  install_recorded("aten::unfold", "", &at::native::unfold);
  install_recorded("aten::view_as_real", "", &at::native::view_as_real);
  install_recorded("aten::view_as_complex", "", &at::native::view_as_complex);
}

} // namespace regbot::paper
