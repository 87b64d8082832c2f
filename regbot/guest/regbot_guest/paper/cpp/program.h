// The program of a step on the paper GPU: kernel launches by module and phase, and the fingerprint of the step.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace regbot::paper {

void install_program();

// Begin a step: reset the counts and, if requested, start a fingerprint.
void begin_step(bool with_fingerprint);
// Set the phase and the module of the operators that follow. In backward, the module of an operator is the module whose
// forward created the running autograd node. The caller assigns the numbers of phases and modules.
void set_phase(int64_t phase);
void set_module(int64_t module);

// Record one executed operator. `signature` is the metadata of its arguments, as signature_of returns it.
void record_operator(
    const c10::OperatorHandle& op,
    const std::string& signature,
    const std::vector<c10::IValue>& arguments,
    const torch::jit::Stack& results);
// Record another part of the program, such as a collective. `tensors` are the tensors that this part reads and writes.
void record_text(const std::string& text, const std::vector<at::Tensor>& tensors);

struct Launches {
  std::string operator_name;
  int64_t phase;
  int64_t module;
  int64_t count;
};
std::vector<Launches> launches();
int64_t operators();        // since begin_step, without views and operators on metadata
std::string fingerprint();  // of the operators since begin_step

}  // namespace regbot::paper
