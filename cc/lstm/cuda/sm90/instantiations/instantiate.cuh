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

template <class C>
KernelSet InstantiateStack() {
  return {C::kHidden,
          C::kClusterSize,
          C::kRows,
          C::kThreads + kCourierThreads,
          C::kStackForwardShared,
          C::kStackBackwardShared,
          reinterpret_cast<const void*>(&StackForwardKernel<C>),
          reinterpret_cast<const void*>(&StackBackwardKernel<C>)};
}

template <class... C>
KernelList StackList() {
  static const KernelSet sets[] = {InstantiateStack<C>()...};
  return {sets, static_cast<int>(sizeof...(C))};
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_INSTANTIATIONS_INSTANTIATE_CUH_
