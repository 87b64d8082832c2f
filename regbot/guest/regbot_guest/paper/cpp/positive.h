// Floats whose values are unknown, but which are known to be positive, such as the scores of a router.
//
// Programs compare the scores of the chosen experts with zero, and send no token to an expert with the score zero. The
// comparison decides the routing, so it needs an answer.
#pragma once

#include "shapes.h"

#include <vector>

namespace regbot::paper {

// Mark the new results of the operator if they are positive.
void mark_positive_floats(
    const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);
// Mark `target`, to which `source` was copied, if `source` is positive.
void copy_positive_floats(const at::Tensor& target, const at::Tensor& source);
// If the operator compares positive floats with zero, set its result, and note this.
void compare_with_zero(
    const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

}  // namespace regbot::paper
