#include "python.h"

#include "infinity.h"
#include "kernels.h"
#include "memory.h"
#include "platform.h"
#include "program.h"
#include "shapes.h"

#include <torch/library.h>

#include <mutex>
#include <set>

namespace regbot::paper {
namespace {

std::mutex notes_mutex;
std::set<std::string> notes;  // each is a kind, a space and a sentence
int64_t experts = 0;          // number of experts; 0 before Python sets it

// Call an operator that is implemented in Python.
c10::IValue call_python(const char* name, std::vector<c10::IValue> arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  torch::jit::Stack stack = std::move(arguments);
  op.callBoxed(stack);
  return stack.empty() ? c10::IValue() : stack.back();
}

std::vector<std::string> list_notes() {
  const std::lock_guard<std::mutex> guard(notes_mutex);
  return {notes.begin(), notes.end()};
}

void clear_notes() {
  const std::lock_guard<std::mutex> guard(notes_mutex);
  notes.clear();
}

bool has_known_values(const at::Tensor& tensor) { return !is_on_paper(tensor) || is_known(tensor); }

at::Tensor values_of(const at::Tensor& tensor) {
  TORCH_CHECK(has_known_values(tensor), "the values of this tensor are not known");
  return is_on_paper(tensor) ? host_view(tensor).clone() : tensor;
}

void mark_holder_of(const at::Tensor& tensor, int64_t kind, int64_t module) {
  mark_holder(tensor, static_cast<HolderKind>(kind), module);
}

// Set the values of `tensor` without counting an operator. If there are no `values`, the values of `tensor` become
// unknown.
void write_values(const at::Tensor& tensor, const std::optional<at::Tensor>& values) {
  if (values.has_value()) {
    write_known(tensor, *values, id_of_host_values(*values));
  } else {
    write_unknown(tensor);
  }
}

void install_device() {
  install_memory();
  install_shapes();
  install_infinity();
  install_program();
  install_holders();
  lock_while_forking(notes_mutex);
  install_platform();
  install_kernels();
}

}  // namespace

void refuse(const std::string& reason) {
  call_python("regbot_paper::refuse", {reason});
  TORCH_CHECK(false, reason);  // not reached, because Python raises an exception
}

void note(const std::string& kind, const std::string& assumption) {
  const std::lock_guard<std::mutex> guard(notes_mutex);
  notes.insert(kind + " " + assumption);
}

void wait_on_host(const char* kind) { call_python("regbot_paper::host_wait", {kind}); }

std::string line_in_python() { return call_python("regbot_paper::current_line", {}).toStringRef(); }

bool is_score_of_experts(const at::Tensor& tensor) {
  return experts != 0 && tensor.dim() != 0 && tensor.size(-1) == experts && tensor.is_floating_point();
}

void route(
    const std::string& operator_name, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& results) {
  static const std::set<std::string> choosing_operators{"aten::topk", "aten::sort", "aten::argmax"};
  if (experts == 0 || choosing_operators.count(operator_name) == 0 || !arguments[0].isTensor()) {
    return;
  }
  const auto& scores = arguments[0].toTensor();
  const auto& indices = results.back().toTensor();
  if (scores.dim() == 0 || scores.size(-1) != experts || indices.scalar_type() != at::kLong || !may_be_known(indices)) {
    return;
  }
  const auto chosen = call_python("regbot_paper::route", {operator_name, scores, indices}).toTensor();
  if (chosen.numel() == indices.numel()) {
    write_known(indices, chosen.view(indices.sizes()), id_of_host_values(chosen));
  }
}

}  // namespace regbot::paper

TORCH_LIBRARY(regbot_paper, library) {
  using namespace regbot::paper;
  // These operators are implemented in Python.
  library.def("refuse(str reason) -> ()");
  library.def("host_wait(str kind) -> ()");
  library.def("current_line() -> str");
  library.def("route(str operator, Tensor scores, Tensor indices) -> Tensor");
  // These operators are called from Python.
  library.def("install() -> ()", &install_device);
  library.def("live_bytes() -> int", [] { return memory_use().live_bytes; });
  library.def("peak_bytes() -> int", [] { return memory_use().peak_bytes; });
  library.def("reset_peak_bytes() -> ()", &reset_peak_bytes);
  library.def("live_bytes_of(int gpu) -> int", [](int64_t gpu) { return memory_use_of(gpu).live_bytes; });
  library.def("peak_bytes_of(int gpu) -> int", [](int64_t gpu) { return memory_use_of(gpu).peak_bytes; });
  library.def("reset_peak_bytes_of(int gpu) -> ()", &reset_peak_bytes_of);
  library.def("notes() -> str[]", &list_notes);
  library.def("clear_notes() -> ()", &clear_notes);
  library.def("forget_holders() -> ()", &forget_holders);
  library.def("begin_step(bool with_fingerprint) -> ()", &begin_step);
  library.def("set_phase(int phase) -> ()", &set_phase);
  library.def("set_module(int module) -> ()", &set_module);
  library.def("set_experts(int experts) -> ()", [](int64_t number) { experts = number; });
  library.def("record_text(str text, Tensor[] tensors) -> ()", &record_text);
  library.def("library_kernel(str name, str flop_class, int flops, Tensor[] tensors) -> ()", &record_library_kernel);
  library.def("set_flop_class(str flop_class) -> ()", &set_flop_class);
  library.def("begin_capture() -> ()", &begin_capture);
  library.def("end_capture() -> int", &end_capture);
  library.def("replay(int graph) -> ()", &replay);
  library.def("describe_kernels(int? graph) -> str[]", &describe_kernels);
  library.def("kernels() -> int", &kernels);
  library.def("describe_memory(int parts) -> str[]", &describe_memory);
  library.def("mark_holder(Tensor tensor, int kind, int module) -> ()", &mark_holder_of);
  library.def("fingerprint() -> str", &fingerprint);
  library.def("is_known(Tensor tensor) -> bool", &has_known_values);
  library.def("values_of(Tensor tensor) -> Tensor", &values_of);
  library.def("write_values(Tensor tensor, Tensor? values) -> ()", &write_values);
  library.def("resize_storage(Tensor tensor, int bytes) -> ()", &resize_storage);
}
