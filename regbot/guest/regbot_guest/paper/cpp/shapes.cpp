#include "shapes.h"

#include "infinity.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <c10/core/DefaultDtype.h>

#include <mutex>
#include <set>
#include <unordered_map>

namespace regbot::paper {
namespace {

std::mutex table_mutex;
std::unordered_map<std::string, std::shared_ptr<ShapeEntry>> table;
std::unordered_map<const c10::FunctionSchema*, std::shared_ptr<Operator>> known_operators;

template <class T>
void append_bytes(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_tensor_metadata(std::string& text, const at::Tensor& tensor, bool with_offset) {
  if (!tensor.defined()) {
    text.push_back('u');
    return;
  }
  text.push_back('t');
  append_bytes(text, tensor.scalar_type());
  append_bytes(text, tensor.device().type());
  append_bytes(text, tensor.unsafeGetTensorImpl()->is_wrapped_number());
  append_bytes(text, tensor.dim());
  for (const int64_t size : tensor.sizes()) {
    append_bytes(text, size);
  }
  for (const int64_t stride : tensor.strides()) {
    append_bytes(text, stride);
  }
  if (with_offset) {
    append_bytes(text, tensor.storage_offset());
  }
}

// Append a value to `text`, after a letter for its type. Return false if the type of the value is not supported.
bool append_value(std::string& text, const c10::IValue& value, bool with_offset) {
  if (value.isTensor()) {
    append_tensor_metadata(text, value.toTensor(), with_offset);
  } else if (value.isNone()) {
    text.push_back('n');
  } else if (value.isInt()) {
    text.push_back('i');
    append_bytes(text, value.toInt());
  } else if (value.isDouble()) {
    text.push_back('d');
    append_bytes(text, value.toDouble());
  } else if (value.isComplexDouble()) {
    text.push_back('c');
    append_bytes(text, value.toComplexDouble());
  } else if (value.isBool()) {
    text.push_back(value.toBool() ? 'y' : 'o');
  } else if (value.isDevice()) {
    text.push_back('D');
    append_bytes(text, value.toDevice().type());
  } else if (value.isString()) {
    text.push_back('s');
    text.append(value.toStringRef()).push_back('\0');
  } else if (value.isGenerator()) {
    text.push_back('g');
  } else if (value.isIntList()) {
    text.push_back('I');
    append_bytes(text, value.toIntList().size());
    for (const int64_t item : value.toIntList()) {
      append_bytes(text, item);
    }
    text.push_back(';');
  } else if (value.isDoubleList()) {
    text.push_back('F');
    append_bytes(text, value.toDoubleList().size());
    for (const double item : value.toDoubleList()) {
      append_bytes(text, item);
    }
    text.push_back(';');
  } else if (value.isBoolList()) {
    text.push_back('B');
    for (const bool item : value.toBoolList()) {
      text.push_back(item ? 'y' : 'o');
    }
    text.push_back(';');
  } else if (value.isTensorList()) {
    text.push_back('T');
    append_bytes(text, value.toTensorList().size());
    for (const at::Tensor& tensor : value.toTensorList()) {
      append_tensor_metadata(text, tensor, with_offset);
    }
    text.push_back(';');
  } else if (value.isOptionalTensorList()) {
    text.push_back('O');
    append_bytes(text, value.toOptionalTensorList().size());
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      append_tensor_metadata(text, tensor.value_or(at::Tensor()), with_offset);
    }
    text.push_back(';');
  } else if (value.isList()) {
    text.push_back('L');
    append_bytes(text, value.toListRef().size());
    for (const c10::IValue& item : value.toListRef()) {
      if (!append_value(text, item, with_offset)) {
        return false;
      }
    }
    text.push_back(';');
  } else {
    return false;
  }
  return true;
}

// Whether an operator overwrites an argument without reading the argument's earlier values.
bool only_writes(const std::string& name) {
  static const std::set<std::string> names{"aten::zero_",          "aten::fill_",          "aten::copy_",
                                           "aten::_foreach_zero_", "aten::_foreach_copy_", "aten::_cummax_helper",
                                           "aten::_cummin_helper"};
  return names.count(name) != 0;
}

// Whether an operator reads the shape and dtype of a tensor, but not its values.
bool reads_metadata_only(const std::string& name) {
  static const std::set<std::string> names{"aten::empty_like", "aten::zeros_like", "aten::ones_like",
                                           "aten::full_like",  "aten::new_empty",  "aten::new_empty_strided",
                                           "aten::new_zeros",  "aten::new_ones",   "aten::new_full"};
  return names.count(name) != 0;
}

// Whether an operator launches a kernel. Views do not, and neither do operators that only allocate or change metadata.
bool launches_a_kernel(const Operator& info) {
  static const std::set<std::string> metadata{"aten::empty",      "aten::empty_strided", "aten::set_",
                                              "aten::resize_",    "aten::record_stream", "aten::_local_scalar_dense",
                                              "aten::empty_like", "aten::new_empty",     "aten::new_empty_strided"};
  return !info.is_view && metadata.count(info.name) == 0;
}

// Read the properties of an operator from its schema and tags.
std::shared_ptr<Operator> describe_operator(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  auto info = std::make_shared<Operator>();
  info->name = schema.name();
  info->keeps_infinities = keeps_infinities(info->name);
  info->draws_random_values = op.hasTag(at::Tag::nondeterministic_seeded);
  info->shape_depends_on_values = op.hasTag(at::Tag::dynamic_output_shape);
  info->offset_is_absolute = info->name == "aten::as_strided" || info->name == "aten::as_strided_";
  for (const auto& argument : schema.arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    info->is_written.push_back(written);
    info->is_read.push_back(
        !reads_metadata_only(info->name) && !argument.is_out() && !(written && only_writes(info->name)));
  }
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    int source = -1;
    for (size_t i = 0; alias != nullptr && i < schema.arguments().size(); ++i) {
      const auto* other = schema.arguments()[i].alias_info();
      for (const auto& name : alias->beforeSets()) {
        if (other != nullptr && other->beforeSets().count(name) != 0) {
          source = static_cast<int>(i);
        }
      }
    }
    info->source.push_back(source);
    info->result_is_written.push_back(alias != nullptr && alias->isWrite());
    info->is_view = info->is_view || (alias != nullptr && !alias->isWrite());
  }
  info->launches_a_kernel = launches_a_kernel(*info);
  info->formula = flop_formula_of(info->name);
  return info;
}

int64_t offset_bytes(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.dtype().itemsize());
}

// Describe a tensor that the shape function returned. If it is a view, it is a view of `base`, which is argument number
// `source`. Otherwise `source` is -1.
Result describe_tensor(const at::Tensor& tensor, const at::Tensor& base, int source) {
  Result result;
  if (!tensor.defined()) {
    result.kind = Result::Kind::undefined;
    return result;
  }
  result.kind = source >= 0 ? Result::Kind::view : tensor.is_cpu() ? Result::Kind::host : Result::Kind::fresh;
  result.argument = source >= 0 ? static_cast<size_t>(source) : 0;
  result.sizes = at::DimVector(tensor.sizes());
  result.strides = at::DimVector(tensor.strides());
  result.offset = offset_bytes(tensor) - (base.defined() ? offset_bytes(base) : 0);
  result.dtype = tensor.scalar_type();
  return result;
}

// Describe `value`, result number `index` of the shape function.
Result describe_result(
    const c10::IValue& value, const std::vector<c10::IValue>& meta_arguments, const Operator& info, size_t index) {
  const int source = info.source[index];
  Result result;
  if (info.result_is_written[index] && source >= 0) {
    result.kind = Result::Kind::argument;
    result.argument = static_cast<size_t>(source);
    return result;
  }
  const at::Tensor base =
      source >= 0 && meta_arguments[source].isTensor() ? meta_arguments[source].toTensor() : at::Tensor();
  if (value.isTensor()) {
    return describe_tensor(value.toTensor(), base, source);
  }
  if (value.isTensorList()) {
    result.kind = Result::Kind::list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      result.items.push_back(describe_tensor(tensor, base, base.defined() ? source : -1));
    }
    return result;
  }
  result.value = value;
  return result;
}

void resize_to(const at::Tensor& tensor, const Result& result) {
  if (tensor.sizes() == result.sizes) {
    return;
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes, result.strides);
  grow_storage(tensor);
}

// Create one result of a call with `arguments`.
c10::IValue make_result(const Result& result, const std::vector<c10::IValue>& arguments) {
  switch (result.kind) {
    case Result::Kind::argument: {
      return arguments[result.argument];
    }
    case Result::Kind::view: {
      const at::Tensor& base = arguments[result.argument].toTensor();
      auto view = at::detail::make_tensor<at::TensorImpl>(
          at::TensorImpl::VIEW, at::Storage(base.storage()), base.key_set(), c10::scalarTypeToTypeMeta(result.dtype));
      auto* implementation = view.unsafeGetTensorImpl();
      const auto itemsize = static_cast<int64_t>(c10::elementSize(result.dtype));
      implementation->set_storage_offset((offset_bytes(base) + result.offset) / itemsize);
      implementation->set_sizes_and_strides(result.sizes, result.strides);
      return view;
    }
    case Result::Kind::fresh:
      return new_tensor(result.sizes, result.strides, result.dtype);
    case Result::Kind::host:
      return at::empty_strided(result.sizes, result.strides, at::TensorOptions().dtype(result.dtype));
    case Result::Kind::list: {
      c10::List<at::Tensor> items;
      for (const auto& item : result.items) {
        items.push_back(make_result(item, arguments).toTensor());
      }
      return items;
    }
    case Result::Kind::undefined:
      return at::Tensor();
    case Result::Kind::other:
      return result.value;
  }
  return {};
}

}  // namespace

void install_shapes() { lock_while_forking(table_mutex); }

const Operator& operator_of(const c10::OperatorHandle& op) {
  const std::lock_guard<std::mutex> guard(table_mutex);
  auto& known = known_operators[&op.schema()];
  if (!known) {
    known = describe_operator(op);
  }
  return *known;
}

std::string signature_of(const Operator& info, const std::vector<c10::IValue>& arguments) {
  std::string text;
  append_bytes(text, c10::get_default_dtype_as_scalartype());  // decides the dtype of a quotient of integers
  for (const auto& argument : arguments) {
    if (!append_value(text, argument, info.offset_is_absolute)) {
      return "";
    }
  }
  return text;
}

at::Tensor meta_tensor_of(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;  // torch recognises a Python number only in a host tensor
  }
  auto meta_tensor = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  meta_tensor.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  return meta_tensor;
}

// Return the strides of an output that a pointwise operator resizes. The shape functions in Python would make the
// output contiguous.
at::DimVector pointwise_strides(
    const Operator& info, const std::vector<c10::IValue>& meta_arguments, const at::Tensor& output) {
  at::TensorIteratorConfig config;
  config.add_owned_output(at::Tensor()).check_all_same_dtype(false);
  config.declare_static_dtype_and_device(output.scalar_type(), output.device());
  for (size_t i = 0; i < meta_arguments.size(); ++i) {
    if (info.is_read[i] && meta_arguments[i].isTensor() && meta_arguments[i].toTensor().defined() &&
        meta_arguments[i].toTensor().is_meta()) {
      config.add_owned_const_input(meta_arguments[i].toTensor());
    }
  }
  const auto iterator = config.build();
  const auto& result = iterator.output();
  return at::DimVector(result.sizes() == output.sizes() ? result.strides() : output.strides());
}

std::shared_ptr<ShapeEntry> entry_of(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<c10::IValue>& arguments,
    const std::string& signature) {
  std::string key;
  if (!signature.empty()) {
    const void* schema = &op.schema();
    append_bytes(key, schema);
    key += signature;
    const std::lock_guard<std::mutex> guard(table_mutex);
    const auto position = table.find(key);
    if (position != table.end()) {
      return position->second;
    }
  }
  torch::jit::Stack stack;
  for (const auto& argument : arguments) {
    if (argument.isDevice()) {
      stack.emplace_back(argument.toDevice().is_cuda() ? c10::Device(c10::DeviceType::Meta) : argument.toDevice());
    } else if (argument.isGenerator()) {
      stack.emplace_back();
    } else {
      stack.push_back(map_tensors(argument, meta_tensor_of));
    }
  }
  const std::vector<c10::IValue> meta_arguments(stack.begin(), stack.end());
  op.callBoxed(stack);
  auto entry = std::make_shared<ShapeEntry>();
  for (size_t i = 0; i < stack.size(); ++i) {
    entry->results.push_back(describe_result(stack[i], meta_arguments, info, i));
  }
  for (size_t i = 0; i < meta_arguments.size(); ++i) {
    if (info.is_written[i]) {
      ResizedArgument resized{i, {}};
      visit_tensors(meta_arguments[i], [&](const at::Tensor& meta_tensor) {
        resized.tensors.push_back(describe_tensor(meta_tensor, at::Tensor(), -1));
        if (op.hasTag(at::Tag::pointwise) && !info.is_read[i] && meta_tensor.dim() > 1) {
          resized.tensors.back().strides = pointwise_strides(info, meta_arguments, meta_tensor);
        }
      });
      entry->resized.push_back(std::move(resized));
    }
  }
  if (!key.empty()) {
    const std::lock_guard<std::mutex> guard(table_mutex);
    table.emplace(std::move(key), entry);
  }
  return entry;
}

torch::jit::Stack make_results(const ShapeEntry& entry, const std::vector<c10::IValue>& arguments) {
  for (const auto& resized : entry.resized) {
    size_t position = 0;
    visit_tensors(arguments[resized.argument], [&](const at::Tensor& tensor) {
      const auto& result = resized.tensors.at(position++);
      if (is_on_paper(tensor)) {
        resize_to(tensor, result);
      }
    });
  }
  torch::jit::Stack results;
  for (const auto& result : entry.results) {
    results.push_back(make_result(result, arguments));
  }
  return results;
}

}  // namespace regbot::paper
