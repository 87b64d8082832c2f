// The shapes of operators' results. They are computed once for each combination of an operator and arguments.
//
// torch's kernels for the Meta key compute the shapes of every operator's results. Many of these kernels are written in
// Python and take 300 us or more. A step repeats the same operators on the same shapes, so a table caches the results.
#pragma once

#include "flops.h"
#include "memory.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

namespace regbot::paper {

// One value that an operator returns, described by its shape. It is an argument itself, a view of an argument, a new
// tensor on the GPU (`fresh`) or on the host, a list of tensors, an undefined tensor, or not a tensor (`other`).
struct Result {
  enum class Kind { argument, view, fresh, host, list, undefined, other };
  Kind kind = Kind::other;
  size_t argument = 0;  // index of the argument that is returned or viewed
  at::DimVector sizes;
  at::DimVector strides;
  int64_t offset = 0;  // of a view: bytes from the offset of the viewed argument
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<Result> items;  // the items of a list
  c10::IValue value;          // the result itself if it is not a tensor
};

// The values of one tensor that an operator created or wrote, with their id.
struct ComputedValue {
  at::Tensor value;
  uint64_t id;
  std::shared_ptr<Values> storage_values;  // set if the tensor covers its whole storage; `value` is then undefined
};

// The new sizes of an argument that an operator writes and may resize, such as out=.
struct ResizedArgument {
  size_t argument;
  std::vector<Result> tensors;
};

// Entry of the table for one operator and one combination of arguments.
struct ShapeEntry {
  std::vector<Result> results;
  std::vector<ResizedArgument> resized;
  std::map<std::vector<uint64_t>, std::vector<ComputedValue>> computed;  // keys: the ids of the values of all arguments
};

// Properties of an operator that are the same for all calls.
struct Operator {
  std::string name;  // such as aten::add_
  bool is_view = false;
  bool draws_random_values = false;
  bool shape_depends_on_values = false;
  bool keeps_infinities = false;  // see infinity.h
  bool launches_a_kernel = false;
  FlopFormula formula;
  bool offset_is_absolute = false;  // true for as_strided, whose storage offset ignores the offset of its argument
  std::vector<bool> is_written;     // one item per argument
  std::vector<bool> is_read;        // one item per argument; false for a tensor that is only written
  std::vector<int> source;          // per result: index of the argument that is returned or viewed; -1 for a new tensor
  std::vector<bool> result_is_written;
};

void install_shapes();

const Operator& operator_of(const c10::OperatorHandle& op);

// Return the metadata of all arguments as text, or '' if an argument has an unsupported type.
std::string signature_of(const Operator& info, const std::vector<c10::IValue>& arguments);

// Return the entry of the table. If it is missing, compute it with the operator's kernel for the Meta key. Throws
// c10::NotImplementedError if torch has no such kernel for the operator.
std::shared_ptr<ShapeEntry> entry_of(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<c10::IValue>& arguments,
    const std::string& signature);

// Create the results that `entry` describes for a call with `arguments`.
torch::jit::Stack make_results(const ShapeEntry& entry, const std::vector<c10::IValue>& arguments);

// Return a meta tensor with the same metadata as `tensor`.
at::Tensor meta_tensor_of(const at::Tensor& tensor);

// Call `visit(tensor)` for all tensors in `value`.
template <class Visit>
void visit_tensors(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value() && tensor->defined()) {
        visit(*tensor);
      }
    }
  }
}

// Return `value` with every tensor in it replaced by `replace(tensor)`.
template <class Replace>
c10::IValue map_tensors(const c10::IValue& value, Replace&& replace) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(replace(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> items;
    for (const at::Tensor& tensor : value.toTensorList()) {
      items.push_back(tensor.defined() ? replace(tensor) : tensor);
    }
    return items;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> items;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      items.push_back(tensor.has_value() && tensor->defined() ? std::optional<at::Tensor>(replace(*tensor)) : tensor);
    }
    return items;
  }
  return value;
}

}  // namespace regbot::paper
