// The kernel of almost every operator on the paper GPU.
//
// It returns tensors of the right shape. If all values that the operator reads are known, it also computes the values
// of these tensors. It refuses an operator that needs an unknown value; see python.h.
#include "kernels.h"

#include "infinity.h"
#include "memory.h"
#include "positive.h"
#include "program.h"
#include "python.h"
#include "shapes.h"
#include "values.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>

namespace regbot::paper {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Whether the operator's second argument is a list of indices, which may be masks.
bool takes_masks(const std::string& name) {
  static const std::set<std::string> names{"aten::index",         "aten::index_put",
                                           "aten::index_put_",    "aten::_index_put_impl_",
                                           "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return names.count(name) != 0;
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

// Replace every mask in `indices` with the positions that the mask selects. Refuse if a mask is unknown.
IValue replace_masks(const IValue& indices) {
  c10::List<std::optional<at::Tensor>> positions;
  for (const std::optional<at::Tensor>& index : indices.toOptionalTensorList()) {
    if (!index.has_value() || !index->defined() || !is_mask(*index)) {
      positions.push_back(index);
      continue;
    }
    if (is_on_paper(*index) && !is_known(*index)) {
      refuse("a mask that depends on real data selects rows; their number is not known");
    }
    const auto mask = is_on_paper(*index) ? host_view(*index) : *index;
    for (const auto& position : mask.nonzero().unbind(1)) {
      positions.push_back(meta_tensor_of(position.contiguous()));
    }
  }
  return positions;
}

// Whether the indices of an operator that takes_masks contain a mask.
bool has_mask(const std::vector<IValue>& arguments) {
  bool result = false;
  visit_tensors(arguments[1], [&](const at::Tensor& tensor) { result = result || is_mask(tensor); });
  return result;
}

// Whether such an operator fills its argument with one number from the host, for which no kernel needs positions.
bool fills_by_mask(const std::vector<IValue>& arguments) {
  return arguments.size() > 2 && arguments[2].isTensor() && arguments[2].toTensor().numel() == 1 &&
         arguments[2].toTensor().is_cpu();
}

// Whether the indices of such an operator contain a mask with unknown values.
bool has_unknown_mask(const std::vector<IValue>& arguments) {
  bool unknown = false;
  visit_tensors(arguments[1], [&](const at::Tensor& tensor) {
    unknown = unknown || (is_mask(tensor) && is_on_paper(tensor) && !is_known(tensor));
  });
  return unknown;
}

// Return the entry of an operator that only writes its arguments and creates no result. Return null for any other
// operator.
std::shared_ptr<ShapeEntry> entry_without_shapes(const Operator& info) {
  auto entry = std::make_shared<ShapeEntry>();
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

// Return new tensors on the paper GPU with the values of host tensors.
Stack copy_from_host(const Stack& values) {
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

// Whether the call states the size of its result, as repeat_interleave does with `output_size`.
bool has_output_size(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& name = op.schema().arguments()[i].name();
    if ((name == "output_size" || name == "size") && !arguments[i].isNone()) {
      return true;
    }
  }
  return false;
}

// Run an operator whose result shapes depend on values: on the host, or refuse it if the values are unknown.
Stack run_dynamic(const c10::OperatorHandle& op, const Operator& info, const std::vector<IValue>& arguments) {
  wait_on_host("size");
  if (reads_only_known_values(info, arguments)) {
    if (const auto run = run_on_host(op, info, arguments)) {
      return copy_from_host(run->results);
    }
    refuse(info.name + " has no kernel on a CPU, so the size of its result is not known");
  }
  refuse(info.name + " makes a tensor whose size depends on real data");
}

// Return the shapes of the operator's results. If torch has no shape function for the operator, refuse it, unless it
// only writes its arguments.
std::shared_ptr<ShapeEntry> shapes_of(
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
    const std::string message = error.msg();  // continues with a list of all backends
    refuse(
        info.name + " has no shape function in this torch, so it cannot run on a paper GPU: " +
        message.substr(0, message.find(". ")));
  }
}

// Check that all tensors are on the same GPU. Scalar tensors may be on the host.
void check_devices(const Operator& info, const std::vector<IValue>& arguments, c10::Device device) {
  static const std::set<std::string> exceptions{
      "aten::_pack_padded_sequence", "aten::_use_cudnn_ctc_loss", "aten::_cudnn_ctc_loss"};
  if (info.name.rfind("aten::", 0) != 0 || info.name.rfind("aten::_foreach_", 0) == 0 ||
      exceptions.count(info.name) != 0) {
    return;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == 1 && takes_masks(info.name)) {
      continue;  // indices may be on the host
    }
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) {
      const bool is_scalar = tensor.is_cpu() && tensor.dim() == 0;
      TORCH_CHECK(
          is_scalar || tensor.device() == device,
          "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ",
          tensor.device(), "! (when checking arguments of ", info.name, ")");
    });
  }
}

// Check that no tensor that the operator writes partially overlaps another argument.
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

// Increment the version counters of written tensors. Autograd expects the GPU's foreach kernels to do this.
void bump_versions(const Operator& info, const std::vector<IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_written[i]) {
      visit_tensors(arguments[i], [](const at::Tensor& tensor) {
        if (!tensor.is_inference()) {
          tensor.unsafeGetTensorImpl()->bump_version();
        }
      });
    }
  }
}

}  // namespace

c10::Device device_of(const std::vector<IValue>& arguments) {
  std::optional<c10::Device> device;
  for (const auto& argument : arguments) {
    visit_tensors(argument, [&](const at::Tensor& tensor) {
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

void run_on_paper(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
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
    record_operator(op, info, signature_of(info, arguments), arguments, results);
    std::move(results.begin(), results.end(), std::back_inserter(*stack));
    return;
  }
  const bool may_compute = !info.is_view && !info.draws_random_values && reads_only_known_values(info, arguments);
  // The arguments from which the shapes follow: as `arguments`, but with positions in place of known masks.
  std::vector<IValue> shape_arguments = arguments;
  const bool has_masks = takes_masks(info.name) && has_mask(arguments);
  // A CPU build of torch calls nonzero itself before index.Tensor_out.
  if (has_masks && !fills_by_mask(arguments) && op.schema().overload_name() != "Tensor_out") {
    wait_on_host("size");
  }
  const bool writes_by_mask = has_masks && info.name.find("put") != std::string::npos;
  if (has_masks && !(writes_by_mask && has_unknown_mask(arguments))) {
    shape_arguments[1] = replace_masks(arguments[1]);
  }
  const auto signature = signature_of(info, shape_arguments);
  std::shared_ptr<ShapeEntry> entry;
  if (writes_by_mask && has_unknown_mask(arguments)) {
    entry = entry_without_shapes(info);  // index_put writes its argument, whatever the mask selects
  } else {
    entry = shapes_of(op, info, shape_arguments, signature);
  }
  auto results = make_results(*entry, arguments);
  const bool is_computed = may_compute && results_may_be_known(*entry) &&
                           writes_only_what_may_be_known(info, arguments) &&
                           compute(op, info, arguments, entry, results, !has_masks && !signature.empty());
  if (!is_computed) {  // the results are unknown, except for the guesses below
    const bool has_infinities = has_infinite_argument(info, arguments);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (info.is_written[i]) {
        visit_tensors(arguments[i], write_unknown_anywhere);
      }
    }
    compare_with_infinity(info, arguments, results);
    compare_with_zero(info, arguments, results);
    if (has_infinities) {
      mark_infinite_floats(results);
    }
    mark_positive_floats(info, arguments, results);
    route(info.name, arguments, results);
  }
  if (info.name.rfind("aten::_foreach_", 0) == 0) {
    bump_versions(info, arguments);
  }
  record_operator(op, info, signature, arguments, results);
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

}  // namespace regbot::paper
