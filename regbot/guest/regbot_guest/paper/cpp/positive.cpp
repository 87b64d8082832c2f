#include "positive.h"

#include "memory.h"
#include "python.h"
#include "values.h"

#include <set>

namespace regbot::paper {
namespace {

// Whether all values of a tensor are positive. torch passes a number as a host tensor with one element.
bool is_positive(const at::Tensor& tensor) {
  if (!is_on_paper(tensor)) {
    return tensor.defined() && tensor.is_cpu() && tensor.numel() == 1 && tensor.item<double>() > 0;
  }
  const Block* block = block_of(tensor);
  return block != nullptr && block->is_positive && !tensor.is_neg();
}

bool is_positive_number(const c10::IValue& value) {
  return (value.isDouble() && value.toDouble() > 0) || (value.isInt() && value.toInt() > 0);
}

// Whether the new results of the operator are positive: softmax and sigmoid of the scores of a router, and selections,
// sums, products and quotients of positive floats.
bool computes_positive_floats(const Operator& info, const std::vector<c10::IValue>& arguments) {
  static const std::set<std::string> scores{"aten::_softmax", "aten::sigmoid"};
  static const std::set<std::string> selections{"aten::gather", "aten::topk", "aten::sum"};
  static const std::set<std::string> arithmetic{"aten::add", "aten::mul", "aten::div"};
  if (scores.count(info.name) != 0) {
    return is_score_of_experts(arguments[0].toTensor());
  }
  if (selections.count(info.name) != 0) {
    return is_positive(arguments[0].toTensor());
  }
  if (arithmetic.count(info.name) == 0) {
    return false;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (argument.isTensor() ? info.is_read[i] && !is_positive(argument.toTensor()) : !is_positive_number(argument)) {
      return false;
    }
  }
  return true;
}

void mark_positive(const at::Tensor& tensor) {
  Block* block = is_on_paper(tensor) && tensor.is_floating_point() ? block_of(tensor) : nullptr;
  if (block != nullptr && covers_storage(tensor)) {
    block->is_positive = true;
  }
}

}  // namespace

void copy_positive_floats(const at::Tensor& target, const at::Tensor& source) {
  if (is_on_paper(source) && is_positive(source)) {
    mark_positive(target);
  }
}

void mark_positive_floats(
    const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results) {
  if (!computes_positive_floats(info, arguments)) {
    return;
  }
  for (const auto& result : results) {
    visit_tensors(result, mark_positive);
  }
}

void compare_with_zero(
    const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results) {
  const bool is_inequality = info.name == "aten::ne" || info.name == "aten::gt";
  if ((info.name != "aten::eq" && !is_inequality) || !arguments[1].isScalar() || results.size() != 1) {
    return;
  }
  const auto& floats = arguments[0].toTensor();
  const auto& flags = results[0].toTensor();
  if (arguments[1].toScalar().to<double>() != 0 || !is_on_paper(floats) || !is_float(floats) || !is_positive(floats) ||
      flags.scalar_type() != at::kBool || !may_be_known(flags)) {
    return;
  }
  note("value", "positive floats that depend on data, such as scores of a softmax, were taken not to be zero");
  write_known(flags, at::full({}, is_inequality, at::TensorOptions().dtype(at::kBool)).expand(flags.sizes()), new_id());
}

}  // namespace regbot::paper
