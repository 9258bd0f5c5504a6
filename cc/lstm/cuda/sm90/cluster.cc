#include "cc/lstm/cuda/sm90/cluster.h"

#include <algorithm>
#include <limits>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/sm90/config.h"
#include "cc/lstm/cuda/sm90/kernels.h"
#include "cc/lstm/cuda/sm90/launch.h"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

using sm90::KernelList;
using sm90::KernelSet;
using sm90::LaunchOf;

// Instantiations of the call's type for the smallest padded hidden size that holds it.
KernelList Find(const tfl_lstm_spec& spec) {
#define TFL_FIND(type, padded)                               \
  if (spec.dtype == k##type && spec.hidden_size <= padded) { \
    return sm90::type##Kernels##padded();                    \
  }
  constexpr tfl_dtype kBfloat16 = TFL_BFLOAT16, kFloat16 = TFL_FLOAT16, kTf32 = TFL_FLOAT32;
  TFL_CLUSTER_LISTS(TFL_FIND)
#undef TFL_FIND
  return {nullptr, 0};
}

struct Choice {
  const KernelSet* set;  // null if no kernel can be resident
  int64_t rows;
  int64_t slices;
  int64_t step_ns;
};

// The slices that run the batch fastest: as narrow as the clusters that fit at a time allow, since
// what a step sends is proportional to a slice's rows.
Choice Choose(const tfl_lstm_spec& spec, int jobs, bool forward) {
  const KernelList list = Find(spec);
  Choice best = {nullptr, 0, 0, 0};
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < list.count; ++i) {
    const KernelSet& set = list.sets[i];
    int64_t clusters = sm90::MaxClusters(set, forward);
    if (clusters == 0) continue;
    if (clusters == sm90::kUnknown) clusters = 1;
    clusters = std::max<int64_t>(1, clusters / jobs);
    const int64_t rounds = (spec.batch + clusters * set.rows - 1) / (clusters * set.rows);
    const int64_t share = (spec.batch + rounds * clusters - 1) / (rounds * clusters);
    const int64_t rows = (share + 1) / 2 * 2;
    const int64_t cost = rounds * sm90::StepCost(set, rows);
    if (cost < best_cost) {
      best = {&set, rows, (spec.batch + rows - 1) / rows, cost};
      best_cost = cost;
    }
  }
  return best;
}

bool Supported(const tfl_lstm_spec& spec, const DeviceLimits& limits, bool forward) {
  constexpr int64_t kMost = int64_t{1} << 24;
  const bool types = spec.dtype == TFL_FLOAT32
                         ? spec.allow_tf32 && spec.weight_dtype == TFL_FLOAT32
                         : Is16Bit(spec.dtype) && (spec.weight_dtype == spec.dtype ||
                                                   spec.weight_dtype == TFL_FLOAT32);
  // A mask for each gate would make four factors of h.
  if (spec.num_recurrent_dropout_masks > 1) return false;
  if (!types || spec.activation != TFL_TANH || spec.recurrent_activation != TFL_SIGMOID) {
    return false;
  }
  if (spec.batch < 1 || spec.steps < 1 || spec.hidden_size < 1 || spec.batch > kMost ||
      spec.steps > kMost) {
    return false;
  }
  // The code is for compute capability 9.0 alone.
  if (limits.compute_capability != 90) return false;
  const KernelList list = Find(spec);
  for (int i = 0; i < list.count; ++i) {
    if (LaunchOf(list.sets[i], forward).shared_bytes + 1024 > limits.shared_bytes_per_block) {
      return false;
    }
  }
  return Choose(spec, spec.num_directions, forward).set != nullptr;
}

template <class Params>
tfl_status Run(const tfl_lstm_spec& spec, int jobs, bool forward, sm90::Start start, Params params,
               cudaStream_t stream) {
  const Choice choice = Choose(spec, jobs, forward);
  if (choice.set == nullptr) return Error(TFL_INTERNAL, "no cluster kernel fits this call");
  params.rows = static_cast<int32_t>(choice.rows);
  cudaLaunchConfig_t config;
  cudaLaunchAttribute attributes[2];
  Describe(*choice.set, forward, static_cast<int>(choice.slices), jobs, start, &config, attributes);
  config.stream = stream;
  void* arguments[] = {&params};
  return FromCuda(cudaLaunchKernelExC(&config, LaunchOf(*choice.set, forward).kernel, arguments),
                  forward ? "ClusterForwardKernel" : "ClusterBackwardKernel");
}

}  // namespace

bool ClusterForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return Supported(spec, limits, true);
}

bool ClusterBackwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return Supported(spec, limits, false);
}

int64_t ClusterStepNanoseconds(const tfl_lstm_spec& spec, bool forward) {
  return Choose(spec, spec.num_directions, forward).step_ns;
}

int ClusterPaddedHidden(const tfl_lstm_spec& spec) {
  const KernelList list = Find(spec);
  return list.count == 0 ? 0 : list.sets[0].hidden;
}

int64_t ClusterReserveBytes(const tfl_lstm_spec& spec) {
  return sm90::ReserveCells(spec.batch, spec.steps, ClusterPaddedHidden(spec)) *
         sm90::ReserveRecordBytes(SizeOf(spec.dtype));
}

int64_t ClusterForwardWorkspaceBytes(const tfl_lstm_spec&) { return 0; }
int64_t ClusterBackwardWorkspaceBytes(const tfl_lstm_spec&) { return 0; }

namespace {

// Recurrences of one spec (but for go_backwards) and one mask in one launch.
tfl_status RunForward(const ForwardRecurrence* calls, int count, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  sm90::ForwardParams p = {};
  SetCommon(spec, calls[0].mask, &p);
  p.projection_is_float = calls[0].projection_dtype == TFL_FLOAT32;
  p.weights_are_float = spec.weight_dtype == TFL_FLOAT32;
  for (int i = 0; i < count; ++i) {
    SetJob(calls[i], &p, &p.jobs[i]);
  }
  // The kernel brings R while the projection is being made.
  const bool early = calls[count - 1].may_begin_early;
  return Run(spec, count, true, early ? sm90::Start::kEarly : sm90::Start::kPlain, p, stream);
}

tfl_status RunBackward(const BackwardRecurrence* calls, int count, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  sm90::BackwardParams p = {};
  SetCommon(spec, calls[0].mask, &p);
  p.grad_gates_are_float = calls[0].grad_gates_dtype == TFL_FLOAT32;
  for (int i = 0; i < count; ++i) {
    SetJob(calls[i], &p, &p.jobs[i]);
  }
  return Run(spec, count, false, sm90::Start::kPlain, p, stream);
}

}  // namespace

tfl_status ClusterForward(const ForwardRecurrence& call, cudaStream_t stream) {
  return RunForward(&call, 1, stream);
}

tfl_status ClusterForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream) {
  return RunForward(calls, 2, stream);
}

tfl_status ClusterBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  return RunBackward(&call, 1, stream);
}

tfl_status ClusterBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream) {
  return RunBackward(calls, 2, stream);
}

}  // namespace tfl::cuda
