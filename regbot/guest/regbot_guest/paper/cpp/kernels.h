// The kernels of the paper GPU.
#pragma once

namespace regbot::paper {

// Put the paper GPU's kernels in the place of CUDA's, for every operator of aten. Call it after torch has been imported.
void install_kernels();

} // namespace regbot::paper
