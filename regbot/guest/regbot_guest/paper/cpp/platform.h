// The paper GPU as a platform: device guard, hooks, generator, choice of attention.
#pragma once

#include <c10/core/Device.h>

namespace regbot::paper {

constexpr c10::DeviceIndex kDevices = 8; // GPUs of a paper node

// Make the paper GPU torch's device `cuda`. Call it after torch has been imported.
void install_platform();

} // namespace regbot::paper
