// Unknown floats and infinity.
//
// Most unknown floats are taken to be finite, such as a loss or the norm of gradients. An attention mask with
// infinities is different: it is unknown because it is large, or because unknown scores were added to it. Such floats
// are marked, and no claim is made about them.
#pragma once

#include "shapes.h"

#include <string>
#include <vector>

namespace regbot::paper {

// Whether the operator with this name keeps the infinities among its arguments, such as masked_fill.
bool keeps_infinities(const std::string& operator_name);
// Whether an argument of such an operator has infinities. Call this before the operator writes its arguments.
bool has_infinite_argument(const Operator& info, const std::vector<c10::IValue>& arguments);
// Mark the unknown floats among the results.
void mark_infinite_floats(const torch::jit::Stack& results);
// Mark `target`, to which `source` was copied, if `source` has infinities. `target` is unknown.
void copy_infinite_floats(const at::Tensor& target, const at::Tensor& source);
// Whether some of the unknown floats of `tensor` may be infinite.
bool may_be_infinite(const at::Tensor& tensor);

// If the operator compares one unknown float with infinity, set its result. The float is assumed to be finite.
void compare_with_infinity(
    const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

void install_infinity();

}  // namespace regbot::paper
