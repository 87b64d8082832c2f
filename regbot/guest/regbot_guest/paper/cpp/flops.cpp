// The formulas are those of torch.utils.flop_counter: a product of [m, k] and [k, n] has 2 m n k FLOPs, a causal mask
// saves nothing, and pointwise operators have none. It has no formula for grouped products, whose FLOPs are those of
// the rows that belong to a group, and it reads the arguments of _flash_attention_forward, [batch, sequence, heads,
// width], in another order.
#include "flops.h"

#include "memory.h"
#include "shapes.h"

#include <array>
#include <map>
#include <set>

namespace regbot::paper {
namespace {

using c10::IValue;
using torch::jit::Stack;
using Arguments = std::vector<IValue>;

int64_t product_of(const at::Tensor& left, const at::Tensor& right) {
  const int64_t columns = right.dim() > 1 ? right.size(-1) : 1;
  return 2 * left.numel() * columns;  // [m, k] or [batch, m, k] times [k, n] or [batch, k, n]
}

// A product of the arguments with the numbers `First` and `First + 1`.
template <size_t First>
int64_t count_product(const c10::FunctionSchema&, const Arguments& arguments, const Stack&) {
  return product_of(arguments[First].toTensor(), arguments[First + 1].toTensor());
}

std::optional<at::Tensor> find_tensor(
    const c10::FunctionSchema& schema, const Arguments& arguments, std::initializer_list<const char*> names) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const char* name : names) {
      if (schema.arguments()[i].name() == name && arguments[i].isTensor() && arguments[i].toTensor().defined()) {
        return arguments[i].toTensor();
      }
    }
  }
  return std::nullopt;
}

// Return the known values of an integer tensor, or nothing.
std::vector<int64_t> known_integers(const std::optional<at::Tensor>& tensor) {
  if (!tensor || tensor->numel() == 0 || (is_on_paper(*tensor) ? !is_known(*tensor) : !tensor->is_cpu())) {
    return {};
  }
  const auto host = (is_on_paper(*tensor) ? host_view(*tensor) : *tensor).to(at::kLong).contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

// Groups of rows ([m, k] times [groups, k, n]), of columns, or of the inner dimension ([m, k] times [k, n]). `offs` has
// the end of each group; rows after the last end belong to no group.
int64_t count_grouped(const c10::FunctionSchema& schema, const Arguments& arguments, const Stack&) {
  const auto& left = arguments[0].toTensor();
  const auto& right = arguments[1].toTensor();
  const auto ends = known_integers(find_tensor(schema, arguments, {"offs"}));
  const int64_t inner = left.size(-1);
  if (left.dim() == 2 && right.dim() == 3) {
    return 2 * (ends.empty() ? left.size(0) : ends.back()) * inner * right.size(-1);
  }
  if (left.dim() == 3 && right.dim() == 2) {
    return 2 * left.size(1) * inner * (ends.empty() ? right.size(-1) : ends.back());
  }
  if (left.dim() == 2) {
    return 2 * left.size(0) * (ends.empty() ? inner : ends.back()) * right.size(-1);
  }
  return product_of(left, right);
}

struct AttentionSizes {
  int64_t batch_heads, queries, keys, width, value_width;

  // Scores, and the product of scores and values.
  int64_t forward() const { return 2 * batch_heads * queries * keys * (width + value_width); }
  // The scores again, the gradients of scores and values, and those of queries and keys.
  int64_t backward() const { return 2 * batch_heads * queries * keys * (3 * width + 2 * value_width); }
};

// Query, key and value are [batch, heads, sequence, width] and begin at the argument `First`.
template <size_t First>
AttentionSizes sizes_of(const Arguments& arguments) {
  const auto& query = arguments[First].toTensor();
  const auto& key = arguments[First + 1].toTensor();
  const auto& value = arguments[First + 2].toTensor();
  return {query.size(0) * query.size(1), query.size(2), key.size(2), query.size(3), value.size(3)};
}

int64_t count_attention(const c10::FunctionSchema&, const Arguments& arguments, const Stack&) {
  return sizes_of<0>(arguments).forward();
}

int64_t count_attention_backward(const c10::FunctionSchema&, const Arguments& arguments, const Stack&) {
  return sizes_of<1>(arguments).backward();
}

// Query, key and value are [batch, sequence, heads, width], or packed: [all tokens, heads, width] with the start of
// each sequence. If the starts are unknown, each sequence is as long as the longest.
std::vector<AttentionSizes> packed_sizes(const c10::FunctionSchema& schema, const Arguments& arguments, size_t first) {
  const auto& query = arguments[first].toTensor();
  const auto& key = arguments[first + 1].toTensor();
  const int64_t heads = query.size(-2);
  const int64_t width = query.size(-1);
  const int64_t value_width = arguments[first + 2].toTensor().size(-1);
  const auto starts = find_tensor(schema, arguments, {"cum_seq_q", "cu_seqlens_q"});
  const auto key_starts = find_tensor(schema, arguments, {"cum_seq_k", "cu_seqlens_k"});
  if (!starts || !key_starts) {
    return {{query.size(0) * heads, query.size(1), key.size(1), width, value_width}};
  }
  const auto query_ends = known_integers(starts);
  const auto key_ends = known_integers(key_starts);
  std::vector<AttentionSizes> sizes;
  for (size_t i = 0; i + 1 < static_cast<size_t>(starts->numel()); ++i) {
    const bool known = !query_ends.empty() && !key_ends.empty();
    const int64_t queries = known ? query_ends[i + 1] - query_ends[i] : query.size(-3);
    const int64_t keys = known ? key_ends[i + 1] - key_ends[i] : key.size(-3);
    sizes.push_back({heads, queries, keys, width, value_width});
  }
  return sizes;
}

int64_t count_packed(const c10::FunctionSchema& schema, const Arguments& arguments, const Stack&) {
  int64_t flops = 0;
  for (const auto& sizes : packed_sizes(schema, arguments, 0)) {
    flops += sizes.forward();
  }
  return flops;
}

int64_t count_packed_backward(const c10::FunctionSchema& schema, const Arguments& arguments, const Stack&) {
  int64_t flops = 0;
  for (const auto& sizes : packed_sizes(schema, arguments, 1)) {
    flops += sizes.backward();
  }
  return flops;
}

const std::map<std::string, FlopFormula>& formulas() {
  static const auto* all = new std::map<std::string, FlopFormula>{
      {"mm", {FlopClass::matmul, &count_product<0>}},
      {"_int_mm", {FlopClass::matmul, &count_product<0>}},
      {"_scaled_mm", {FlopClass::matmul, &count_product<0>}},
      {"_scaled_mm_v2", {FlopClass::matmul, &count_product<0>}},
      {"bmm", {FlopClass::matmul, &count_product<0>}},
      {"mv", {FlopClass::matmul, &count_product<0>}},
      {"dot", {FlopClass::matmul, &count_product<0>}},
      {"vdot", {FlopClass::matmul, &count_product<0>}},
      {"addmm", {FlopClass::matmul, &count_product<1>}},
      {"_addmm_activation", {FlopClass::matmul, &count_product<1>}},
      {"baddbmm", {FlopClass::matmul, &count_product<1>}},
      {"addbmm", {FlopClass::matmul, &count_product<1>}},
      {"addmv", {FlopClass::matmul, &count_product<1>}},
      {"_grouped_mm", {FlopClass::grouped, &count_grouped}},
      {"_scaled_grouped_mm", {FlopClass::grouped, &count_grouped}},
      {"_scaled_grouped_mm_v2", {FlopClass::grouped, &count_grouped}},
      {"_scaled_dot_product_flash_attention", {FlopClass::attention, &count_attention}},
      {"_scaled_dot_product_efficient_attention", {FlopClass::attention, &count_attention}},
      {"_scaled_dot_product_cudnn_attention", {FlopClass::attention, &count_attention}},
      {"_scaled_dot_product_fused_attention_overrideable", {FlopClass::attention, &count_attention}},
      {"_scaled_dot_product_flash_attention_backward", {FlopClass::attention, &count_attention_backward}},
      {"_scaled_dot_product_efficient_attention_backward", {FlopClass::attention, &count_attention_backward}},
      {"_scaled_dot_product_cudnn_attention_backward", {FlopClass::attention, &count_attention_backward}},
      {"_scaled_dot_product_fused_attention_overrideable_backward", {FlopClass::attention, &count_attention_backward}},
      {"_flash_attention_forward", {FlopClass::attention, &count_packed}},
      {"_efficient_attention_forward", {FlopClass::attention, &count_packed}},
      {"_flash_attention_backward", {FlopClass::attention, &count_packed_backward}},
      {"_efficient_attention_backward", {FlopClass::attention, &count_packed_backward}},
  };
  return *all;
}

// Whether the name of an operator of torch says that it multiplies matrices.
bool multiplies(const std::string& name) {
  static const std::array parts{"matmul", "_mm",  "addmm",    "smm", "attention", "_linear", "conv_",     "convolution",
                                "_conv2", "_rnn", "gru_cell", "fft", "linalg_",   "cdist",   "trilinear", "solve"};
  static const std::set<std::string> exceptions{"linalg_vector_norm", "linalg__powsum", "linalg_diagonal"};
  if (exceptions.count(name) != 0 || name.rfind("upsample_", 0) == 0) {
    return false;
  }
  return std::any_of(
      parts.begin(), parts.end(), [&](const char* part) { return name.find(part) != std::string::npos; });
}

int64_t bytes_in(const IValue& value) {
  int64_t bytes = 0;
  visit_tensors(value, [&](const at::Tensor& tensor) { bytes += bytes_of(tensor); });
  return bytes;
}

}  // namespace

int64_t bytes_of(const at::Tensor& tensor) {
  if (!is_on_paper(tensor)) {
    return 0;
  }
  auto bytes = static_cast<int64_t>(tensor.dtype().itemsize());
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    bytes *= tensor.stride(dim) == 0 && tensor.size(dim) > 1 ? 1 : tensor.size(dim);
  }
  return bytes;
}

FlopFormula flop_formula_of(const std::string& operator_name) {
  if (operator_name.rfind("aten::", 0) != 0) {
    return {FlopClass::unknown, nullptr};
  }
  std::string name = operator_name.substr(6);
  if (name.back() == '_') {  // in place
    name.pop_back();
  }
  const auto formula = formulas().find(name);
  if (formula != formulas().end()) {
    return formula->second;
  }
  return {multiplies(name) ? FlopClass::unknown : FlopClass::other, nullptr};
}

int64_t bytes_moved(const Operator& info, const Arguments& arguments, const Stack& results) {
  // These operators read only some rows of their first argument, as many as the result has.
  static const std::set<std::string> selecting{
      "aten::index", "aten::_unsafe_index", "aten::index_select", "aten::gather", "aten::embedding", "aten::take"};
  // These operators write only some rows of their first argument, as many as the last tensor has.
  static const std::set<std::string> scattering{"aten::index_put_",  "aten::_index_put_impl_", "aten::index_add_",
                                                "aten::index_copy_", "aten::scatter_",         "aten::scatter_add_"};
  int64_t bytes = 0;
  int64_t last_bytes = 0;  // of the last argument with tensors
  for (size_t i = 0; i < arguments.size(); ++i) {
    const int64_t argument_bytes = bytes_in(arguments[i]);
    last_bytes = argument_bytes > 0 ? argument_bytes : last_bytes;
    bytes += argument_bytes * ((info.is_read[i] ? 1 : 0) + (info.is_written[i] ? 1 : 0));
  }
  int64_t result_bytes = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    result_bytes += info.result_is_written[i] ? 0 : bytes_in(results[i]);
  }
  if (selecting.count(info.name) != 0) {
    const int64_t source_bytes = bytes_in(arguments[0]);
    bytes += std::min(source_bytes, result_bytes) - source_bytes;
  } else if (scattering.count(info.name) != 0) {
    const int64_t target_bytes = bytes_in(arguments[0]);
    bytes += 2 * (std::min(target_bytes, last_bytes) - target_bytes);
  }
  return bytes + result_bytes;
}

c10::ScalarType dtype_of(const Arguments& arguments, const Stack& results) {
  auto first = c10::ScalarType::Undefined;
  const auto visit = [&](const at::Tensor& tensor) {
    const bool is_first = first == c10::ScalarType::Undefined;
    if (is_on_paper(tensor) && (is_first || (!c10::isFloatingType(first) && tensor.is_floating_point()))) {
      first = tensor.scalar_type();
    }
  };
  for (const auto& argument : arguments) {
    visit_tensors(argument, visit);
  }
  for (const auto& result : results) {
    visit_tensors(result, visit);
  }
  return first;
}

}  // namespace regbot::paper
