// Values on the paper GPU. A result is known if all values from which it is computed are known.
//
// If all arguments of an operator are known, the operator is really executed, on host tensors. The results are cached,
// because all layers compute the same values for their routing.
#pragma once

#include "shapes.h"

#include <optional>
#include <string>
#include <vector>

namespace regbot::paper {

bool is_float(const at::Tensor& tensor);
// Return dtype and sizes as text, such as Long[4, 2].
std::string dtype_and_sizes(const at::Tensor& tensor);

bool reads_only_known_values(const Operator& info, const std::vector<c10::IValue>& arguments);
// Whether all results are small enough that their values may be kept.
bool results_may_be_known(const ShapeEntry& entry);
bool writes_only_what_may_be_known(const Operator& info, const std::vector<c10::IValue>& arguments);

// The results and arguments of an operator after it ran on the host.
struct HostRun {
  torch::jit::Stack results;
  torch::jit::Stack arguments;
};

// Run the operator on the host. Return nothing if the host has no suitable kernel.
std::optional<HostRun> run_on_host(
    const c10::OperatorHandle& op, const Operator& info, const std::vector<c10::IValue>& arguments);

// Set the values of the tensors that the operator created or wrote. The values come from the cache if an equal call was
// computed before. Otherwise they are computed on the host. Return false if the host cannot compute them.
bool compute(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<c10::IValue>& arguments,
    const std::shared_ptr<ShapeEntry>& entry,
    const torch::jit::Stack& results,
    bool may_cache);

// Fill `target`, a host tensor to which unknown values are copied, with ones. Refuse if it does not have floats.
void fill_host(const at::Tensor& target);
// Whether fill_host filled this host tensor. A copy of such a tensor back to the GPU has unknown values.
bool was_filled(const at::Tensor& host);
// Mark the values that an operator wrote to `tensor` as unknown. If `tensor` is on the host, fill it with ones.
void write_unknown_anywhere(const at::Tensor& tensor);

void install_values();

}  // namespace regbot::paper
