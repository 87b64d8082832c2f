#include "program.h"

#include "memory.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
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

struct LaunchKey {
  const c10::FunctionSchema* schema;
  bool is_in_place;
  int64_t phase;
  int64_t module;
  bool operator<(const LaunchKey& other) const {
    return std::tie(schema, is_in_place, phase, module) <
           std::tie(other.schema, other.is_in_place, other.phase, other.module);
  }
};

struct LaunchCount {
  std::string name;
  int64_t count = 0;
};

std::mutex program_mutex;
std::map<LaunchKey, LaunchCount> launch_counts;
// Module changes by the thread that creates the autograd nodes. Each thread numbers its own nodes, and recomputation in
// backward creates nodes in autograd's thread.
std::map<uint64_t, std::vector<ModuleChange>> module_changes;
int64_t phase = 0;
int64_t forward_module = 0;
int64_t operator_count = 0;
uint64_t step = 0;        // number of the current step
int64_t next_number = 0;  // number of the next storage that the step uses for the first time
bool is_hashing = false;  // whether the step gets a fingerprint
uint64_t digest_words[2] = {0, 0};

// Whether an operator launches a kernel. Views do not, and neither do operators that only allocate or change metadata.
bool launches_a_kernel(const c10::FunctionSchema& schema) {
  static const std::set<std::string> metadata{"aten::empty",      "aten::empty_strided", "aten::set_",
                                              "aten::resize_",    "aten::record_stream", "aten::_local_scalar_dense",
                                              "aten::empty_like", "aten::new_empty",     "aten::new_empty_strided"};
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return false;  // a view
    }
  }
  return metadata.count(schema.name()) == 0;
}

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
  const std::lock_guard<std::mutex> guard(program_mutex);
  launch_counts.clear();
  module_changes.clear();
  operator_count = 0;
  next_number = 0;
  ++step;
  is_hashing = with_fingerprint;
  digest_words[0] = digest_words[1] = 0;
}

void set_phase(int64_t number) { phase = number; }

void set_module(int64_t number) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  forward_module = number;
  module_changes[at::RecordFunction::currentThreadId()].push_back({at::sequence_number::peek(), number});
}

void record_operator(
    const c10::OperatorHandle& op,
    const std::string& signature,
    const std::vector<c10::IValue>& arguments,
    const torch::jit::Stack& results) {
  const auto& schema = op.schema();
  const bool is_launch = launches_a_kernel(schema);
  if (!is_launch && !is_hashing) {
    return;
  }
  const std::lock_guard<std::mutex> guard(program_mutex);
  if (is_launch) {
    const bool in_place = is_in_place(schema, arguments);
    auto& entry = launch_counts[LaunchKey{&schema, in_place, phase, current_module()}];
    if (entry.count == 0) {
      entry.name = in_place ? schema.name() + "_" : schema.name();
    }
    ++entry.count;
    ++operator_count;
  }
  if (is_hashing) {
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

std::vector<Launches> launches() {
  const std::lock_guard<std::mutex> guard(program_mutex);
  std::vector<Launches> all;
  for (const auto& [key, entry] : launch_counts) {
    all.push_back({entry.name, key.phase, key.module, entry.count});
  }
  return all;
}

int64_t operators() { return operator_count; }

std::string fingerprint() {
  std::ostringstream text;
  text << std::hex << digest_words[0] << '-' << digest_words[1];
  return text.str();
}

}  // namespace regbot::paper
