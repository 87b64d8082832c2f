// The kernels of the paper GPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace regbot::paper {

// Replace CUDA's kernels with those of the paper GPU, for every operator of aten. Call this after torch is imported.
void install_kernels();

// The kernel of almost every operator.
void run_on_paper(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Return the GPU that runs an operator: the GPU of its tensors, or else the GPU in its device argument.
c10::Device device_of(const std::vector<c10::IValue>& arguments);

}  // namespace regbot::paper
