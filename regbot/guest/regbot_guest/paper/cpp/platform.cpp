// The paper GPU as a platform: everything other than kernels that torch needs from CUDA. This is the device guard, the
// hooks, the generator and the choice of attention.
#include "platform.h"

#include "python.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace regbot::paper {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

thread_local DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};  // per GPU; 0 is the default stream

Device cuda(DeviceIndex index) { return {DeviceType::CUDA, index}; }

// Number streams as CUDA does: bit 0 marks a stream of a pool, bits 1 to 4 are 1 minus its priority, and the higher
// bits are its place in the pool. A pool has 32 streams, which are given out in turn.
Stream new_stream(DeviceIndex index, int priority) {
  constexpr int kPriorities = 4;
  constexpr uint64_t kStreamsPerPool = 32;
  static std::array<std::array<std::atomic<uint64_t>, kPriorities>, kDevices> streams_of_pool{};
  const int pool = std::clamp(-priority, 0, kPriorities - 1);
  const auto place = streams_of_pool.at(static_cast<size_t>(index)).at(static_cast<size_t>(pool))++ % kStreamsPerPool;
  return Stream(
      Stream::UNSAFE, cuda(index), static_cast<c10::StreamId>(place << 5 | static_cast<uint64_t>(pool + 1) << 1 | 1));
}

void check_index(DeviceIndex index) {
  TORCH_CHECK(
      index < kDevices, "invalid device ordinal: a paper node has ", static_cast<int>(kDevices), " GPUs, but number ",
      static_cast<int>(index), " was requested");
}

DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : current_device; }

// Operators run immediately and in order, so streams and events do nothing. Each has a number of its own, because
// programs compare them.
struct PaperGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    const Device previous = cuda(current_device);
    setDevice(device);
    return previous;
  }
  Device getDevice() const override { return cuda(current_device); }
  void setDevice(Device device) const override {
    check_index(device.index());
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) {
      current_device = device.index();
    }
  }
  Stream getStream(Device device) const override {
    const DeviceIndex index = index_of(device);
    return Stream(Stream::UNSAFE, cuda(index), current_streams.at(static_cast<size_t>(index)));
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, cuda(index_of(device))); }
  Stream getNewStream(Device device, int priority) const override { return new_stream(index_of(device), priority); }
  Stream getStreamFromGlobalPool(Device device, bool has_high_priority) const override {
    return new_stream(index_of(device), has_high_priority ? -1 : 0);
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream previous = getStream(stream.device());
    current_streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
    return previous;
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    static std::atomic<uintptr_t> last_event{uintptr_t{1} << 62};  // no address of a process is this high
    if (*event == nullptr) {
      *event = reinterpret_cast<void*>(++last_event);
    }
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override { wait_on_host("synchronize"); }
  void synchronizeEvent(void*) const override { wait_on_host("event"); }
  void synchronizeDevice(const DeviceIndex) const override { wait_on_host("synchronize"); }
  double elapsedTime(void*, void*, const DeviceIndex) const override {
    refuse("the time between two events was read (elapsed_time): a paper GPU has no times");
  }
};

// Seed and offset of CUDA's generator. The generator draws no numbers, because random values are unknown.
struct PaperGenerator final : c10::GeneratorImpl {
  explicit PaperGenerator(DeviceIndex index)
      : GeneratorImpl(cuda(index), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes, "the state of a CUDA generator has 16 bytes, not ", state.numel());
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte));
    auto* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    seed_ = state->current_seed();
    offset_ = state->get_offset();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }

 private:
  static constexpr int64_t kStateBytes = 16;
  PaperGenerator* clone_impl() const override {
    auto* copy = new PaperGenerator(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// Choose the attention that PyTorch prefers on Hopper: flash attention for half precision without a mask,
// memory-efficient attention with a mask. The numbers are those of sdp::SDPBackend.
int64_t choose_attention(
    const at::Tensor& query,
    const at::Tensor&,
    const at::Tensor&,
    const std::optional<at::Tensor>& mask,
    double,
    bool,
    std::optional<double>,
    bool grouped_query) {
  constexpr int64_t kMath = 0;
  constexpr int64_t kFlash = 1;
  constexpr int64_t kEfficient = 2;
  constexpr int64_t kFlashHeadSize = 256;
  const auto dtype = query.scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (is_half && !mask.has_value() && query.size(-1) <= kFlashHeadSize) {
    return kFlash;
  }
  return grouped_query ? kMath : kEfficient;
}

PaperGuard the_guard;

}  // namespace

void install_platform() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&the_guard);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
}

}  // namespace regbot::paper

namespace at {
namespace {

// torch looks up its hooks only once, so this library must be loaded before torch is imported. A CUDA build of torch
// registers its own hooks with a lower priority.
struct PaperHooks : public CUDAHooksInterface {
  explicit PaperHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return regbot::paper::kDevices; }
  int getNumGPUs() const override { return regbot::paper::kDevices; }
  DeviceIndex current_device() const override { return regbot::paper::current_device; }
  DeviceIndex getCurrentDevice() const override { return regbot::paper::current_device; }
  void setCurrentDevice(DeviceIndex device) const override {
    regbot::paper::check_index(device);
    regbot::paper::current_device = device;
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    regbot::paper::check_index(device);
    return std::exchange(regbot::paper::current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  Generator getNewGenerator(DeviceIndex device) const override {
    return make_generator<regbot::paper::PaperGenerator>(device < 0 ? regbot::paper::current_device : device);
  }
  const Generator& getDefaultGenerator(DeviceIndex device) const override {
    static const auto generators = [this] {
      std::vector<Generator> created;
      for (DeviceIndex index = 0; index < regbot::paper::kDevices; ++index) {
        created.push_back(getNewGenerator(index));
      }
      return created;
    }();
    return generators.at(static_cast<size_t>(device < 0 ? regbot::paper::current_device : device));
  }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(kCPU); }
  void deviceSynchronize(DeviceIndex) const override { regbot::paper::wait_on_host("synchronize"); }
};

}  // namespace

C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, PaperHooks)

}  // namespace at
