// What a step does on the paper GPU: kernels launched by module and phase, and a fingerprint of the whole.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace regbot::paper {

void install_program();

// Begin a step: counts and, where asked for, the fingerprint start anew.
void begin_step(bool with_fingerprint);
// Operators are counted for this phase and, in forward, for this module until the next call. In backward the module is
// the one whose forward made the autograd node that runs. Both are numbers that the caller gives out.
void set_phase(int64_t phase);
void set_module(int64_t module);

// One operator ran. `signature` is its arguments' metadata, as the table of shapes knows it.
void record_operator(
    const c10::OperatorHandle& op,
    const std::string& signature,
    const std::vector<c10::IValue>& arguments,
    const torch::jit::Stack& results);
// Something else that belongs to the program, such as a collective: `text` and the tensors that it reads and writes.
void record_text(const std::string& text, const std::vector<at::Tensor>& tensors);

struct Launches {
  std::string operator_name;
  int64_t phase;
  int64_t module;
  int64_t count;
};
std::vector<Launches> launches();
int64_t operators(); // since begin_step, views and metadata not counted
std::string fingerprint(); // of the step so far

} // namespace regbot::paper
