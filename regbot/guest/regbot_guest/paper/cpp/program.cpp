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

// Values of larger tensors that no operator of the step has made are not part of the fingerprint.
constexpr int64_t kMaxConstant = int64_t{1} << 16;

struct Mark {
  uint64_t first_node; // autograd nodes from this number on belong to `module`
  int64_t module;
};

struct Key {
  const c10::FunctionSchema* schema;
  int64_t phase;
  int64_t module;
  bool operator<(const Key& other) const {
    return std::tie(schema, phase, module) < std::tie(other.schema, other.phase, other.module);
  }
};

struct Counted {
  std::string name;
  int64_t count = 0;
};

std::mutex program_mutex;
std::map<Key, Counted> counts;
// By the thread that makes the nodes: their numbers count in every thread by themselves, and recomputation in backward
// makes nodes in the thread of autograd.
std::map<uint64_t, std::vector<Mark>> marks;
int64_t phase = 0;
int64_t module_now = 0;
int64_t total = 0;
uint64_t step = 0;
int64_t next_number = 0;
bool hashing = false;
uint64_t digest_words[2] = {0, 0};

// Operators that put nothing on the device besides the kernels of the views and allocations they make.
bool launches_a_kernel(const c10::FunctionSchema& schema) {
  static const std::set<std::string> metadata{
      "aten::empty", "aten::empty_strided", "aten::set_", "aten::resize_", "aten::record_stream",
      "aten::_local_scalar_dense", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"};
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return false; // a view
    }
  }
  return metadata.count(schema.name()) == 0;
}

int64_t module_at_work() {
  if (module_now != 0) {
    return module_now;
  }
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    return 0;
  }
  const auto of_thread = marks.find(node->thread_id());
  if (of_thread == marks.end()) {
    return 0;
  }
  const auto& sorted = of_thread->second;
  const auto after = std::upper_bound(
      sorted.begin(), sorted.end(), node->sequence_nr(),
      [](uint64_t value, const Mark& mark) { return value < mark.first_node; });
  return after == sorted.begin() ? 0 : std::prev(after)->module;
}

void append(std::string& text, int64_t number) { text.append(std::to_string(number)).push_back(','); }

void append_values(std::string& text, const at::Tensor& host) {
  const auto dense = host.contiguous();
  text.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
}

// A tensor as the fingerprint sees it: the storage by its order of appearance, so that the data flow is part of it.
void append_tensor(std::string& text, const at::Tensor& tensor, bool made_by_operator) {
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
    if (!made_by_operator && tensor.numel() <= kMaxConstant && is_known(tensor)) {
      append_values(text, host_view(tensor));
    }
  }
  text.push_back('%');
  append(text, block->number);
  append(text, tensor.storage_offset());
}

void append_tensors(std::string& text, const c10::IValue& value, bool made_by_operator) {
  if (value.isTensor()) {
    append_tensor(text, value.toTensor(), made_by_operator);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      append_tensor(text, tensor, made_by_operator);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      append_tensor(text, tensor.value_or(at::Tensor()), made_by_operator);
    }
  }
}

void add_to_digest(const std::string& text) {
  const uint64_t word = hash_bytes(text.data(), text.size());
  digest_words[0] = mix(digest_words[0], word);
  digest_words[1] = mix(word ^ 0x5851f42d4c957f2dULL, digest_words[1] + text.size());
}

} // namespace

void install_program() { lock_while_forking(program_mutex); }

void begin_step(bool with_fingerprint) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  counts.clear();
  marks.clear();
  total = 0;
  next_number = 0;
  ++step;
  hashing = with_fingerprint;
  digest_words[0] = digest_words[1] = 0;
}

void set_phase(int64_t number) { phase = number; }

void set_module(int64_t number) {
  const std::lock_guard<std::mutex> guard(program_mutex);
  module_now = number;
  marks[at::RecordFunction::currentThreadId()].push_back({at::sequence_number::peek(), number});
}

void record_operator(
    const c10::OperatorHandle& op,
    const std::string& signature,
    const std::vector<c10::IValue>& arguments,
    const torch::jit::Stack& results) {
  const auto& schema = op.schema();
  const bool counted = launches_a_kernel(schema);
  if (!counted && !hashing) {
    return;
  }
  const std::lock_guard<std::mutex> guard(program_mutex);
  if (counted) {
    auto& entry = counts[Key{&schema, phase, module_at_work()}];
    if (entry.count == 0) {
      entry.name = schema.name();
    }
    ++entry.count;
    ++total;
  }
  if (hashing) {
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
  if (!hashing) {
    return;
  }
  const std::lock_guard<std::mutex> guard(program_mutex);
  std::string whole = text;
  for (const auto& tensor : tensors) {
    append_tensor(whole, tensor, false);
  }
  add_to_digest(whole);
}

std::vector<Launches> launches() {
  const std::lock_guard<std::mutex> guard(program_mutex);
  std::vector<Launches> all;
  for (const auto& [key, entry] : counts) {
    all.push_back({entry.name, key.phase, key.module, entry.count});
  }
  return all;
}

int64_t operators() { return total; }

std::string fingerprint() {
  std::ostringstream text;
  text << std::hex << digest_words[0] << '-' << digest_words[1];
  return text.str();
}

} // namespace regbot::paper
