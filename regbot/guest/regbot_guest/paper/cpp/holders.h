// What holds the GPU's memory over a step: every allocation, with what it is for and where it was made.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace regbot::paper {

// The values of `HolderKind` in regbot/records/ledger.py. `undecided` becomes one of the others when the step is over.
enum class HolderKind { parameter, gradient, optimizer, activation, temporary, other, undecided };

// The life of one allocation. Times are numbers of events, which are allocations and releases.
struct Allocation {
  int64_t bytes = 0;
  HolderKind kind = HolderKind::undecided;
  uint64_t step = 0;  // the step in which it was made
  int64_t phase = 0;
  int64_t module = 0;
  int64_t line = 0;
  int64_t born = 0;
  int64_t died = -1;  // -1: alive
  int64_t kernels_at_birth = 0;
  int64_t kernels_at_death = 0;
};

void install_holders();

// Begin a program: what an earlier one of this process has left is none of its memory.
void forget_holders();

// Begin a step. `with_lines`: find the source lines of large allocations from now on.
void begin_holders(bool with_lines);

std::shared_ptr<Allocation> add_allocation(int64_t bytes);
void end_allocation(Allocation& allocation);
// Let `now` be for the same as `before`, which it replaces. Null is an empty storage; what it was for is remembered.
void continue_allocation(const c10::Storage& storage, const Allocation* before, Allocation* now);

// Say what the storage of `tensor` is for, also for the time before this call.
void mark_holder(const at::Tensor& tensor, HolderKind kind, int64_t module);
// An argument of an operator of the optimizer. If nothing else is known of an older storage, it has optimizer state.
void mark_as_used_by_optimizer(const at::Tensor& tensor);
// The forward is over, or the forward that a checkpoint repeats: what it has left is kept for backward.
void end_forward();

// Lines of numbers, separated by tabs. The first line has the bytes at the peak, its phase, its module, and the number
// of parts, at most `parts`, into which the kernels of the step are divided. For each part follows a line with its
// phase and its highest live bytes. The others are groups of allocations that are live at the peak: kind, module,
// bytes, number, and then the source line.
std::vector<std::string> describe_memory(int64_t parts);

}  // namespace regbot::paper
