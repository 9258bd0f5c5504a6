// The table of instantiated block kernels, which instantiations/*.cu fill.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_KERNELS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_KERNELS_H_

namespace tfl::cuda::block {

struct KernelSet {
  const void* forward;   // void(sm90::ForwardParams, int slots)
  const void* backward;  // void(sm90::BackwardParams, int slots)
};

// Whether this build has code for a device that can run them: else they are empty.
bool HasKernels();
// Whether devices of compute capability 9.0 run code that waits for the kernel before
// (early_launch.cuh), not code for 8.x translated for them.
bool KernelsCanWait();

// By element type and padded hidden size: for 2, 4 and 8 batch rows a block.
#define TFL_BLOCK_LISTS(X) X(Bfloat16, 64) X(Bfloat16, 128) X(Float16, 64) X(Float16, 128)
#define TFL_DECLARE(type, hidden) const KernelSet* type##Blocks##hidden();
TFL_BLOCK_LISTS(TFL_DECLARE)
#undef TFL_DECLARE

}  // namespace tfl::cuda::block

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_KERNELS_H_
