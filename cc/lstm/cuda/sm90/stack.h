// The layers of a stack at once, each on clusters of its own, in one launch: a layer takes the
// output of the one below row by row as it comes (backward: the gradients of the gates of the one
// above) and multiplies it itself, so that beside the recurrences nothing runs between two layers.
// See docs/performance/clusters.md.
//
// For layers of one size and type, 16 bits wide or with TF32 products, that read their rows in the
// order in which the layer below writes them, as long as all of their clusters fit on the device at
// once.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_STACK_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_STACK_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/sm90/kernels.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Whether `layers` specs, the first at the bottom, can run at once, and with `only_if_faster`
// whether that also takes less time than one after the other.
bool ClusterStackForwardSupported(const tfl_lstm_spec* specs, int layers, bool only_if_faster,
                                  const DeviceLimits& limits);
bool ClusterStackBackwardSupported(const tfl_lstm_spec* specs, int layers, bool only_if_faster,
                                   const DeviceLimits& limits);

int64_t ClusterStackWorkspaceBytes(const tfl_lstm_spec& spec, int layers);

// A call a layer, of which all but the first (backward: the last) have no projection (grad_output),
// and the layers' input weights. calls[l].output of one layer is x of the next. The workspace is
// that of calls[0].
tfl_status ClusterStackForward(const ForwardRecurrence* calls, const void* const* kernels,
                               int layers, cudaStream_t stream);
tfl_status ClusterStackBackward(const BackwardRecurrence* calls, const void* const* kernels,
                                int layers, cudaStream_t stream);

namespace sm90 {

// How a stack's layers are cut into slices of the batch: as lets all of them be on the device at
// once and takes the least time. `set` is an index, negative where they do not fit.
struct StackSlices {
  int set;
  int64_t rows;
  int64_t slices;
  int64_t step_ns;
};

// clusters[i]: how many of sets.sets[i] the device runs at a time.
StackSlices ChooseStackSlices(const KernelList& sets, const int* clusters, int64_t batch,
                              int layers, bool forward);

// Nanoseconds of a step of one layer of the type and units of `set`, where the cluster's plan
// chooses slices by estimate_ns.
int64_t SingleStepCost(const KernelSet& set, int64_t estimate_ns, bool forward);

// Whether all layers at once take less time than one after the other with single_step_ns a step.
bool StackPays(int64_t steps, int layers, int64_t step_ns, int64_t single_step_ns);

}  // namespace sm90

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_STACK_H_
