#include "values.h"

#include "memory.h"
#include "python.h"

#include <cmath>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace regbot::paper {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Size limit of the cache of results. When the cache exceeds this size, it is emptied.
constexpr int64_t kMaxCachedBytes = int64_t{64} << 20;
// Largest host copy of unknown floats that is filled with ones. Larger copies are left as they are.
constexpr int64_t kMaxFilledBytes = int64_t{64} << 20;

std::mutex cache_mutex;  // guards `ShapeEntry::computed`
int64_t cached_bytes = 0;
std::vector<std::weak_ptr<ShapeEntry>> cached_entries;

// Host storages to which unknown floats were copied. They contain ones. If they are copied back to the GPU, the values
// there are unknown again.
std::mutex filled_mutex;
std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> filled_storages;
constexpr size_t kMaxFilled = 4096;  // at this size, entries of freed storages are removed

void remember_filled(const at::Tensor& host) {
  const std::lock_guard<std::mutex> guard(filled_mutex);
  if (filled_storages.size() >= kMaxFilled) {
    for (auto position = filled_storages.begin(); position != filled_storages.end();) {
      position = position->second.expired() ? filled_storages.erase(position) : std::next(position);
    }
  }
  const c10::Storage& storage = host.storage();
  filled_storages.insert_or_assign(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
}

// Return the ids of all values that the operator reads. Return nothing if it reads a host tensor that does not
// have exactly one element.
std::optional<std::vector<uint64_t>> ids_of(const Operator& info, const std::vector<IValue>& arguments) {
  std::vector<uint64_t> ids;
  bool complete = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (!info.is_read[i]) {
        return;
      }
      if (is_on_paper(tensor)) {
        ids.push_back(values_id(tensor));
      } else if (tensor.numel() == 1 && tensor.is_cpu()) {
        ids.push_back(hash_bytes(tensor.data_ptr(), tensor.dtype().itemsize()));
      } else {
        complete = false;
      }
    });
  }
  return complete ? std::optional(std::move(ids)) : std::nullopt;
}

// Return a new host tensor, which the operator writes instead of `tensor`. It contains the values of `tensor` if the
// operator reads them.
at::Tensor scratch_of(const at::Tensor& tensor, bool is_read, bool is_out) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (is_out) {
    return at::empty({0}, options);
  }
  auto scratch = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  if (is_read) {
    without_repeats(scratch, scratch).copy_(without_repeats(host_view(tensor), scratch));
  }
  return scratch;
}

// Return the tensors that the operator created or wrote in this call.
std::vector<at::Tensor> written_tensors(
    const Operator& info, const ShapeEntry& entry, const std::vector<IValue>& arguments, const Stack& results) {
  std::vector<at::Tensor> tensors;
  const auto collect = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
  for (size_t i = 0; i < results.size(); ++i) {
    if (entry.results[i].kind != Result::Kind::argument) {
      visit_tensors(results[i], collect);
    }
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_written[i]) {
      visit_tensors(arguments[i], collect);
    }
  }
  return tensors;
}

// Store the values that a call computed in the entry of the table, by the ids of the values that the call read.
void cache_values(
    const std::shared_ptr<ShapeEntry>& entry, std::vector<uint64_t> ids, std::vector<ComputedValue> computed) {
  const std::lock_guard<std::mutex> guard(cache_mutex);
  for (const auto& item : computed) {
    cached_bytes +=
        static_cast<int64_t>(item.storage_values ? item.storage_values->bytes.nbytes() : item.value.nbytes());
  }
  if (cached_bytes > kMaxCachedBytes) {
    for (const auto& cached_entry : cached_entries) {
      if (const auto other = cached_entry.lock()) {
        other->computed.clear();
      }
    }
    cached_entries.clear();
    cached_bytes = 0;
  }
  if (entry->computed.empty()) {
    cached_entries.push_back(entry);
  }
  entry->computed.emplace(std::move(ids), std::move(computed));
}

// Return the values that an equal call computed, or nothing if the cache has no such call.
std::optional<std::vector<ComputedValue>> find_cached(const ShapeEntry& entry, const std::vector<uint64_t>& ids) {
  const std::lock_guard<std::mutex> guard(cache_mutex);
  const auto position = entry.computed.find(ids);
  return position == entry.computed.end() ? std::nullopt : std::optional(position->second);
}

// Set the values of `tensor` to a value from the cache.
void write(const at::Tensor& tensor, const ComputedValue& computed) {
  if (!computed.storage_values) {
    write_known(tensor, computed.value, computed.id);
  } else if (covers_storage(tensor)) {
    share_values(tensor, computed.storage_values);
  } else {
    const auto storage_values =
        computed.storage_values->bytes.view(tensor.scalar_type()).as_strided(tensor.sizes(), tensor.strides(), 0);
    write_known(tensor, storage_values, computed.id);
  }
}

}  // namespace

bool was_filled(const at::Tensor& host) {
  if (!host.is_cpu() || !host.has_storage()) {
    return false;
  }
  const std::lock_guard<std::mutex> guard(filled_mutex);
  const auto position = filled_storages.find(host.storage().unsafeGetStorageImpl());
  return position != filled_storages.end() && !position->second.expired();
}

bool is_float(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

std::string dtype_and_sizes(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes();
  return text.str();
}

bool reads_only_known_values(const Operator& info, const std::vector<IValue>& arguments) {
  bool known = true;
  for (size_t i = 0; i < arguments.size() && known; ++i) {
    if (info.is_read[i]) {
      visit_tensors(arguments[i], [&](const at::Tensor& tensor) {
        known = known && (is_on_paper(tensor) ? is_known(tensor) : tensor.is_cpu() && !was_filled(tensor));
      });
    }
  }
  return known;
}

bool results_may_be_known(const ShapeEntry& entry) {
  const auto fits = [](const Result& result) {
    if (result.kind != Result::Kind::fresh) {
      return true;
    }
    const int64_t bytes = c10::multiply_integers(result.sizes) * static_cast<int64_t>(c10::elementSize(result.dtype));
    return bytes <= (at::isIntegralType(result.dtype, true) ? kMaxKnownBytes : kMaxKnownFloatBytes);
  };
  for (const auto& result : entry.results) {
    if (!fits(result) || !std::all_of(result.items.begin(), result.items.end(), fits)) {
      return false;
    }
  }
  return true;
}

bool writes_only_what_may_be_known(const Operator& info, const std::vector<IValue>& arguments) {
  bool fits = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.is_written[i]) {
      visit_tensors(arguments[i], [&](const at::Tensor& tensor) { fits = fits && may_be_known(tensor); });
    }
  }
  return fits;
}

void fill_host(const at::Tensor& target) {
  if (!is_float(target)) {
    refuse("values that depend on real data were copied to the host as integers (" + dtype_and_sizes(target) + ")");
  }
  remember_filled(target);
  if (static_cast<int64_t>(target.nbytes()) <= kMaxFilledBytes) {
    note("value", "floats that depend on data were copied to the host and answered with 1.0");
    target.fill_(1.0);
  } else {
    note("value", "floats that depend on data were copied to the host, too many to fill in");
  }
}

std::optional<HostRun> run_on_host(
    const c10::OperatorHandle& op, const Operator& info, const std::vector<IValue>& arguments) {
  Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_out = op.schema().arguments()[i].is_out();
    if (arguments[i].isDevice()) {
      stack.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else {
      stack.push_back(map_tensors(arguments[i], [&](const at::Tensor& tensor) {
        if (!is_on_paper(tensor)) {
          return tensor;
        }
        return info.is_written[i] ? scratch_of(tensor, info.is_read[i], is_out) : host_view(tensor);
      }));
    }
  }
  HostRun run{stack, stack};
  try {
    op.callBoxed(run.results);
    return run;
  } catch (const c10::NotImplementedError&) {
  }
  // The CPU may have no kernel for a dtype that the GPU supports, such as histc of integers. Then integers are
  // converted.
  for (auto& value : stack) {
    value = map_tensors(value, [](const at::Tensor& tensor) {
      const bool integral = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
      return integral ? tensor.to(at::kDouble) : tensor;
    });
  }
  run = {stack, stack};
  try {
    op.callBoxed(run.results);
    return run;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

bool compute(
    const c10::OperatorHandle& op,
    const Operator& info,
    const std::vector<IValue>& arguments,
    const std::shared_ptr<ShapeEntry>& entry,
    const Stack& results,
    bool may_cache) {
  const auto targets = written_tensors(info, *entry, arguments, results);
  auto ids = may_cache ? ids_of(info, arguments) : std::nullopt;
  if (ids) {
    if (const auto computed = find_cached(*entry, *ids)) {
      for (size_t i = 0; i < targets.size(); ++i) {
        write(targets[i], (*computed)[i]);
      }
      return true;
    }
  }
  const auto run = run_on_host(op, info, arguments);
  if (!run) {
    return false;
  }
  const auto values = written_tensors(info, *entry, run->arguments, run->results);
  const auto same_sizes = [](const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); };
  if (!std::equal(targets.begin(), targets.end(), values.begin(), values.end(), same_sizes)) {
    return false;  // on a GPU the operator has different results, such as an additional one
  }
  std::vector<ComputedValue> computed;
  uint64_t call_id =
      ids ? mix(hash_bytes(info.name.data(), info.name.size()), reinterpret_cast<uintptr_t>(entry.get())) : new_id();
  for (const uint64_t id : ids.value_or(std::vector<uint64_t>{})) {
    call_id = mix(call_id, id);
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!is_on_paper(targets[i])) {
      if (targets[i].is_cpu() && !targets[i].is_same(values[i])) {
        targets[i].copy_(values[i]);
      }
      ids.reset();  // the cache does not store the values of host tensors
      continue;
    }
    const uint64_t id = mix(call_id, i);
    write_known(targets[i], values[i], id);
    const Block* block = block_of(targets[i]);
    if (block != nullptr && covers_storage(targets[i])) {
      computed.push_back({at::Tensor(), id, block->values});
    } else {
      computed.push_back({values[i].clone(), id, nullptr});  // cloned, because a result may be a view of an argument
    }
  }
  if (ids) {
    cache_values(entry, std::move(*ids), std::move(computed));
  }
  return true;
}

void write_unknown_anywhere(const at::Tensor& tensor) {
  if (is_on_paper(tensor) || !tensor.is_cpu()) {
    write_unknown(tensor);
  } else {
    fill_host(tensor);
  }
}

void install_values() {
  lock_while_forking(cache_mutex);
  lock_while_forking(filled_mutex);
}

}  // namespace regbot::paper
