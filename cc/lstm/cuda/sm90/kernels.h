// The table of instantiated cluster kernels, which instantiations/*.cu fill.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_KERNELS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_KERNELS_H_

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda::sm90 {

struct KernelSet {
  int hidden;         // the most units; fewer are padded
  int element_bytes;  // of the type
  int cluster_size;
  int rows;  // batch rows a cluster owns
  int threads;
  int forward_shared_bytes;
  int backward_shared_bytes;
  const void* forward;   // void(ForwardParams)
  const void* backward;  // void(BackwardParams); a stack's may be null
};

struct KernelList {
  const KernelSet* sets;
  int count;
};

// One list a file of instantiations/: by element type and padded hidden size, fewer rows first.
#define TFL_CLUSTER_LISTS(X) \
  X(Bfloat16, 64)            \
  X(Bfloat16, 128)           \
  X(Bfloat16, 256)           \
  X(Bfloat16, 384)           \
  X(Bfloat16, 512)           \
  X(Float16, 64)             \
  X(Float16, 128)            \
  X(Float16, 256) X(Float16, 384) X(Float16, 512) X(Tf32, 64) X(Tf32, 128) X(Tf32, 256)
#define TFL_DECLARE(type, hidden) KernelList type##Kernels##hidden();
TFL_CLUSTER_LISTS(TFL_DECLARE)
// Likewise of stacks, whose kernels take StackForwardParams and StackBackwardParams.
#define TFL_STACK_LISTS(X) \
  X(Bfloat16, 64)          \
  X(Bfloat16, 128)         \
  X(Bfloat16, 256)         \
  X(Bfloat16, 384)         \
  X(Bfloat16, 512)         \
  X(Float16, 64)           \
  X(Float16, 128)          \
  X(Float16, 256)          \
  X(Float16, 384)          \
  X(Float16, 512)          \
  X(Tf32, 64)              \
  X(Tf32, 128)             \
  X(Tf32, 256)
#define TFL_DECLARE_STACK(type, hidden) KernelList type##Stacks##hidden();
TFL_STACK_LISTS(TFL_DECLARE_STACK)
#undef TFL_DECLARE_STACK
#undef TFL_DECLARE

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_KERNELS_H_
