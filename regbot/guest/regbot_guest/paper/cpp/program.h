// The program of a step on the paper GPU: what its kernels compute, by module and phase, and the fingerprint of the
// step.
#pragma once

#include "flops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace regbot::paper {

// Numbers of phases, as in PHASES in paper/counter.py.
constexpr int64_t kBackward = 2;
constexpr int64_t kOptimizer = 3;

void install_program();

// Begin a step: reset the counts. `with_fingerprint`: also start a fingerprint, and find source lines.
void begin_step(bool with_fingerprint);
// Set the phase and the module of the operators that follow. In backward, the module of an operator is the module whose
// forward created the running autograd node. The caller assigns the numbers of phases and modules.
void set_phase(int64_t phase);
void set_module(int64_t module);

// Where the program is.
struct Place {
  int64_t phase;
  int64_t module;     // 0: outside of any module
  bool is_recompute;  // in backward, but a checkpoint runs its forward again
};
Place current_place();
// Return the phase in which kernel number `kernel` of the step was launched.
int64_t phase_at_kernel(int64_t kernel);

// Return the number of the source line that runs, and the text of such a number. 0 is an unknown line.
int64_t current_line();
std::string text_of_line(int64_t line);

// Record one executed operator. `signature` is the metadata of its arguments, as signature_of returns it.
void record_operator(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::string& signature,
    const std::vector<c10::IValue>& arguments,
    const torch::jit::Stack& results);
// Record another part of the program, such as a collective. `tensors` are the tensors that this part reads and writes.
void record_text(const std::string& text, const std::vector<at::Tensor>& tensors);
// Record a kernel of a compiled library, which reads and writes `tensors`. `flop_class` is a name of `FlopClass`.
void record_library_kernel(
    const std::string& name, const std::string& flop_class, int64_t flops, const std::vector<at::Tensor>& tensors);
// From now on, the products of torch's operators are of this class. '' ends that.
void set_flop_class(const std::string& flop_class);

// While a CUDA graph is captured, kernels count for the graph and not for the step. `end_capture` returns its number.
void begin_capture();
int64_t end_capture();
// Count the kernels of a graph in the current phase. Those outside of modules are counted in the current module.
void replay(int64_t graph);

// Return one line for each kind of kernel in the step, or in a captured graph: operator, phase, module, dtype, class of
// FLOPs, whether it is a recompute, number, FLOPs, bytes and source line, separated by tabs.
std::vector<std::string> describe_kernels(std::optional<int64_t> graph);
int64_t kernels();          // number of kernels since begin_step
std::string fingerprint();  // of the operators since begin_step

}  // namespace regbot::paper
