// FLOPs of operators, and the bytes that their kernels read and write.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace regbot::paper {

struct Operator;

// The values of `FlopClass` in regbot/records/ledger.py. An `unknown` operator multiplies and has no formula.
enum class FlopClass { matmul, grouped, attention, other, unknown };

// Counts the FLOPs of a call.
using CountFlops = int64_t (*)(
    const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

struct FlopFormula {
  FlopClass flop_class = FlopClass::other;
  CountFlops count = nullptr;  // null: the operator has no FLOPs, or no formula
};
FlopFormula flop_formula_of(const std::string& operator_name);

// Return the bytes of the elements of `tensor` in GPU memory. All repeats of an expanded dimension share one element.
int64_t bytes_of(const at::Tensor& tensor);
// Return the bytes that the kernel of a call reads and writes in GPU memory. Each tensor counts once.
int64_t bytes_moved(const Operator& info, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

// Return the dtype of the first tensor of floats on the GPU, or else of the first tensor there.
c10::ScalarType dtype_of(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

}  // namespace regbot::paper
