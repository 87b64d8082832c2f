#include "holders.h"

#include "memory.h"
#include "program.h"
#include "python.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <typeindex>
#include <unordered_map>

namespace regbot::paper {
namespace {

constexpr int64_t kMinBytesWithLine = int64_t{1} << 20;

std::mutex holders_mutex;
std::vector<std::shared_ptr<Allocation>> allocations;   // of this step, and older ones that are alive
std::vector<std::shared_ptr<Allocation>> from_forward;  // made by the running forward
std::unordered_map<c10::StorageImpl*, std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, Allocation>> emptied;
int64_t live_at_begin = 0;
int64_t events_so_far = 0;
uint64_t current_step = 0;
bool is_finding_lines = false;

// Whether a node of autograd only changes the shape of a gradient.
bool is_view_node(const torch::autograd::Node& node) {
  static thread_local std::unordered_map<std::type_index, bool> known;
  const auto [position, is_new] = known.emplace(typeid(node), false);
  if (is_new) {
    const std::string name = typeid(node).name();  // mangled
    static constexpr std::array views{
        "TBackward", "TransposeBackward", "ViewBackward", "PermuteBackward", "AliasBackward", "UnsqueezeBackward"};
    position->second =
        std::any_of(views.begin(), views.end(), [&](const char* view) { return name.find(view) != std::string::npos; });
  }
  return position->second;
}

// Whether the running node of autograd makes the gradient of a leaf of this size.
bool is_gradient(int64_t bytes) {
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    return false;
  }
  for (const auto& edge : node->next_edges()) {
    const auto* next = edge.function.get();
    while (next != nullptr && next->num_outputs() == 1 && is_view_node(*next)) {
      next = next->next_edge(0).function.get();
    }
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(next);
    if (leaf != nullptr && leaf->variable.is_cuda() &&
        (static_cast<int64_t>(leaf->variable.nbytes()) + kGranularity - 1) / kGranularity * kGranularity == bytes) {
      return true;
    }
  }
  return false;
}

// What an allocation is for if nothing has said so before the end of the step.
HolderKind decide(const Allocation& allocation) {
  if (allocation.kind != HolderKind::undecided) {
    return allocation.kind;
  }
  const bool was_kept = allocation.died < 0 && allocation.phase == kOptimizer;
  return allocation.step < current_step ? HolderKind::other : was_kept ? HolderKind::optimizer : HolderKind::temporary;
}

std::string join(std::initializer_list<int64_t> numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    text += (text.empty() ? "" : "\t") + std::to_string(number);
  }
  return text;
}

struct Event {
  int64_t time;
  int64_t kernels;
  int64_t bytes;  // negative: released
  const Allocation* allocation;
};

std::vector<Event> list_events() {
  std::vector<Event> events;
  for (const auto& allocation : allocations) {
    if (allocation->step == current_step) {
      events.push_back({allocation->born, allocation->kernels_at_birth, allocation->bytes, allocation.get()});
    }
    if (allocation->died >= 0) {
      events.push_back({allocation->died, allocation->kernels_at_death, -allocation->bytes, allocation.get()});
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
  return events;
}

}  // namespace

void install_holders() { lock_while_forking(holders_mutex); }

void forget_holders() {
  const std::lock_guard<std::mutex> guard(holders_mutex);
  allocations.clear();
  from_forward.clear();
  emptied.clear();
}

void begin_holders(bool with_lines) {
  const std::lock_guard<std::mutex> guard(holders_mutex);
  const auto is_dead = [](const std::shared_ptr<Allocation>& allocation) { return allocation->died >= 0; };
  allocations.erase(std::remove_if(allocations.begin(), allocations.end(), is_dead), allocations.end());
  live_at_begin = 0;
  for (const auto& allocation : allocations) {
    if (allocation->kind == HolderKind::undecided && allocation->phase == kOptimizer) {
      allocation->kind = HolderKind::optimizer;
    }
    live_at_begin += allocation->bytes;
  }
  from_forward.clear();
  ++current_step;
  is_finding_lines = with_lines;
}

std::shared_ptr<Allocation> add_allocation(int64_t bytes) {
  const auto place = current_place();
  auto allocation = std::make_shared<Allocation>();
  allocation->bytes = bytes;
  allocation->phase = place.phase;
  allocation->module = place.module;
  allocation->line = is_finding_lines && bytes >= kMinBytesWithLine ? current_line() : 0;
  allocation->kernels_at_birth = kernels();
  const bool is_forward = place.phase < kBackward || place.is_recompute;
  if (!is_forward && place.phase == kBackward && is_gradient(bytes)) {
    allocation->kind = HolderKind::gradient;
  }
  const std::lock_guard<std::mutex> guard(holders_mutex);
  allocation->step = current_step;
  allocation->born = events_so_far++;
  allocations.push_back(allocation);
  if (is_forward) {
    from_forward.push_back(allocation);
  }
  return allocation;
}

void end_allocation(Allocation& allocation) {
  const std::lock_guard<std::mutex> guard(holders_mutex);
  allocation.died = events_so_far++;
  allocation.kernels_at_death = kernels();
}

void continue_allocation(const c10::Storage& storage, const Allocation* before, Allocation* now) {
  const std::lock_guard<std::mutex> guard(holders_mutex);
  auto* implementation = storage.unsafeGetStorageImpl();
  if (now == nullptr) {
    if (before != nullptr && before->kind != HolderKind::undecided) {
      emptied.insert_or_assign(implementation, std::pair(storage.getWeakStorageImpl(), *before));
    }
    return;
  }
  const auto earlier = emptied.find(implementation);
  before = before == nullptr && earlier != emptied.end() ? &earlier->second.second : before;
  if (before != nullptr && before->kind != HolderKind::undecided) {
    now->kind = before->kind;
    now->module = before->module;
  }
}

void mark_holder(const at::Tensor& tensor, HolderKind kind, int64_t module) {
  const Block* block = block_of(tensor);
  if (block != nullptr) {
    const std::lock_guard<std::mutex> guard(holders_mutex);
    block->allocation->kind = kind;
    block->allocation->module = module;
  }
}

void mark_as_used_by_optimizer(const at::Tensor& tensor) {
  const Block* block = block_of(tensor);
  if (block != nullptr && block->allocation->kind == HolderKind::undecided) {
    const std::lock_guard<std::mutex> guard(holders_mutex);
    if (block->allocation->step < current_step) {
      block->allocation->kind = HolderKind::optimizer;
    }
  }
}

void end_forward() {
  const std::lock_guard<std::mutex> guard(holders_mutex);
  for (const auto& allocation : from_forward) {
    if (allocation->died < 0 && allocation->kind == HolderKind::undecided) {
      allocation->kind = HolderKind::activation;
    }
  }
  from_forward.clear();
}

std::vector<std::string> describe_memory(int64_t parts) {
  const int64_t last = std::max<int64_t>(1, kernels());
  std::unique_lock<std::mutex> guard(holders_mutex);
  std::vector<int64_t> highest(static_cast<size_t>(std::min(parts, last)), 0);
  const auto count = static_cast<int64_t>(highest.size());
  int64_t live = live_at_begin;
  int64_t peak = live;
  int64_t peak_time = -1;
  const Allocation* at_peak = nullptr;
  int64_t part = 0;
  const auto events = list_events();
  if (!events.empty()) {
    peak_time = events.front().time - 1;
  }
  for (const auto& item : events) {
    const int64_t part_of_event = std::min(count - 1, item.kernels * count / last);
    for (; part < part_of_event; ++part) {
      highest[static_cast<size_t>(part)] = std::max(highest[static_cast<size_t>(part)], live);
      highest[static_cast<size_t>(part + 1)] = live;
    }
    live += item.bytes;
    highest[static_cast<size_t>(part)] = std::max(highest[static_cast<size_t>(part)], live);
    if (live > peak) {
      peak = live;
      peak_time = item.time;
      at_peak = item.allocation;
    }
  }
  for (; part < count; ++part) {
    highest[static_cast<size_t>(part)] = std::max(highest[static_cast<size_t>(part)], live);
  }
  std::map<std::array<int64_t, 3>, std::pair<int64_t, int64_t>> groups;  // kind, module, line: bytes, number
  for (const auto& allocation : allocations) {
    const bool is_live = allocation->died < 0 || allocation->died > peak_time;
    if (is_live && (allocation->step < current_step || allocation->born <= peak_time)) {
      auto& group = groups[{static_cast<int64_t>(decide(*allocation)), allocation->module, allocation->line}];
      group.first += allocation->bytes;
      ++group.second;
    }
  }
  guard.unlock();  // the functions below lock the program's mutex
  std::vector<std::string> lines;
  const int64_t phase = at_peak != nullptr ? at_peak->phase : 0;
  lines.push_back(join({peak, phase, at_peak != nullptr ? at_peak->module : 0, count}));
  for (int64_t i = 0; i < count; ++i) {
    lines.push_back(join({phase_at_kernel(i * last / count), highest[static_cast<size_t>(i)]}));
  }
  for (const auto& [key, group] : groups) {
    lines.push_back(join({key[0], key[1], group.first, group.second}) + '\t' + text_of_line(key[2]));
  }
  return lines;
}

}  // namespace regbot::paper
