// Operators with kernels of their own, and the registration of all kernels.
#include "kernels.h"

#include "infinity.h"
#include "memory.h"
#include "positive.h"
#include "program.h"
#include "python.h"
#include "shapes.h"
#include "values.h"

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

#include <set>

namespace regbot::paper {
namespace {

using c10::IValue;
using torch::jit::Stack;

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
  if (self.sizes() != size) {  // with equal sizes, the strides must not change
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    grow_storage(self);
  }
  if (format.has_value()) {
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* implementation = self.unsafeGetTensorImpl();
  implementation->set_storage_offset(offset);
  if (stride.data() != nullptr) {
    implementation->set_sizes_and_strides(size, stride);
  } else if (self.sizes() != size) {  // with equal sizes, the strides must not change
    implementation->set_sizes_contiguous(size);
  }
  grow_storage(self);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_empty_storage(at::Tensor& self) {
  const auto empty_tensor = at::detail::empty_generic(
      {0}, allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), self.scalar_type(), std::nullopt);
  return set_storage(self, empty_tensor.storage(), 0, {0}, {});
}

// Copy to the host tensor `target`. Unknown floats are answered with ones, and other unknown values are refused.
void copy_to_host(const at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  wait_on_host(non_blocking ? "copy" : "read");
  if (is_known(source)) {
    target.copy_(host_view(source));
  } else if (!is_float(source)) {
    refuse("values that depend on real data were copied to the host (" + dtype_and_sizes(source) + ")");
  } else {
    fill_host(target);
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (self.is_same(source)) {
    return self;
  }
  if (self.is_cpu()) {
    copy_to_host(self, source, non_blocking);
    return self;
  }
  TORCH_CHECK(
      self.is_cuda() && (source.is_cuda() || source.is_cpu()), "a paper GPU cannot copy from ", source.device(), " to ",
      self.device());
  if (source.is_cpu() && !non_blocking) {
    wait_on_host("synchronize");  // CUDA copies from the host in order, and torch waits for the copy
  }
  // This throws if the sizes do not fit.
  const auto expanded = source.expand(self.sizes());
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, source);
  const bool known = may_be_known(self) && (source.is_cpu() ? !was_filled(source) : is_known(source));
  if (!known) {
    write_unknown(self);
    copy_positive_floats(self, source);
    copy_infinite_floats(self, source);
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
  copy_(self, arguments[1].toTensor(), arguments[2].toBool());
  stack->emplace_back(self);
  const auto& info = operator_of(op);
  record_operator(op, info, signature_of(info, arguments), arguments, {IValue(self)});
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::Tensor result = target;
  return copy_(result, self, non_blocking);
}

// The kernel behind .item(). An unknown float is answered with 1.0. Other unknown values are refused.
at::Scalar read_scalar(const at::Tensor& self) {
  wait_on_host("read");
  if (is_known(self)) {
    return host_view(self).item();
  }
  if (is_float(self)) {
    note("value", "a float that depends on data was read and answered with 1.0");
    return {1.0};
  }
  refuse(
      self.scalar_type() == at::kBool
          ? "a condition that depends on real data was read"
          : "an integer that depends on real data was read (" + dtype_and_sizes(self) + ")");
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) {
    return false;
  }
  wait_on_host("read");
  if (!is_known(self) || !is_known(other)) {
    refuse("two tensors that depend on real data were compared (torch.equal)");
  }
  return host_view(self).equal(host_view(other));
}

// Return the selected elements. Their number follows from the mask, so an unknown mask is refused.
at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  wait_on_host("size");
  if (!is_known(mask)) {
    refuse("a mask that depends on real data selects elements; their number is not known");
  }
  const auto expanded_mask = host_view(mask).expand(at::infer_size(self.sizes(), mask.sizes()));
  if (is_known(self)) {
    const auto values = host_view(self).masked_select(host_view(mask));
    auto selected = new_tensor(values.sizes(), values.strides(), self.scalar_type());
    write_known(selected, values, new_id());
    return selected;
  }
  return new_tensor({expanded_mask.sum().item<int64_t>()}, {1}, self.scalar_type());
}

// Record the assumption that the floats of `tested` are finite. The flags of several floats can select some of the
// floats, and so decide a size. The flag of a single float cannot.
void note_finite(const at::Tensor& tested, const char* name) {
  const bool is_single = tested.numel() == 1;
  const std::string subject = is_single ? "a float that depends on data was" : "floats that depend on data were";
  note(is_single ? "finite" : "value", subject + " tested and taken to be finite (" + name + ")");
}

// Return the flags of a test such as isnan. Unknown floats are assumed to be finite, and get the flag `if_finite`. The
// flags of a mask that may have infinities are unknown.
at::Tensor test_floats(
    const at::Tensor& self, const char* name, at::Tensor (*test)(const at::Tensor&), bool if_finite) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor flags = at::empty_like(self, self.options().dtype(at::kBool));
  if (is_known(self)) {
    write_known(flags, test(host_view(self)), new_id());
  } else if (may_be_known(flags) && !may_be_infinite(self)) {
    note_finite(self, name);
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
  note("assertion", "an assertion about values that depend on data was taken to hold");
}

void assert_async_with_message(const at::Tensor& self, c10::string_view message) {
  if (is_known(self)) {
    TORCH_CHECK(host_view(self).is_nonzero(), message);
    return;
  }
  note("assertion", "an assertion about values that depend on data was taken to hold");
}

void record_stream(at::Tensor&, at::Stream) {}

// Return the normalised rows and one factor per row, which is float32 for half precision. A GPU has a kernel for this
// operator, while a CPU build of torch decomposes it.
std::tuple<at::Tensor, at::Tensor> fused_rms_norm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const std::optional<at::Tensor>&,
    std::optional<double>) {
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
  static auto* all = new Registrations();  // never destroyed: torch may be unloaded before static objects are
  return *all;
}

// Register a kernel for an operator on the paper GPU.
void install(const char* name, const char* overload, c10::KernelFunction kernel) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (!dispatcher.findSchema({name, overload})) {
    return;  // this version of torch does not have the operator
  }
  registrations().push_back(dispatcher.registerImpl(
      {name, overload}, c10::DispatchKey::CUDA, std::move(kernel), std::nullopt, nullptr, "regbot paper GPU"));
}

// Register one of the functions above for an operator that is no part of the recorded program.
template <class Function>
void install_own(const char* name, const char* overload, Function* function) {
  install(name, overload, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}

// Runs one of the kernels above on the GPU of its tensors and records the operator, in the same way as run_on_paper.
struct RecordedKernel final : c10::OperatorKernel {
  explicit RecordedKernel(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const std::vector<IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    const c10::OptionalDeviceGuard on_device(device_of(arguments));
    kernel_.callBoxed(op, keys, stack);
    const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    const auto& info = operator_of(op);
    record_operator(op, info, signature_of(info, arguments), arguments, {stack->end() - results, stack->end()});
  }

 private:
  c10::KernelFunction kernel_;
};

// Register a function for an operator whose calls are recorded.
template <class Function>
void install_recorded(const char* name, const char* overload, Function* function) {
  auto kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
  install(
      name, overload, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RecordedKernel>(std::move(kernel))));
}

c10::KernelFunction boxed_kernel() { return c10::KernelFunction::makeFromBoxedFunction<&run_on_paper>(); }

// Whether torch has a CUDA kernel for the operator. In a CUDA build, such kernels are registered, and the paper GPU
// replaces them. In a CPU build they are not registered, and torch would decompose the operators that are named here.
// (In native_functions.yaml of torch 2.13, they have both a CUDA kernel and a composite kernel.)
bool has_gpu_kernel(const c10::OperatorHandle& op) {
  static const std::set<std::string> names{
      "aten::_chunk_cat",           "aten::_grouped_mm",       "aten::addr",
      "aten::convolution_backward", "aten::linalg__powsum",    "aten::mish_backward",
      "aten::native_group_norm",    "aten::native_layer_norm", "aten::silu_backward"};
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

}  // namespace

void install_kernels() {
  install_values();
  IgnoreWarnings ignore_warnings;  // about replacing CUDA's kernels, which is done on purpose
  const c10::WarningUtils::WarningHandlerGuard guard(&ignore_warnings);
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
  install_own("aten::set_", "source_Storage", &set_whole_storage);
  install("aten::copy_", "", c10::KernelFunction::makeFromBoxedFunction<&copy_boxed>());
  install_own("aten::_copy_from", "", &copy_from);
  install_own("aten::_local_scalar_dense", "", &read_scalar);
  install_own("aten::set_", "", &set_empty_storage);
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
  // Views need no table of shapes, because torch's own functions for them read only metadata.
  install_recorded("aten::as_strided", "", &at::native::as_strided_tensorimpl);
  install_recorded("aten::_reshape_alias", "", static_cast<AliasFunction*>(&at::native::_reshape_alias));
  install_recorded("aten::view", "", static_cast<ViewFunction*>(&at::native::view));
  install_recorded("aten::unfold", "", &at::native::unfold);
  install_recorded("aten::view_as_real", "", &at::native::view_as_real);
  install_recorded("aten::view_as_complex", "", &at::native::view_as_complex);
}

}  // namespace regbot::paper
