// Calls between the paper GPU and Python: the operators of the library `regbot_paper`.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace regbot::paper {

// Raise Untraceable in Python, at the line of code that needs the unknown value.
[[noreturn]] void refuse(const std::string& reason);
// Record an assumption, which the ledger will list. `kind` is a value of `GuessKind` in regbot/records/ledger.py.
void note(const std::string& kind, const std::string& assumption);
// Record that the host waits for the device. `kind` is a value of `WaitKind` in regbot/records/ledger.py, or "copy" if
// the host reads a value without waiting.
void wait_on_host(const char* kind);
// Return the innermost running line in the checkout, or ''.
std::string line_in_python();
// Whether `tensor` has a float for each expert in its last dimension.
bool is_score_of_experts(const at::Tensor& tensor);
// If the operator chooses experts by unknown scores, write the experts that the forced routing chooses to `results`.
void route(
    const std::string& operator_name, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

}  // namespace regbot::paper
