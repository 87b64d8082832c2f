#include "memory.h"

#include "platform.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace regbot::paper {
namespace {

constexpr size_t kReserved = size_t{1} << 44;  // 16 TiB of addresses, without memory behind them

std::mutex address_mutex;  // guards the addresses below
uintptr_t first_address = 0;
uintptr_t next_address = 0;
std::unordered_map<int64_t, std::vector<uintptr_t>> free_addresses;  // by size; later allocations reuse them

// Counts of allocated bytes: now, and the most since the last reset.
struct ByteCounter {
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> peak{0};

  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t highest = peak.load();
    // Raise the peak to `now`, unless another thread has raised it higher. A failed exchange updates `highest`.
    while (now > highest && !peak.compare_exchange_weak(highest, now)) {
    }
  }
};

ByteCounter all_bytes;
std::array<ByteCounter, kDevices> bytes_of_gpu;
std::atomic<uint64_t> ids{1};

struct sigaction previous_handler;

// Return an address for an allocation of `bytes`: a free one of an allocation of this size, or else the next one.
uintptr_t take_address(int64_t bytes) {
  const std::lock_guard<std::mutex> guard(address_mutex);
  auto& reusable = free_addresses[bytes];
  if (!reusable.empty()) {
    const uintptr_t address = reusable.back();
    reusable.pop_back();
    return address;
  }
  if (next_address + static_cast<size_t>(bytes) > first_address + kReserved) {
    TORCH_CHECK(false, "the paper GPU has no addresses left: more than 16 TiB of different allocations were made");
  }
  const uintptr_t address = next_address;
  next_address += static_cast<size_t>(bytes);
  return address;
}

// Free an allocation. torch calls this for each storage that is deleted; `context` is its Block.
void release(void* context) {
  auto* block = static_cast<Block*>(context);
  all_bytes.live -= block->bytes;
  bytes_of_gpu.at(block->gpu).live -= block->bytes;
  end_allocation(*block->allocation);
  {
    const std::lock_guard<std::mutex> guard(address_mutex);
    free_addresses[block->bytes].push_back(block->address);
  }
  delete block;
}

struct PaperAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const auto* device = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
    if (size == 0) {
      return {nullptr, device->getDevice()};
    }
    auto* block = new Block;
    block->bytes = (static_cast<int64_t>(size) + kGranularity - 1) / kGranularity * kGranularity;
    block->address = take_address(block->bytes);
    block->gpu = static_cast<size_t>(device->getDevice().index());
    all_bytes.add(block->bytes);
    bytes_of_gpu.at(block->gpu).add(block->bytes);
    block->allocation = add_allocation(block->bytes);
    return {reinterpret_cast<void*>(block->address), block, &release, device->getDevice()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

PaperAllocator the_allocator;

// If a process crashes because it accesses a paper address, print the reason. Then let it crash.
void explain_fault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address >= first_address && address < first_address + kReserved) {
    static constexpr char text[] =
        "paper GPU: code read or wrote GPU memory through a raw pointer. A paper GPU has no "
        "memory, so a compiled extension or a custom kernel cannot run on it.\n";
    const auto written = write(STDERR_FILENO, text, sizeof(text) - 1);
    static_cast<void>(written);
  }
  if ((previous_handler.sa_flags & SA_SIGINFO) != 0 && previous_handler.sa_sigaction != nullptr) {
    previous_handler.sa_sigaction(signal, info, context);
    return;
  }
  sigaction(signal, &previous_handler, nullptr);  // the fault repeats, and the previous handler gets it
}

int64_t itemsize(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.dtype().itemsize()); }

// Return a host tensor with the metadata of `tensor`. `bytes` are the bytes of the storage of `tensor`.
at::Tensor view_of(const at::Tensor& bytes, const at::Tensor& tensor) {
  auto* start = static_cast<char*>(bytes.data_ptr()) + tensor.storage_offset() * itemsize(tensor);
  auto view = at::from_blob(start, tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

// Return flags that say which bytes of `tensor` are known, as a view of `known`, the flags of its storage. The last
// dimension of the result has the bytes of one element.
at::Tensor flags_of(const at::Tensor& known, const at::Tensor& tensor) {
  const int64_t width = itemsize(tensor);
  at::DimVector sizes(tensor.sizes());
  at::DimVector strides;
  for (const int64_t stride : tensor.strides()) {
    strides.push_back(stride * width);
  }
  sizes.push_back(width);
  strides.push_back(1);
  auto* start = static_cast<bool*>(known.data_ptr()) + tensor.storage_offset() * width;
  return without_repeats(at::from_blob(start, sizes, strides, at::TensorOptions().dtype(at::kBool)), tensor);
}

at::Tensor host_bytes(int64_t size) { return at::zeros({size}, at::TensorOptions().dtype(at::kByte)); }

}  // namespace

at::Tensor without_repeats(at::Tensor view, const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) {
      view = view.narrow(dim, 0, 1);
    }
  }
  return view;
}

uint64_t layout_id(const at::Tensor& tensor) {
  uint64_t id = mix(static_cast<uint64_t>(tensor.storage_offset()), static_cast<uint64_t>(tensor.scalar_type()));
  id = mix(id, (tensor.is_conj() ? 1 : 0) + (tensor.is_neg() ? 2 : 0));
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    id = mix(id, mix(static_cast<uint64_t>(tensor.size(dim)), static_cast<uint64_t>(tensor.stride(dim))));
  }
  return id;
}

uint64_t id_of_host_values(const at::Tensor& host) {
  const at::Tensor dense = host.contiguous().resolve_conj().resolve_neg();
  return mix(hash_bytes(dense.data_ptr(), dense.nbytes()), static_cast<uint64_t>(dense.scalar_type()));
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() &&
         tensor.numel() * itemsize(tensor) == static_cast<int64_t>(tensor.storage().nbytes());
}

void install_memory() {
  void* reserved = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(
      reserved != MAP_FAILED,
      "the paper GPU cannot reserve 16 TiB of addresses (no memory is used); lift the limit on address space "
      "(ulimit -v unlimited)");
  first_address = next_address = reinterpret_cast<uintptr_t>(reserved);
  c10::SetAllocator(c10::DeviceType::CUDA, &the_allocator, 100);
  struct sigaction handler{};
  handler.sa_sigaction = &explain_fault;
  handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&handler.sa_mask);
  sigaction(SIGSEGV, &handler, &previous_handler);
  lock_while_forking(address_mutex);
}

c10::Allocator* allocator() { return &the_allocator; }

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return nullptr;
  }
  const auto& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &release ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

bool is_on_paper(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

bool is_known(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return true;
  }
  const Block* block = block_of(tensor);
  if (block == nullptr || !block->values || static_cast<int64_t>(tensor.nbytes()) > kMaxKnownBytes) {
    return false;  // an expanded tensor can be larger than its storage
  }
  return !block->known.defined() || flags_of(block->known, tensor).all().item<bool>();
}

bool may_be_known(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  const bool integral = at::isIntegralType(dtype, /*includeBool=*/true);
  return static_cast<int64_t>(tensor.storage().nbytes()) <= (integral ? kMaxKnownBytes : kMaxKnownFloatBytes);
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
  }
  return view_of(block_of(tensor)->values->bytes, tensor);
}

uint64_t values_id(const at::Tensor& tensor) {
  const Block* block = is_on_paper(tensor) ? block_of(tensor) : nullptr;
  if (block == nullptr || !block->values) {
    return 0;
  }
  return mix(block->values->id, static_cast<uint64_t>(tensor.storage_offset()));
}

void write_known(const at::Tensor& tensor, const at::Tensor& source, uint64_t id) {
  Block* block = block_of(tensor);
  if (block == nullptr || tensor.numel() == 0) {
    return;
  }
  block->is_positive = false;
  if (!may_be_known(tensor)) {
    write_unknown(tensor);
    return;
  }
  const auto size = static_cast<int64_t>(tensor.storage().nbytes());
  if (covers_storage(tensor)) {
    block->may_be_infinite = false;
    auto bytes = host_bytes(size);
    view_of(bytes, tensor).copy_(source);
    block->values = std::make_shared<Values>(Values{std::move(bytes), mix(id, layout_id(tensor))});
    block->known = at::Tensor();
    return;
  }
  // The tensor is only a part of its storage. The rest of the storage stays as it is.
  if (!block->values) {
    block->values = std::make_shared<Values>(Values{host_bytes(size), new_id()});
    block->known = at::zeros({size}, at::TensorOptions().dtype(at::kBool));
  } else if (block->values.use_count() > 1) {  // shared with other storages, which keep the old values
    block->values = std::make_shared<Values>(Values{block->values->bytes.clone(), block->values->id});
  }
  without_repeats(view_of(block->values->bytes, tensor), tensor)
      .copy_(without_repeats(source.expand(tensor.sizes()), tensor));
  block->values->id = mix(mix(block->values->id, id), layout_id(tensor));
  if (block->known.defined()) {
    flags_of(block->known, tensor).fill_(true);
    if (block->known.all().item<bool>()) {
      block->known = at::Tensor();
    }
  }
}

void write_unknown(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  if (block != nullptr) {
    block->is_positive = false;
    block->may_be_infinite = block->may_be_infinite && !covers_storage(tensor);
  }
  if (block == nullptr || !block->values || tensor.numel() == 0) {
    return;
  }
  if (covers_storage(tensor)) {
    block->values.reset();
    block->known = at::Tensor();
    return;
  }
  if (!block->known.defined()) {
    block->known = at::ones({static_cast<int64_t>(tensor.storage().nbytes())}, at::TensorOptions().dtype(at::kBool));
  }
  // Only a part of the storage becomes unknown. Other storages may share the old values, so this one gets a copy.
  flags_of(block->known, tensor).fill_(false);
  block->values = std::make_shared<Values>(Values{block->values->bytes.clone(), new_id()});
}

void share_values(const at::Tensor& tensor, std::shared_ptr<Values> values) {
  Block* block = block_of(tensor);
  if (block != nullptr) {
    block->is_positive = false;
    block->may_be_infinite = false;
    block->values = std::move(values);
    block->known = at::Tensor();
  }
}

void lock_while_forking(std::mutex& mutex) {
  static auto* mutexes = new std::vector<std::mutex*>();  // never destroyed, because a fork may happen at any time
  if (mutexes->empty()) {
    const auto unlock = [] {
      std::for_each(mutexes->rbegin(), mutexes->rend(), [](std::mutex* item) { item->unlock(); });
    };
    pthread_atfork(
        [] { std::for_each(mutexes->begin(), mutexes->end(), [](std::mutex* item) { item->lock(); }); }, unlock,
        unlock);  // before the fork, and after it in the parent and in the child
  }
  mutexes->push_back(&mutex);
}

uint64_t new_id() { return mix(0x9e3779b97f4a7c15ULL, ids.fetch_add(1)); }

uint64_t mix(uint64_t a, uint64_t b) {  // splitmix64: Steele, Lea and Flood 2014
  uint64_t x = a * 0xbf58476d1ce4e5b9ULL + b + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t hash_bytes(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = mix(size, 0);
  size_t position = 0;
  for (; position + 8 <= size; position += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + position, 8);
    hash = mix(hash, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes + position, size - position);
  return mix(hash, rest);
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  return at::detail::empty_strided_generic(
      sizes, strides, &the_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype);
}

void resize_storage(const at::Tensor& tensor, int64_t bytes) {
  const c10::OptionalDeviceGuard guard(tensor.device());
  auto storage = tensor.storage();
  const auto old_bytes = static_cast<int64_t>(storage.nbytes());
  const Block* old_block = block_of(tensor);
  auto pointer = the_allocator.allocate(static_cast<size_t>(bytes));
  auto* block = static_cast<Block*>(pointer.get_context());
  continue_allocation(
      storage, old_block != nullptr ? old_block->allocation.get() : nullptr,
      block != nullptr ? block->allocation.get() : nullptr);
  if (block != nullptr && old_block != nullptr) {
    block->may_be_infinite = old_block->may_be_infinite;
  }
  if (block != nullptr && old_block != nullptr && old_block->values && bytes <= kMaxKnownBytes) {
    const int64_t copied_bytes = std::min(old_bytes, bytes);
    auto copy = host_bytes(bytes);
    copy.narrow(0, 0, copied_bytes).copy_(old_block->values->bytes.narrow(0, 0, copied_bytes));
    block->values = std::make_shared<Values>(Values{std::move(copy), new_id()});
    if (bytes > old_bytes || old_block->known.defined()) {
      block->known = at::zeros({bytes}, at::TensorOptions().dtype(at::kBool));
      auto flags = block->known.narrow(0, 0, copied_bytes);
      old_block->known.defined() ? flags.copy_(old_block->known.narrow(0, 0, copied_bytes)) : flags.fill_(true);
    }
  }
  storage.set_data_ptr_noswap(std::move(pointer));
  storage.set_nbytes(static_cast<size_t>(bytes));
}

void grow_storage(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(), static_cast<size_t>(tensor.storage_offset())));
  if (static_cast<int64_t>(tensor.storage().nbytes()) < bytes) {
    resize_storage(tensor, bytes);
  }
}

MemoryUse memory_use() { return {all_bytes.live, all_bytes.peak}; }

MemoryUse memory_use_of(int64_t gpu) {
  const auto& counter = bytes_of_gpu.at(static_cast<size_t>(gpu));
  return {counter.live, counter.peak};
}

void reset_peak_bytes() {
  all_bytes.peak.store(all_bytes.live);
  for (int64_t gpu = 0; gpu < kDevices; ++gpu) {
    reset_peak_bytes_of(gpu);
  }
}

void reset_peak_bytes_of(int64_t gpu) {
  auto& counter = bytes_of_gpu.at(static_cast<size_t>(gpu));
  counter.peak.store(counter.live);
}

}  // namespace regbot::paper
