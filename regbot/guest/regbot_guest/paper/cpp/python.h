// What the paper GPU asks of Python, and what Python asks of it: the operators of the library `regbot_paper`.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace regbot::paper {

// Raises Untraceable in Python, at the line that asked for the value.
[[noreturn]] void refuse(const std::string& reason);
// Something was assumed; the ledger says so.
void note(const std::string& assumption);
// The host waits for a value of the device.
void read_on_host();
// Experts chosen by unknown scores: write the choice of the forced routing into `results`.
void route(const std::string& operator_name, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results);

} // namespace regbot::paper
