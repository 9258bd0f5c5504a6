// Turns a cluster configuration into an entry of the kernel table.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_INSTANTIATIONS_INSTANTIATE_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_INSTANTIATIONS_INSTANTIATE_CUH_

#include "cc/lstm/cuda/sm90/cluster_backward.cuh"
#include "cc/lstm/cuda/sm90/cluster_forward.cuh"
#include "cc/lstm/cuda/sm90/kernels.h"

namespace tfl::cuda::sm90 {

template <class C>
KernelSet Instantiate() {
  return {C::kHidden,
          C::kBytes,
          C::kClusterSize,
          C::kRows,
          C::kThreads,
          C::kForwardShared,
          C::kBackwardShared,
          reinterpret_cast<const void*>(&ClusterForwardKernel<C>),
          reinterpret_cast<const void*>(&ClusterBackwardKernel<C>)};
}

template <class... C>
KernelList List() {
  static const KernelSet sets[] = {Instantiate<C>()...};
  return {sets, static_cast<int>(sizeof...(C))};
}

// Where shared memory holds input weights there are kernels of the backward pass of one row tile.
template <class C>
KernelSet InstantiateStack() {
  KernelSet set = {C::kHidden,
                   C::kBytes,
                   C::kClusterSize,
                   C::kRows,
                   C::kThreads + kCourierThreads,
                   C::kStackForwardShared,
                   0,
                   reinterpret_cast<const void*>(&StackForwardKernel<C>),
                   nullptr};
  if constexpr (C::kSourceSharedSteps == 0 || C::kTiles == 1) {
    set.backward_shared_bytes = C::kStackBackwardShared;
    set.backward = reinterpret_cast<const void*>(&StackBackwardKernel<C>);
  }
  return set;
}

template <class... C>
KernelList StackList() {
  static const KernelSet sets[] = {InstantiateStack<C>()...};
  return {sets, static_cast<int>(sizeof...(C))};
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_INSTANTIATIONS_INSTANTIATE_CUH_
