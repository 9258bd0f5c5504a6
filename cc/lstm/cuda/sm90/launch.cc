#include "cc/lstm/cuda/sm90/launch.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "cc/lstm/cuda/dtype.h"

namespace tfl::cuda::sm90 {
namespace {

// `call` is of either direction of the gradient.
template <class Call>
void SetCommonJob(const Call& call, CommonParams* p, CommonJob* job) {
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

}  // namespace

Launch LaunchOf(const KernelSet& set, bool forward) {
  return forward ? Launch{set.forward, set.forward_shared_bytes}
                 : Launch{set.backward, set.backward_shared_bytes};
}

void Describe(const KernelSet& set, bool forward, int slices, int jobs, Start start,
              cudaLaunchConfig_t* config, cudaLaunchAttribute* attributes) {
  *config = {};
  config->gridDim = dim3(slices * set.cluster_size, jobs);
  config->blockDim = dim3(set.threads);
  config->dynamicSmemBytes = LaunchOf(set, forward).shared_bytes;
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(set.cluster_size), 1, 1};
  if (start == Start::kAtOnce) {
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
  } else {
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
  }
  config->attrs = attributes;
  config->numAttrs = start == Start::kPlain ? 1 : 2;
}

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
    cudaLaunchAttribute attributes[2];
    Describe(set, forward, 1, 1, Start::kPlain, &config, attributes);
    error = cudaOccupancyMaxActiveClusters(&clusters, launch.kernel, &config);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // leave nothing behind for the caller's next check
    clusters = 0;
  }
  known->emplace(std::make_pair(device, launch.kernel), clusters);
  return clusters;
}

int64_t StepCost(const KernelSet& set, int64_t rows) {
  const int64_t products = set.rows > 8 ? int64_t{set.hidden} * set.rows / 32 : 0;
  return 450 + products + set.hidden * rows / 12;
}

bool Aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

WeightLoad WeightLoadOf(const tfl_lstm_spec& spec, const void* recurrent_kernel) {
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

void SetCommon(const tfl_lstm_spec& spec, const uint8_t* mask, CommonParams* p) {
  p->weight_load = WeightLoad::kNativeWide;  // the most; each job lowers it to its own
  p->mask = spec.has_mask ? mask : nullptr;
  p->batch = static_cast<int32_t>(spec.batch);
  p->steps = static_cast<int32_t>(spec.steps);
  p->hidden = static_cast<int32_t>(spec.hidden_size);
  p->zero_output_for_mask = spec.zero_output_for_mask;
  p->return_sequences = spec.return_sequences;
  p->vector_rows = spec.hidden_size * SizeOf(spec.dtype) % 16 == 0;
}

void SetJob(const ForwardRecurrence& call, CommonParams* p, ForwardJob* job) {
  const tfl_lstm_spec& spec = call.spec;
  SetCommonJob(call, p, job);
  p->vector_rows &= VectorRows(spec, call.output, call.output_stride);
  job->projection = call.projection;
  job->bias = spec.has_bias ? call.bias : nullptr;
  job->initial_h = spec.has_initial_h ? call.initial_h : nullptr;
  job->initial_c = spec.has_initial_c ? call.initial_c : nullptr;
  job->output = call.output;
  job->final_h = call.final_h;
  job->final_c = call.final_c;
  job->reserve = spec.training ? call.reserve : nullptr;
}

void SetJob(const BackwardRecurrence& call, CommonParams* p, BackwardJob* job) {
  SetCommonJob(call, p, job);
  p->vector_rows &= Aligned(call.grad_gates, 16) && Aligned(call.previous_h, 16);
  job->reserve = call.reserve;
  job->grad_output = call.grad_output;
  job->grad_final_h = call.grad_final_h;
  job->grad_final_c = call.grad_final_c;
  job->grad_gates = call.grad_gates;
  job->previous_h = call.previous_h;
  job->grad_initial_h = call.grad_initial_h;
  job->grad_initial_c = call.grad_initial_c;
}

}  // namespace tfl::cuda::sm90
