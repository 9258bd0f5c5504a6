#include "cc/lstm/cuda/block/block.h"

#include "cc/lstm/cuda/block/config.h"
#include "cc/lstm/cuda/block/kernels.h"
#include "cc/lstm/cuda/block/plan.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/sm90/cluster.h"
#include "cc/lstm/cuda/sm90/launch.h"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/vector/kernels.h"

namespace tfl::cuda {
namespace {

const block::KernelSet* Find(const tfl_lstm_spec& spec, const BlockPlan& plan) {
#define TFL_FIND(type, padded)                                   \
  if (spec.dtype == k##type && plan.padded_hidden == padded) {   \
    return block::type##Blocks##padded() + plan.kernel_rows / 4; \
  }
  constexpr tfl_dtype kBfloat16 = TFL_BFLOAT16, kFloat16 = TFL_FLOAT16;
  TFL_BLOCK_LISTS(TFL_FIND)
#undef TFL_FIND
  return nullptr;
}

template <class Call, class Params>
tfl_status Run(const Call* calls, int count, bool forward, bool may_begin_early, Params params,
               cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(calls[0].device, &limits));
  BlockPlan plan;
  if (!MakeBlockPlan(spec, limits, &plan)) {
    return Error(TFL_INTERNAL, "the block family was asked for a call that it does not support");
  }
  params.rows = plan.rows;
  const block::KernelSet* set = Find(spec, plan);
  const void* kernel = forward ? set->forward : set->backward;
  const int shared = block::SharedBytes(plan.padded_hidden, plan.kernel_rows, plan.slots, forward);
  TFL_RETURN_IF_ERROR(AllowSharedBytes(kernel, shared));
  void* arguments[] = {&params, &plan.slots};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.blocks, count);
  config.blockDim = dim3(2 * plan.padded_hidden);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  // The kernel brings R while the projection is being made.
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  const bool begins_early =
      may_begin_early && limits.compute_capability >= 90 && block::KernelsCanWait();
  config.numAttrs = begins_early ? 1 : 0;
  return FromCuda(
      cudaLaunchKernelExC(&config, kernel, arguments),
      forward ? "launching the block kernel forward" : "launching the block kernel backward");
}

tfl_status RunForward(const ForwardRecurrence* calls, int count, cudaStream_t stream) {
  sm90::ForwardParams p = {};
  SetCommon(calls[0].spec, calls[0].mask, &p);
  if (calls[0].projection_dtype != TFL_FLOAT32) {
    return Error(TFL_INTERNAL, "the block family takes a float32 projection");
  }
  p.projection_is_float = true;
  p.weights_are_float = calls[0].spec.weight_dtype == TFL_FLOAT32;
  for (int i = 0; i < count; ++i) SetJob(calls[i], &p, &p.jobs[i]);
  return Run(calls, count, true, calls[count - 1].may_begin_early, p, stream);
}

tfl_status RunBackward(const BackwardRecurrence* calls, int count, cudaStream_t stream) {
  sm90::BackwardParams p = {};
  SetCommon(calls[0].spec, calls[0].mask, &p);
  if (calls[0].grad_gates_dtype != calls[0].spec.dtype) {
    return Error(TFL_INTERNAL, "the block family writes gate gradients in the call's type");
  }
  for (int i = 0; i < count; ++i) SetJob(calls[i], &p, &p.jobs[i]);
  return Run(calls, count, false, false, p, stream);
}

}  // namespace

bool BlockSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  BlockPlan plan;
  return block::HasKernels() && MakeBlockPlan(spec, limits, &plan);
}

int64_t BlockWorkspaceBytes(const tfl_lstm_spec&) { return 0; }

tfl_status BlockForward(const ForwardRecurrence& call, cudaStream_t stream) {
  return RunForward(&call, 1, stream);
}

tfl_status BlockForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream) {
  return RunForward(calls, 2, stream);
}

tfl_status BlockBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  return RunBackward(&call, 1, stream);
}

tfl_status BlockBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream) {
  return RunBackward(calls, 2, stream);
}

}  // namespace tfl::cuda
