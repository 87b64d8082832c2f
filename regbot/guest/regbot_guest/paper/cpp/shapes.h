// What operators return, learnt once for each combination of arguments.
//
// torch knows the shape of every operator's result: the kernels of the Meta key compute them. Many of them are Python
// and take 300 us and more. A step repeats the same operators on the same shapes, so their answers are kept in a table.
#pragma once

#include "memory.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

namespace regbot::paper {

// One value that an operator returns.
struct Result {
  enum class Kind { argument, view, fresh, host, list, undefined, other };
  Kind kind = Kind::other;
  size_t argument = 0; // which argument is returned, or viewed
  at::DimVector sizes;
  at::DimVector strides;
  int64_t offset = 0; // of a view, in bytes from the start of the argument's own view
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<Result> items; // of a list
  c10::IValue value;         // of anything that is no tensor
};

// The values that an operator computed: of each tensor that it made or wrote, in order.
struct Computed {
  at::Tensor value;
  uint64_t id;
  std::shared_ptr<Values> whole; // where the tensor covers its storage; `value` is undefined then
};

// The sizes that an operator gives to an argument that it writes, such as out=.
struct Resized {
  size_t argument;
  std::vector<Result> tensors;
};

struct Entry {
  std::vector<Result> results;
  std::vector<Resized> resized;
  std::map<std::vector<uint64_t>, std::vector<Computed>> computed; // by the ids of the values of the arguments
};

// What is fixed about an operator.
struct Operator {
  std::string name; // aten::add_
  bool is_view = false;
  bool draws_random_values = false;
  bool shape_depends_on_values = false;
  bool offset_is_absolute = false;
  std::vector<bool> is_written;    // by argument
  std::vector<bool> is_read;       // by argument: a tensor that is only written is not
  std::vector<int> source;         // by result: the argument that it is or views, -1 where it is new
  std::vector<bool> result_is_written;
};

void install_shapes();

const Operator& operator_of(const c10::OperatorHandle& op);

// The metadata of all arguments; '' where an argument has a type that cannot be described.
std::string signature_of(const Operator& info, const std::vector<c10::IValue>& arguments);

// The table's entry, made by asking the Meta key where there is none yet. Throws c10::NotImplementedError where torch has
// no shape function for the operator.
std::shared_ptr<Entry> entry_of(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<c10::IValue>& arguments,
    const std::string& signature);

// The tensors that `entry` describes. `arguments` are those of this call.
torch::jit::Stack make_results(const Entry& entry, const std::vector<c10::IValue>& arguments);

// A tensor without values of the same metadata.
at::Tensor ghost_of(const at::Tensor& tensor);

// Calls `visit(tensor)` for all tensors in `value`.
template <class Visit> void for_each_tensor(const c10::IValue& value, Visit&& visit) {
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

// `value` with every tensor in it replaced by `replace(tensor)`.
template <class Replace> c10::IValue map_tensors(const c10::IValue& value, Replace&& replace) {
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

} // namespace regbot::paper
