#include "program.h"

#include "holders.h"
#include "memory.h"
#include "python.h"
#include "shapes.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

namespace regbot::paper {
namespace {

// Size limit of constants, in elements. The fingerprint includes the known values of tensors up to this size that no
// operator of the step created.
constexpr int64_t kMaxConstant = int64_t{1} << 16;

struct ModuleChange {
  uint64_t first_node;  // autograd nodes with this number or a higher one belong to `module`
  int64_t module;
};

struct KernelKey {
  const std::string* name;  // in `names`
  c10::ScalarType dtype;
  FlopClass flop_class;
  int64_t phase;
  int64_t module;
  bool is_recompute;
  int64_t line;
  bool operator<(const KernelKey& other) const {
    return std::tie(name, dtype, flop_class, phase, module, is_recompute, line) <
           std::tie(
               other.name, other.dtype, other.flop_class, other.phase, other.module, other.is_recompute, other.line);
  }
};

struct KernelCount {
  int64_t count = 0;
  int64_t flops = 0;
  int64_t bytes = 0;
};
using KernelCounts = std::map<KernelKey, KernelCount>;

constexpr std::array kFlopClasses{"matmul", "grouped", "attention", "other", "unknown"};

std::mutex program_mutex;
std::set<std::string> names;  // of all kernels
KernelCounts kernel_counts;
std::vector<KernelCounts> graphs;  // the last one is being captured if `is_capturing`
bool is_capturing = false;
std::optional<FlopClass> forced_class;
std::vector<std::string> source_lines{""};  // by number
std::map<std::string, int64_t> line_numbers{{"", 0}};
std::map<std::pair<uint64_t, uint64_t>, int64_t> lines_of_nodes;  // by thread and number of an autograd node
std::vector<std::pair<int64_t, int64_t>> phase_changes;           // number of kernels before the change, and the phase
// Module changes by the thread that creates the autograd nodes. Each thread numbers its own nodes, and recomputation in
// backward creates nodes in autograd's thread.
std::map<uint64_t, std::vector<ModuleChange>> module_changes;
int64_t phase = 0;
int64_t forward_module = 0;
int64_t kernel_count = 0;
bool was_recompute = false;  // whether the last operator was one of a recompute
uint64_t step = 0;           // number of the current step
int64_t next_number = 0;     // number of the next storage that the step uses for the first time
bool is_hashing = false;     // whether the step gets a fingerprint
uint64_t digest_words[2] = {0, 0};

// Whether an out= overload writes into its own first argument. Builds of torch without CUDA run an in-place operator
// this way: add_ becomes add.out.
bool is_in_place(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  if (arguments.empty() || !arguments.front().isTensor()) {
    return false;
  }
  for (size_t index = 1; index < arguments.size(); ++index) {
    const auto& parameter = schema.arguments()[index];
    if (parameter.is_out() && arguments[index].isTensor()) {
      return arguments[index].toTensor().is_same(arguments.front().toTensor());
    }
  }
  return false;
}

// Return the number of the running module; 0 means none. In backward, it is the module that created the running node.
int64_t current_module() {
  if (forward_module != 0) {
    return forward_module;
  }
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    return 0;
  }
  const auto thread_changes = module_changes.find(node->thread_id());
  if (thread_changes == module_changes.end()) {
    return 0;
  }
  const auto& changes = thread_changes->second;
  const auto after = std::upper_bound(
      changes.begin(), changes.end(), node->sequence_nr(),
      [](uint64_t value, const ModuleChange& change) { return value < change.first_node; });
  return after == changes.begin() ? 0 : std::prev(after)->module;
}

// Count `count` kernels. The caller holds the mutex.
void add_kernels(const KernelKey& key, const KernelCount& count) {
  auto& total = (is_capturing ? graphs.back() : kernel_counts)[key];
  total.count += count.count;
  total.flops += count.flops;
  total.bytes += count.bytes;
  kernel_count += is_capturing ? 0 : count.count;
}

FlopClass class_named(const std::string& name) {
  const auto position = std::find(kFlopClasses.begin(), kFlopClasses.end(), name);
  TORCH_CHECK(position != kFlopClasses.end(), name, " is no class of FLOPs");
  return static_cast<FlopClass>(position - kFlopClasses.begin());
}

// The forward that a checkpoint repeats is over when another operator runs.
void note_recompute(bool is_recompute) {
  if (was_recompute && !is_recompute) {
    end_forward();
  }
  was_recompute = is_recompute;
}

void append_number(std::string& text, int64_t number) { text.append(std::to_string(number)).push_back(','); }

void append_values(std::string& text, const at::Tensor& host) {
  const auto dense = host.contiguous();
  text.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
}

// Append a tensor. Storages are numbered in the order of first use, so that the data flow is part of the fingerprint.
// 'u' is an undefined tensor, 'h' a tensor on the host, 'e' an empty storage, and '%' the number of a storage.
void append_tensor(std::string& text, const at::Tensor& tensor, bool is_result) {
  if (!tensor.defined()) {
    text.push_back('u');
    return;
  }
  if (!is_on_paper(tensor)) {
    text.push_back('h');
    if (tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.numel() <= kMaxConstant) {
      append_values(text, tensor);
    }
    return;
  }
  Block* block = block_of(tensor);
  if (block == nullptr) {
    text.push_back('e');
    return;
  }
  if (block->step != step) {
    block->step = step;
    block->number = next_number++;
    if (!is_result && tensor.numel() <= kMaxConstant && is_known(tensor)) {
      append_values(text, host_view(tensor));
    }
  }
  text.push_back('%');
  append_number(text, block->number);
  append_number(text, tensor.storage_offset());
}

void append_tensors(std::string& text, const c10::IValue& value, bool is_result) {
  if (value.isTensor()) {
    append_tensor(text, value.toTensor(), is_result);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      append_tensor(text, tensor, is_result);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      append_tensor(text, tensor.value_or(at::Tensor()), is_result);
    }
  }
}

void add_to_digest(const std::string& text) {
  const uint64_t word = hash_bytes(text.data(), text.size());
  digest_words[0] = mix(digest_words[0], word);
  digest_words[1] = mix(word ^ 0x5851f42d4c957f2dULL, digest_words[1] + text.size());
}

}  // namespace

void install_program() { lock_while_forking(program_mutex); }

void begin_step(bool with_fingerprint) {
  begin_holders(with_fingerprint);
  const std::lock_guard<std::mutex> guard(program_mutex);
  kernel_counts.clear();
  module_changes.clear();
  lines_of_nodes.clear();
  phase_changes.assign({{0, phase}});
  kernel_count = 0;
  next_number = 0;
  ++step;
  is_hashing = with_fingerprint;
  digest_words[0] = digest_words[1] = 0;
}

void set_phase(int64_t number) {
  if (number >= kBackward && phase < kBackward) {
    end_forward();
  }
  const std::lock_guard<std::mutex> guard(program_mutex);
  phase = number;
  phase_changes.emplace_back(kernel_count, number);
}

void set_module(int64_t number) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  forward_module = number;
  module_changes[at::RecordFunction::currentThreadId()].push_back({at::sequence_number::peek(), number});
}

Place current_place() {
  // Autograd runs backward without gradients. A checkpoint switches them on, but a forward of an autograd.Function that
  // it runs switches them off.
  const bool is_forward = at::GradMode::is_enabled() || forward_module != 0;
  const bool is_recompute = phase == kBackward && is_forward && torch::autograd::get_current_node() != nullptr;
  const std::lock_guard<std::mutex> guard(program_mutex);
  return {phase, current_module(), is_recompute};
}

int64_t phase_at_kernel(int64_t kernel) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  const auto after = std::upper_bound(
      phase_changes.begin(), phase_changes.end(), kernel,
      [](int64_t number, const std::pair<int64_t, int64_t>& change) { return number < change.first; });
  return after == phase_changes.begin() ? 0 : std::prev(after)->second;
}

int64_t current_line() {
  if (!is_hashing) {
    return 0;
  }
  const std::string text = line_in_python();
  const auto node = torch::autograd::get_current_node();
  const std::lock_guard<std::mutex> guard(program_mutex);
  if (text.empty()) {  // in backward: the line of the forward that the node undoes
    const auto noted = node ? lines_of_nodes.find({node->thread_id(), node->sequence_nr()}) : lines_of_nodes.end();
    return noted == lines_of_nodes.end() ? 0 : noted->second;
  }
  const auto [position, is_new] = line_numbers.emplace(text, static_cast<int64_t>(source_lines.size()));
  if (is_new) {
    source_lines.push_back(text);
  }
  // The newest node is that of the running operator, if this is a forward.
  lines_of_nodes.emplace(
      std::pair(at::RecordFunction::currentThreadId(), at::sequence_number::peek() - 1), position->second);
  return position->second;
}

std::string text_of_line(int64_t line) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  return source_lines.at(static_cast<size_t>(line));
}

void record_operator(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::string& signature,
    const std::vector<c10::IValue>& arguments,
    const torch::jit::Stack& results) {
  if (!info.launches_a_kernel && !is_hashing) {
    return;
  }
  const auto& schema = op.schema();
  if (info.launches_a_kernel) {
    const auto place = current_place();
    note_recompute(place.is_recompute);
    const int64_t flops = info.formula.count != nullptr ? info.formula.count(schema, arguments, results) : 0;
    const auto flop_class = forced_class && flops > 0 ? *forced_class : info.formula.flop_class;
    const int64_t line = flops > 0 ? current_line() : 0;
    if (place.phase == kOptimizer) {
      for (const auto& argument : arguments) {
        visit_tensors(argument, mark_as_used_by_optimizer);
      }
    }
    const std::string name = is_in_place(schema, arguments) ? info.name + "_" : info.name;
    const std::lock_guard<std::mutex> guard(program_mutex);
    add_kernels(
        {&*names.insert(name).first, dtype_of(arguments, results), flop_class, place.phase, place.module,
         place.is_recompute, line},
        {1, flops, bytes_moved(info, arguments, results)});
  }
  if (is_hashing) {
    const std::lock_guard<std::mutex> guard(program_mutex);
    std::string text = schema.name() + "." + schema.overload_name() + signature;
    for (const auto& argument : arguments) {
      append_tensors(text, argument, false);
    }
    text.push_back('>');
    for (const auto& result : results) {
      append_tensors(text, result, true);
    }
    add_to_digest(text);
  }
}

void record_text(const std::string& text, const std::vector<at::Tensor>& tensors) {
  if (!is_hashing) {
    return;
  }
  const std::lock_guard<std::mutex> guard(program_mutex);
  std::string entry = text;
  for (const auto& tensor : tensors) {
    append_tensor(entry, tensor, false);
  }
  add_to_digest(entry);
}

void record_library_kernel(
    const std::string& name, const std::string& flop_class, int64_t flops, const std::vector<at::Tensor>& tensors) {
  const auto place = current_place();
  note_recompute(place.is_recompute);
  const int64_t line = flops > 0 ? current_line() : 0;
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += bytes_of(tensor);
    if (place.phase == kOptimizer) {
      mark_as_used_by_optimizer(tensor);
    }
  }
  const std::lock_guard<std::mutex> guard(program_mutex);
  add_kernels(
      {&*names.insert(name).first, dtype_of({c10::IValue(tensors)}, {}), class_named(flop_class), place.phase,
       place.module, place.is_recompute, line},
      {1, flops, bytes});
}

void set_flop_class(const std::string& flop_class) {
  forced_class = flop_class.empty() ? std::nullopt : std::optional(class_named(flop_class));
}

void begin_capture() {
  const std::lock_guard<std::mutex> guard(program_mutex);
  graphs.emplace_back();
  is_capturing = true;
}

int64_t end_capture() {
  const std::lock_guard<std::mutex> guard(program_mutex);
  is_capturing = false;
  return static_cast<int64_t>(graphs.size()) - 1;
}

void replay(int64_t graph) {
  const auto place = current_place();
  const std::lock_guard<std::mutex> guard(program_mutex);
  for (const auto& [captured, count] : graphs.at(static_cast<size_t>(graph))) {
    auto key = captured;
    key.phase = place.phase;
    key.module = captured.module != 0 ? captured.module : place.module;
    add_kernels(key, count);
  }
}

std::vector<std::string> describe_kernels(std::optional<int64_t> graph) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  std::vector<std::string> lines;
  for (const auto& [key, count] : graph ? graphs.at(static_cast<size_t>(*graph)) : kernel_counts) {
    std::ostringstream line;
    line << *key.name << '\t' << key.phase << '\t' << key.module << '\t' << c10::toString(key.dtype) << '\t'
         << kFlopClasses.at(static_cast<size_t>(key.flop_class)) << '\t' << key.is_recompute << '\t' << count.count
         << '\t' << count.flops << '\t' << count.bytes << '\t' << source_lines.at(static_cast<size_t>(key.line));
    lines.push_back(line.str());
  }
  return lines;
}

int64_t kernels() { return kernel_count; }

std::string fingerprint() {
  std::ostringstream text;
  text << std::hex << digest_words[0] << '-' << digest_words[1];
  return text.str();
}

}  // namespace regbot::paper
