// Turns an element type and a padded hidden size into entries of the kernel table.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_INSTANTIATIONS_INSTANTIATE_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_INSTANTIATIONS_INSTANTIATE_CUH_

#include "cc/lstm/cuda/block/backward.cuh"
#include "cc/lstm/cuda/block/forward.cuh"
#include "cc/lstm/cuda/block/kernels.h"

namespace tfl::cuda::block {

template <class C>
KernelSet Instantiate() {
  return {reinterpret_cast<const void*>(&BlockForwardKernel<C>),
          reinterpret_cast<const void*>(&BlockBackwardKernel<C>)};
}

template <class E, int kHidden>
const KernelSet* Sets() {
  static const KernelSet sets[] = {Instantiate<BlockConfig<E, kHidden, 2>>(),
                                   Instantiate<BlockConfig<E, kHidden, 4>>(),
                                   Instantiate<BlockConfig<E, kHidden, 8>>()};
  return sets;
}

}  // namespace tfl::cuda::block

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_INSTANTIATIONS_INSTANTIATE_CUH_
