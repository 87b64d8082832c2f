#include "infinity.h"

#include "memory.h"
#include "python.h"
#include "values.h"

#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>

namespace regbot::paper {
namespace {

std::mutex infinite_values_mutex;
std::map<uint64_t, bool> infinite_values;  // by an id of values and layout: whether some values are infinite or NaN

constexpr size_t kMaxCached = 4096;

// Whether a value of a host tensor is infinite or NaN.
bool has_infinity(const at::Tensor& host) {
  if (host.numel() == 1 && !host.is_complex()) {
    return !std::isfinite(host.item<double>());  // faster, and numbers are passed as such tensors
  }
  return !at::isfinite(host).all().item<bool>();
}

// Whether a known tensor on the device has infinities. The answer is cached, because all layers add the same mask.
bool has_known_infinity(const at::Tensor& tensor) {
  const uint64_t id = mix(values_id(tensor), layout_id(tensor));
  {
    const std::lock_guard<std::mutex> guard(infinite_values_mutex);
    const auto cached = infinite_values.find(id);
    if (cached != infinite_values.end()) {
      return cached->second;
    }
  }
  const bool is_infinite = has_infinity(host_view(tensor));
  const std::lock_guard<std::mutex> guard(infinite_values_mutex);
  if (infinite_values.size() >= kMaxCached) {
    infinite_values.clear();
  }
  infinite_values[id] = is_infinite;
  return is_infinite;
}

// Whether some floats of `tensor` are infinite or NaN, or may be infinite if they are unknown.
bool contains_infinity(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_float(tensor) || tensor.numel() == 0) {
    return false;
  }
  if (!is_on_paper(tensor)) {
    return tensor.is_cpu() && !was_filled(tensor) && has_infinity(tensor);
  }
  return is_known(tensor) ? has_known_infinity(tensor) : may_be_infinite(tensor);
}

// Return the infinity, with its sign, if `value` is an infinite number or a known tensor with one infinite element.
std::optional<double> infinity_in(const c10::IValue& value) {
  double number = 0;
  if (value.isScalar() && value.toScalar().isFloatingPoint()) {
    number = value.toScalar().toDouble();
  } else if (value.isTensor() && value.toTensor().numel() == 1 && value.toTensor().is_floating_point()) {
    const auto& tensor = value.toTensor();
    if (is_on_paper(tensor) ? !is_known(tensor) : !tensor.is_cpu() || was_filled(tensor)) {
      return std::nullopt;
    }
    number = (is_on_paper(tensor) ? host_view(tensor) : tensor).item<double>();
  }
  return std::isinf(number) ? std::optional<double>(number) : std::nullopt;
}

// Whether `value` is a single unknown float, which is taken to be finite. Several floats, such as those of an attention
// mask, may contain infinities.
bool is_one_finite_float(const c10::IValue& value) {
  return value.isTensor() && is_on_paper(value.toTensor()) && is_float(value.toTensor()) &&
         value.toTensor().numel() == 1 && !is_known(value.toTensor()) && !may_be_infinite(value.toTensor());
}

}  // namespace

bool keeps_infinities(const std::string& operator_name) {
  static const std::set<std::string> names{
      "aten::fill",
      "aten::full",
      "aten::masked_fill",
      "aten::masked_scatter",
      "aten::where",
      "aten::index_fill",
      "aten::scatter",
      "aten::index_put",
      "aten::_index_put_impl",
      "aten::clone",
      "aten::_to_copy",
      "aten::constant_pad_nd",
      "aten::triu",
      "aten::tril",
      "aten::cat",
      "aten::stack",
      "aten::repeat",
      "aten::roll",
      "aten::flip",
      "aten::index",
      "aten::gather",
      "aten::index_select",
      "aten::add",
      "aten::sub",
      "aten::neg",
      "aten::mul",
      "aten::div",
  };
  const bool is_in_place = !operator_name.empty() && operator_name.back() == '_';
  return names.count(is_in_place ? operator_name.substr(0, operator_name.size() - 1) : operator_name) != 0;
}

bool has_infinite_argument(const Operator& info, const std::vector<c10::IValue>& arguments) {
  if (!info.keeps_infinities) {
    return false;
  }
  bool has_infinite = false;
  for (size_t i = 0; i < arguments.size() && !has_infinite; ++i) {
    if (arguments[i].isDouble()) {
      has_infinite = !std::isfinite(arguments[i].toDouble());
    } else if (info.is_read[i]) {
      visit_tensors(arguments[i], [&](const at::Tensor& tensor) { has_infinite |= contains_infinity(tensor); });
    }
  }
  return has_infinite;
}

void mark_infinite_floats(const torch::jit::Stack& results) {
  for (const auto& result : results) {
    visit_tensors(result, [](const at::Tensor& tensor) {
      Block* block = is_on_paper(tensor) && is_float(tensor) ? block_of(tensor) : nullptr;
      if (block != nullptr) {
        block->may_be_infinite = true;
      }
    });
  }
}

void copy_infinite_floats(const at::Tensor& target, const at::Tensor& source) {
  if (is_on_paper(target) && is_float(target) && contains_infinity(source)) {
    mark_infinite_floats({c10::IValue(target)});
  }
}

bool may_be_infinite(const at::Tensor& tensor) {
  const Block* block = block_of(tensor);
  return block != nullptr && block->may_be_infinite;
}

void install_infinity() { lock_while_forking(infinite_values_mutex); }

void compare_with_infinity(
    const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results) {
  static const std::map<std::string, std::pair<bool, bool>> answers{
      // Operator, and its results if a finite float on the left is compared with infinity and with minus infinity.
      {"aten::gt", {false, true}}, {"aten::ge", {false, true}},  {"aten::lt", {true, false}},
      {"aten::le", {true, false}}, {"aten::eq", {false, false}}, {"aten::ne", {true, true}},
  };
  const bool is_in_place = !info.name.empty() && info.name.back() == '_';
  const auto answer = answers.find(is_in_place ? info.name.substr(0, info.name.size() - 1) : info.name);
  if (answer == answers.end() || results.size() != 1 || !is_on_paper(results[0].toTensor())) {
    return;
  }
  const auto& result = results[0].toTensor();
  const auto right = infinity_in(arguments[1]);
  const auto left = infinity_in(arguments[0]);
  const auto [for_infinity, for_minus_infinity] = answer->second;
  bool flag = false;
  if (right.has_value() && is_one_finite_float(arguments[0])) {
    flag = *right > 0 ? for_infinity : for_minus_infinity;
  } else if (left.has_value() && is_one_finite_float(arguments[1])) {
    // `inf > x` is `x < inf`. Only eq and ne are the same from both sides.
    const bool is_symmetric = answer->first == "aten::eq" || answer->first == "aten::ne";
    flag = (*left > 0 ? for_infinity : for_minus_infinity) == is_symmetric;
  } else {
    return;
  }
  if (!may_be_known(result)) {
    return;
  }
  note("finite", "a float that depends on data was compared with infinity and taken to be finite");
  const auto value = at::full({}, flag, at::TensorOptions().dtype(at::kBool)).to(result.scalar_type());
  write_known(result, value.expand(result.sizes()), new_id());
}

}  // namespace regbot::paper
