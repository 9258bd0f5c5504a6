#include "cc/lstm/cuda/sm90/cluster.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/sm90/config.h"
#include "cc/lstm/cuda/sm90/kernels.h"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

using sm90::KernelList;
using sm90::KernelSet;

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

constexpr int kUnknown = -1;

struct Launch {
  const void* kernel;
  int shared_bytes;
};

Launch LaunchOf(const KernelSet& set, bool forward) {
  return forward ? Launch{set.forward, set.forward_shared_bytes}
                 : Launch{set.backward, set.backward_shared_bytes};
}

void Describe(const KernelSet& set, bool forward, int slices, int jobs, cudaLaunchConfig_t* config,
              cudaLaunchAttribute* cluster) {
  *config = {};
  config->gridDim = dim3(slices * set.cluster_size, jobs);
  config->blockDim = dim3(set.threads);
  config->dynamicSmemBytes = LaunchOf(set, forward).shared_bytes;
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim = {static_cast<unsigned>(set.cluster_size), 1, 1};
  config->attrs = cluster;
  config->numAttrs = 1;
}

// How many clusters the current device runs at a time; kUnknown where there is no device to ask.
// Also allows the kernel its shared memory and cluster size there. Asked of the driver once.
int MaxClusters(const KernelSet& set, bool forward) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<int, const void*>, int>;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return kUnknown;
  }
  const Launch launch = LaunchOf(set, forward);
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known->find({device, launch.kernel});
  if (found != known->end()) return found->second;
  int clusters = 0;
  cudaError_t error = cudaFuncSetAttribute(
      launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute cluster;
    Describe(set, forward, 1, 1, &config, &cluster);
    error = cudaOccupancyMaxActiveClusters(&clusters, launch.kernel, &config);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // leave nothing behind for the caller's next check
    clusters = 0;
  }
  known->emplace(std::make_pair(device, launch.kernel), clusters);
  return clusters;
}

// Nanoseconds of a step, to choose among slices; see docs/performance.md.
int64_t StepCost(const KernelSet& set, int64_t rows) {
  const int64_t products = set.rows > 8 ? int64_t{set.hidden} * set.rows / 32 : 0;
  return 450 + products + set.hidden * rows / 12;
}

struct Choice {
  const KernelSet* set;  // null if no kernel can be resident
  int64_t rows;
  int64_t slices;
};

// The slices that run the batch fastest: as narrow as the clusters that fit at a time allow, since
// what a step sends is proportional to a slice's rows.
Choice Choose(const tfl_lstm_spec& spec, int jobs, bool forward) {
  const KernelList list = Find(spec);
  Choice best = {nullptr, 0, 0};
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < list.count; ++i) {
    const KernelSet& set = list.sets[i];
    int64_t clusters = MaxClusters(set, forward);
    if (clusters == 0) continue;
    if (clusters == kUnknown) clusters = 1;
    clusters = std::max<int64_t>(1, clusters / jobs);
    const int64_t rounds = (spec.batch + clusters * set.rows - 1) / (clusters * set.rows);
    const int64_t share = (spec.batch + rounds * clusters - 1) / (rounds * clusters);
    const int64_t rows = (share + 1) / 2 * 2;
    const int64_t cost = rounds * StepCost(set, rows);
    if (cost < best_cost) {
      best = {&set, rows, (spec.batch + rows - 1) / rows};
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

bool Aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

sm90::WeightLoad WeightLoadOf(const tfl_lstm_spec& spec, const void* recurrent_kernel) {
  using sm90::WeightLoad;
  const int64_t size = SizeOf(spec.weight_dtype);
  const bool native = spec.weight_dtype == spec.dtype;
  if (native && spec.hidden_size * size % 16 == 0 && Aligned(recurrent_kernel, 16)) {
    return WeightLoad::kNativeWide;
  }
  if (spec.hidden_size % 4 == 0 && Aligned(recurrent_kernel, 4 * size)) {
    return native ? WeightLoad::kNativeVector : WeightLoad::kFloatVector;
  }
  return native ? WeightLoad::kNative : WeightLoad::kFloat;
}

void SetCommon(const tfl_lstm_spec& spec, const uint8_t* mask, sm90::CommonParams* p) {
  p->weight_load = sm90::WeightLoad::kNativeWide;  // the most; each job lowers it to its own
  p->mask = spec.has_mask ? mask : nullptr;
  p->batch = static_cast<int32_t>(spec.batch);
  p->steps = static_cast<int32_t>(spec.steps);
  p->hidden = static_cast<int32_t>(spec.hidden_size);
  p->zero_output_for_mask = spec.zero_output_for_mask;
  p->return_sequences = spec.return_sequences;
  p->vector_rows = spec.hidden_size * SizeOf(spec.dtype) % 16 == 0;
}

// `call` is of either direction of the gradient.
template <class Call>
void SetJob(const Call& call, sm90::CommonParams* p, sm90::CommonJob* job) {
  const tfl_lstm_spec& spec = call.spec;
  p->weight_load = std::max(p->weight_load, WeightLoadOf(spec, call.recurrent_kernel));
  job->recurrent_kernel = call.recurrent_kernel;
  job->recurrent_dropout =
      spec.num_recurrent_dropout_masks == 0 ? nullptr : call.recurrent_dropout_mask;
  const int64_t batch_stride = spec.time_major ? 1 : spec.steps;
  const int64_t step_stride = spec.time_major ? spec.batch : 1;
  const int64_t last = (spec.steps - 1) * step_stride, width = call.output_stride;
  job->input_rows = {batch_stride, spec.go_backwards ? last : 0,
                     spec.go_backwards ? -step_stride : step_stride};
  if (!spec.return_sequences) {
    job->output_rows = {width, 0, 0};
  } else if (call.output_reversed) {
    job->output_rows = {batch_stride * width, last * width, -step_stride * width};
  } else {
    job->output_rows = {batch_stride * width, 0, step_stride * width};
  }
}

// Whether pieces of 16 bytes of the rows of a tensor of spec.dtype are aligned.
bool VectorRows(const tfl_lstm_spec& spec, const void* tensor, int64_t stride) {
  return Aligned(tensor, 16) && stride * SizeOf(spec.dtype) % 16 == 0;
}

template <class Params>
tfl_status Run(const tfl_lstm_spec& spec, int jobs, bool forward, Params params,
               cudaStream_t stream) {
  const Choice choice = Choose(spec, jobs, forward);
  if (choice.set == nullptr) return Error(TFL_INTERNAL, "no cluster kernel fits this call");
  params.rows = static_cast<int32_t>(choice.rows);
  cudaLaunchConfig_t config;
  cudaLaunchAttribute cluster;
  Describe(*choice.set, forward, static_cast<int>(choice.slices), jobs, &config, &cluster);
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

int64_t ClusterReserveBytes(const tfl_lstm_spec& spec) {
  const KernelList list = Find(spec);
  if (list.count == 0) return 0;
  return sm90::ReserveCells(spec.batch, spec.steps, list.sets[0].hidden) *
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
    const ForwardRecurrence& call = calls[i];
    sm90::ForwardJob& job = p.jobs[i];
    SetJob(call, &p, &job);
    p.vector_rows &= VectorRows(spec, call.output, call.output_stride);
    job.projection = call.projection;
    job.bias = spec.has_bias ? call.bias : nullptr;
    job.initial_h = spec.has_initial_h ? call.initial_h : nullptr;
    job.initial_c = spec.has_initial_c ? call.initial_c : nullptr;
    job.output = call.output;
    job.final_h = call.final_h;
    job.final_c = call.final_c;
    job.reserve = spec.training ? call.reserve : nullptr;
  }
  return Run(spec, count, true, p, stream);
}

tfl_status RunBackward(const BackwardRecurrence* calls, int count, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  sm90::BackwardParams p = {};
  SetCommon(spec, calls[0].mask, &p);
  p.grad_gates_are_float = calls[0].grad_gates_dtype == TFL_FLOAT32;
  for (int i = 0; i < count; ++i) {
    const BackwardRecurrence& call = calls[i];
    sm90::BackwardJob& job = p.jobs[i];
    SetJob(call, &p, &job);
    p.vector_rows &= Aligned(call.grad_gates, 16) && Aligned(call.previous_h, 16);
    job.reserve = call.reserve;
    job.grad_output = call.grad_output;
    job.grad_final_h = call.grad_final_h;
    job.grad_final_c = call.grad_final_c;
    job.grad_gates = call.grad_gates;
    job.previous_h = call.previous_h;
    job.grad_initial_h = call.grad_initial_h;
    job.grad_initial_c = call.grad_initial_c;
  }
  return Run(spec, count, false, p, stream);
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
