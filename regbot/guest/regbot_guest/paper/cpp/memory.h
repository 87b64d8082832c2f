// The paper GPU's memory: addresses without bytes behind them, and the values that are known.
//
// An allocation is a Block: a range of reserved addresses that nobody can read, and, where the values are known, their
// bytes in host memory. Live and peak bytes follow CUDA's caching allocator: each allocation is rounded up to 512 bytes.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace regbot::paper {

constexpr int64_t kGranularity = 512;
// Larger storages are never known. 4096 tokens x top-8 x 128 experts as a mask are 4 MiB, gathered from 8 ranks 32 MiB.
constexpr int64_t kMaxKnownBytes = int64_t{32} << 20;
// Floating-point values are known for one-hot counts and constants only: 4096 tokens x 256 experts in float32.
constexpr int64_t kMaxKnownFloatBytes = int64_t{4} << 20;

// The values of a whole storage, shared between storages that hold the same ones and never written once shared.
struct Values {
  at::Tensor bytes;  // uint8, on the host, as long as the storage
  uint64_t id;       // equal ids mean equal bytes
};

// One allocation, the context of a storage's DataPtr.
struct Block {
  uintptr_t address = 0;
  int64_t bytes = 0;              // rounded up
  std::shared_ptr<Values> values; // null where nothing is known
  at::Tensor known;               // bool per byte of the storage; undefined where all of `values` is known
  int64_t number = -1;            // order of appearance in the step of the fingerprint
  uint64_t step = 0;              // the step that `number` belongs to
};

// Reserve the addresses and make the paper GPU's allocator CUDA's. Throws c10::Error where they cannot be reserved.
void install_memory();
c10::Allocator* allocator();

// The block behind a tensor of the paper GPU; null for an empty storage.
Block* block_of(const at::Tensor& tensor);

bool is_on_paper(const at::Tensor& tensor);
bool is_known(const at::Tensor& tensor);
bool may_be_known(const at::Tensor& tensor);
// The values behind a known tensor: a host tensor that shares memory with them. For reading only.
at::Tensor host_view(const at::Tensor& tensor);
// Identifies the values that `tensor` views, 0 where it is a tensor of the host.
uint64_t values_id(const at::Tensor& tensor);
// Identifies where and how `tensor` lies in its storage.
uint64_t layout_id(const at::Tensor& tensor);
// Identifies the values of a host tensor by their bytes.
uint64_t id_of_host_values(const at::Tensor& host);

// `tensor` now holds the values of `source`, a host tensor of its sizes. Storages too large to be known become unknown.
// `id` identifies the values of `source` with its dtype; the layout of `tensor` is mixed into it.
void write_known(const at::Tensor& tensor, const at::Tensor& source, uint64_t id);
void write_unknown(const at::Tensor& tensor);
// The same for a tensor that covers its storage, without a copy.
void share_values(const at::Tensor& tensor, std::shared_ptr<Values> values);
bool covers_storage(const at::Tensor& tensor);

// `view`, which has the sizes of `tensor`, with one element of every expanded dimension: the others share its bytes.
at::Tensor without_repeats(at::Tensor view, const at::Tensor& tensor);

// Take the mutex while the process forks: a data loader forks its workers while other threads run operators.
void lock_while_forking(std::mutex& mutex);

uint64_t new_id();
uint64_t mix(uint64_t a, uint64_t b);
uint64_t hash_bytes(const void* data, size_t size);

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
void resize_storage(const at::Tensor& tensor, int64_t bytes);
// Make the storage long enough for the sizes of `tensor`.
void grow_storage(const at::Tensor& tensor);

int64_t live_bytes();
int64_t peak_bytes();
void reset_peak_bytes();

} // namespace regbot::paper
