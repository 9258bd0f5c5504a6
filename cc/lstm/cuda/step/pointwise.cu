#include <algorithm>

#include "cc/lstm/cuda/dispatch.h"
#include "cc/lstm/cuda/scalar.cuh"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/step/pointwise.h"

namespace tfl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 65536;

int BlocksFor(int64_t cells) {
  return static_cast<int>(std::min(kMaxBlocks, (cells + kThreads - 1) / kThreads));
}

// Batch element and unit of a cell. Divides in 32 bits where that suffices, which is far cheaper.
struct Cell {
  int64_t batch;
  int64_t unit;
  __device__ Cell(int64_t index, int64_t hidden) {
    if (((index | hidden) >> 32) == 0) {
      batch = static_cast<uint32_t>(index) / static_cast<uint32_t>(hidden);
    } else {
      batch = index / hidden;
    }
    unit = index - batch * hidden;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) ForwardStepKernel(ForwardStep p) {
  using A = Accumulator<T>;
  const A* product = static_cast<const A*>(p.product);
  const int parts = product == nullptr ? 0 : p.product_parts;
  const A* projection = static_cast<const A*>(p.projection);
  const A* bias = static_cast<const A*>(p.bias);
  const T* previous_h = static_cast<const T*>(p.previous_h);
  const A* previous_c = static_cast<const A*>(p.previous_c);
  const int64_t hidden = p.hidden_size, cells = p.batch * hidden;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < cells; i += stride) {
    const Cell cell(i, hidden);
    const int64_t b = cell.batch, u = cell.unit;
    A c = previous_c == nullptr ? A(0) : previous_c[i];
    T h, out;
    if (p.mask == nullptr || p.mask[b * p.batch_stride] != 0) {
      A z[4] = {};
#pragma unroll 2
      for (int part = 0; part < parts; ++part) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          z[g] += product[(part * p.batch + b) * 4 * hidden + g * hidden + u];
        }
      }
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        z[g] += projection[b * p.batch_stride * 4 * hidden + g * hidden + u];
        if (bias != nullptr) z[g] += bias[g * hidden + u];
        z[g] = Activate(g == 2 ? p.activation : p.recurrent_activation, z[g]);
      }
      c = z[1] * c + z[0] * z[2];
      h = FromAccumulator<T>(z[3] * Activate(p.activation, c));
      out = h;
      if (p.gates != nullptr) {
        T* gates = static_cast<T*>(p.gates) + b * 4 * hidden + u;
#pragma unroll
        for (int g = 0; g < 4; ++g) gates[g * hidden] = FromAccumulator<T>(z[g]);
      }
    } else {
      h = previous_h == nullptr ? FromAccumulator<T>(A(0)) : previous_h[i];
      const bool repeats = !p.zero_output_for_mask && p.step > p.first_valid[b];
      out = repeats ? h : FromAccumulator<T>(A(0));
    }
    static_cast<A*>(p.c)[i] = c;
    static_cast<T*>(p.h)[i] = h;
    if (p.output != nullptr) {
      static_cast<T*>(p.output)[b * p.output_batch_stride + u] = out;
    }
    if (p.hidden_copy != nullptr) static_cast<T*>(p.hidden_copy)[i] = h;
    for (int mask = 0; mask < p.dropout_masks; ++mask) {
      const A factor = ToAccumulator(static_cast<const T*>(p.dropout_mask)[mask * cells + i]);
      static_cast<T*>(p.dropped)[mask * cells + i] = FromAccumulator<T>(ToAccumulator(h) * factor);
    }
    if (p.final_h != nullptr) static_cast<T*>(p.final_h)[i] = h;
    if (p.final_c != nullptr) static_cast<T*>(p.final_c)[i] = FromAccumulator<T>(c);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) BackwardStepKernel(BackwardStep p) {
  using A = Accumulator<T>;
  const A* cell_after = static_cast<const A*>(p.cell);
  const A* previous_c = static_cast<const A*>(p.previous_c);
  const T* grad_output = static_cast<const T*>(p.grad_output);
  const A* product = static_cast<const A*>(p.product);
  const int parts = product == nullptr ? 0 : p.product_parts;
  A* grad_h = static_cast<A*>(p.grad_h);
  A* grad_c = static_cast<A*>(p.grad_c);
  const int64_t hidden = p.hidden_size, cells = p.batch * hidden;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < cells; i += stride) {
    const Cell cell(i, hidden);
    const int64_t b = cell.batch, u = cell.unit;
    const bool valid = p.mask == nullptr || p.mask[b * p.batch_stride] != 0;
    A dh = product == nullptr || p.mask != nullptr ? grad_h[i] : A(0);
#pragma unroll 2
    for (int part = 0; part < parts; ++part) dh += product[part * cells + i];
    // A masked step's output is h of the last valid step, or a constant zero.
    const bool output_is_h = valid || (!p.zero_output_for_mask && p.step > p.first_valid[b]);
    if (grad_output != nullptr && output_is_h) {
      dh += ToAccumulator(grad_output[b * p.grad_output_batch_stride + u]);
    }
    A d[4] = {A(0), A(0), A(0), A(0)};
    if (valid) {
      const T* gates = static_cast<const T*>(p.gates) + b * 4 * hidden + u;
      A y[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) y[g] = ToAccumulator(gates[g * hidden]);
      const A tanh_c = Activate(p.activation, cell_after[i]);
      const A before = previous_c == nullptr ? A(0) : previous_c[i];
      const A dc = grad_c[i] + dh * y[3] * ActivationSlope(p.activation, tanh_c);
      d[0] = dc * y[2] * ActivationSlope(p.recurrent_activation, y[0]);
      d[1] = dc * before * ActivationSlope(p.recurrent_activation, y[1]);
      d[2] = dc * y[0] * ActivationSlope(p.activation, y[2]);
      d[3] = dh * tanh_c * ActivationSlope(p.recurrent_activation, y[3]);
      grad_c[i] = dc * y[1];
      dh = A(0);
    }
    if (p.mask != nullptr) grad_h[i] = dh;
    T* row = static_cast<T*>(p.grad_gates) + b * p.batch_stride * 4 * hidden + u;
    T* dense = static_cast<T*>(p.grad_gates_dense);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const T value = FromAccumulator<T>(d[g]);
      row[g * hidden] = value;
      if (dense != nullptr) dense[b * 4 * hidden + g * hidden + u] = value;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumPartsKernel(const Accumulator<T>* product, int parts, int64_t count,
                   const Accumulator<T>* more, T* to) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    Accumulator<T> sum = more == nullptr ? Accumulator<T>(0) : more[i];
    for (int part = 0; part < parts; ++part) sum += product[part * count + i];
    to[i] = FromAccumulator<T>(sum);
  }
}

}  // namespace

tfl_status RunForwardStep(const ForwardStep& step, tfl_dtype dtype, cudaStream_t stream) {
  DispatchType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ForwardStepKernel<T><<<BlocksFor(step.batch * step.hidden_size), kThreads, 0, stream>>>(step);
  });
  return LaunchStatus("ForwardStepKernel");
}

tfl_status RunBackwardStep(const BackwardStep& step, tfl_dtype dtype, cudaStream_t stream) {
  DispatchType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    BackwardStepKernel<T><<<BlocksFor(step.batch * step.hidden_size), kThreads, 0, stream>>>(step);
  });
  return LaunchStatus("BackwardStepKernel");
}

tfl_status SumParts(const void* product, int parts, int64_t count, const void* more, void* to,
                    tfl_dtype dtype, cudaStream_t stream) {
  DispatchType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    SumPartsKernel<T><<<BlocksFor(count), kThreads, 0, stream>>>(
        static_cast<const A*>(product), parts, count, static_cast<const A*>(more),
        static_cast<T*>(to));
  });
  return LaunchStatus("SumPartsKernel");
}

}  // namespace tfl::cuda
