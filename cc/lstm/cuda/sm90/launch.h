// Launching the cluster kernels: what single layers and stacks share on the host.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_LAUNCH_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/sm90/kernels.h"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda::sm90 {

constexpr int kUnknown = -1;

struct Launch {
  const void* kernel;
  int shared_bytes;
};

Launch LaunchOf(const KernelSet& set, bool forward);

// kAtOnce: all blocks, or the driver refuses. kEarly: while the kernel before may still run
// (early_launch.cuh).
enum class Start { kPlain, kAtOnce, kEarly };

// A launch of `slices` clusters for each of `jobs` jobs; `attributes` has room for two.
void Describe(const KernelSet& set, bool forward, int slices, int jobs, Start start,
              cudaLaunchConfig_t* config, cudaLaunchAttribute* attributes);

// How many clusters the current device runs at a time; kUnknown where there is no device to ask.
// Also allows the kernel its shared memory and cluster size there. Asked of the driver once.
int MaxClusters(const KernelSet& set, bool forward);

// Nanoseconds of a step, to choose among slices; see docs/performance/clusters.md.
int64_t StepCost(const KernelSet& set, int64_t rows);

bool Aligned(const void* pointer, int64_t bytes);

WeightLoad WeightLoadOf(const tfl_lstm_spec& spec, const void* weights);

void SetCommon(const tfl_lstm_spec& spec, const uint8_t* mask, CommonParams* p);

void SetJob(const ForwardRecurrence& call, CommonParams* p, ForwardJob* job);
void SetJob(const BackwardRecurrence& call, CommonParams* p, BackwardJob* job);

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_LAUNCH_H_
