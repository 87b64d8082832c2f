// The paper GPU as a platform: device guard, hooks, generator, choice of attention.
#pragma once

#include <c10/core/Device.h>

namespace regbot::paper {

constexpr c10::DeviceIndex kDevices = 8;  // number of GPUs in a paper node

// Turn torch's device `cuda` into the paper GPU. Call this after torch is imported.
void install_platform();

}  // namespace regbot::paper
