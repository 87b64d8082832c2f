// The paper GPU's memory: addresses without memory behind them, and known values.
//
// Each allocation is a Block, which is a range of reserved, unreadable addresses. If the values of an allocation are
// known, the Block also has their bytes in host memory. Live and peak bytes are counted as in CUDA's caching allocator:
// each allocation is rounded up to 512 bytes.
#pragma once

#include "holders.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace regbot::paper {

constexpr int64_t kGranularity = 512;
// The values of larger storages are never known. A mask of 4096 tokens x top-8 x 128 experts has 4 MiB. Gathered from 8
// ranks it has 32 MiB.
constexpr int64_t kMaxKnownBytes = int64_t{32} << 20;
// Size limit for storages of known floats. Floats are needed only for one-hot counts and constants: 4096 tokens x 256
// experts in float32 have 4 MiB.
constexpr int64_t kMaxKnownFloatBytes = int64_t{4} << 20;

// The values of a whole storage. Storages with equal values can share one object. Shared values are never written.
struct Values {
  at::Tensor bytes;  // uint8 on the host, with the length of the storage
  uint64_t id;       // equal ids mean equal bytes
};

// One allocation. It is the context of a storage's DataPtr.
struct Block {
  uintptr_t address = 0;
  int64_t bytes = 0;  // rounded up
  size_t gpu = 0;     // the GPU on which it was allocated
  std::shared_ptr<Allocation> allocation;
  std::shared_ptr<Values> values;  // null if no value is known
  at::Tensor known;                // one bool per byte of the storage; undefined tensor if all of `values` are known
  bool is_positive = false;        // all values are positive floats, but unknown; see positive.h
  bool may_be_infinite = false;    // some of the unknown floats may be infinite; see infinity.h
  int64_t number = -1;             // position in the order of first use in the fingerprinted step
  uint64_t step = 0;               // the step in which `number` is valid
};

// Reserve the addresses and replace CUDA's allocator. Throws c10::Error if the addresses cannot be reserved.
void install_memory();
c10::Allocator* allocator();

// Return the block of a tensor's storage, or null if the storage is empty.
Block* block_of(const at::Tensor& tensor);

bool is_on_paper(const at::Tensor& tensor);
bool is_known(const at::Tensor& tensor);
// Whether the storage is small enough for its values to be kept.
bool may_be_known(const at::Tensor& tensor);
// Return the values of a known tensor as a read-only host tensor, without a copy.
at::Tensor host_view(const at::Tensor& tensor);
// Return an id of the values that `tensor` views, or 0 for a host tensor.
uint64_t values_id(const at::Tensor& tensor);
// Return an id of the offset, sizes, strides and dtype of `tensor` in its storage.
uint64_t layout_id(const at::Tensor& tensor);
// Return an id of the values of a host tensor: a hash of its bytes.
uint64_t id_of_host_values(const at::Tensor& host);

// Set the values of `tensor` to those of `source`, a host tensor of the same sizes. If the storage of `tensor` is too
// large, its values become unknown. `id` identifies the values and the dtype of `source`. The new id also depends on
// the layout of `tensor`.
void write_known(const at::Tensor& tensor, const at::Tensor& source, uint64_t id);
void write_unknown(const at::Tensor& tensor);
// Set the values of `tensor` without copying them. `tensor` must cover its storage.
void share_values(const at::Tensor& tensor, std::shared_ptr<Values> values);
bool covers_storage(const at::Tensor& tensor);

// Narrow `view` to one element in every expanded dimension of `tensor`, because all elements of an expanded dimension
// share the same bytes. The first sizes of `view` are those of `tensor`.
at::Tensor without_repeats(at::Tensor view, const at::Tensor& tensor);

// Lock the mutex whenever the process forks. Other threads may run operators while a data loader forks its workers.
void lock_while_forking(std::mutex& mutex);

uint64_t new_id();
uint64_t mix(uint64_t a, uint64_t b);
uint64_t hash_bytes(const void* data, size_t size);

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
// Give the storage of `tensor` a new allocation of `bytes`. Known values that fit in it are kept.
void resize_storage(const at::Tensor& tensor, int64_t bytes);
// Grow the storage if it is too small for the sizes of `tensor`.
void grow_storage(const at::Tensor& tensor);

// Allocated bytes now, and the most since the last reset.
struct MemoryUse {
  int64_t live_bytes;
  int64_t peak_bytes;
};
MemoryUse memory_use();  // of all GPUs together
MemoryUse memory_use_of(int64_t gpu);
void reset_peak_bytes();  // of all GPUs
void reset_peak_bytes_of(int64_t gpu);

}  // namespace regbot::paper
