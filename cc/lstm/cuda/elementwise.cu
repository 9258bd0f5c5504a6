#include <algorithm>
#include <initializer_list>

#include "cc/lstm/cuda/dispatch.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/scalar.cuh"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;

int BlocksFor(int64_t items) {
  return static_cast<int>(std::min(kMaxBlocks, (items + kThreads - 1) / kThreads));
}

template <typename From, typename To>
__global__ void ConvertKernel(const From* __restrict__ from, To* __restrict__ to, int64_t count) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = FromAccumulator<To>(static_cast<Accumulator<To>>(ToAccumulator(from[i])));
  }
}

template <typename Word>
__global__ void CopyUnmaskedRowsKernel(const Word* __restrict__ from,
                                       const uint8_t* __restrict__ mask, int64_t rows,
                                       int64_t words, Word* __restrict__ to) {
  const int64_t count = rows * words, stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    Word value = {};
    if (mask[i / words] != 0) value = from[i];
    to[i] = value;
  }
}

// One warp a batch element; every lane looks at another step.
__global__ void FirstValidStepKernel(const uint8_t* __restrict__ mask, int64_t batch, int64_t steps,
                                     int64_t batch_stride, int64_t step_stride, bool backwards,
                                     int64_t* __restrict__ first) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32);
  for (int64_t b = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; b < batch; b += warps) {
    int64_t found = steps;
    for (int64_t base = 0; base < steps && found == steps; base += 32) {
      const int64_t s = base + lane;
      const int64_t t = backwards ? steps - 1 - s : s;
      const bool valid = s < steps && mask[b * batch_stride + t * step_stride] != 0;
      const unsigned votes = __ballot_sync(~0u, valid);
      if (votes != 0) found = base + __ffs(votes) - 1;
    }
    if (lane == 0) first[b] = found;
  }
}

// A row is handled as words of the widest type that divides it.
template <typename Word>
__global__ void PreviousHiddenKernel(PreviousHidden a, int64_t batch, int64_t steps, int64_t words,
                                     bool time_major, bool backwards) {
  const Word* hidden = static_cast<const Word*>(a.hidden);
  const Word* initial = static_cast<const Word*>(a.initial_h);
  Word* previous = static_cast<Word*>(a.previous_h);
  const int64_t count = batch * steps * words;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t row = i / words, word = i - row * words;
    const int64_t outer = row / (time_major ? batch : steps);
    const int64_t inner = row - outer * (time_major ? batch : steps);
    const int64_t b = time_major ? inner : outer, t = time_major ? outer : inner;
    const int64_t s = backwards ? steps - 1 - t : t;
    const int64_t first = a.first_valid == nullptr ? 0 : a.first_valid[b];
    Word value = {};
    if (s > first) {
      value = hidden[(s - 1) * a.step_stride + b * a.batch_stride + word];
    } else if (initial != nullptr) {
      value = initial[b * words + word];
    }
    previous[i] = value;
  }
}

__device__ int64_t MaskIndex(const DropoutRows& shape, int64_t i) {
  const int64_t row = i / shape.width;
  return row / shape.rows_a_batch % shape.batch * shape.width + (i - row * shape.width);
}

template <typename T>
__global__ void DropKernel(DropoutRows shape, const T* __restrict__ from,
                           const T* __restrict__ mask, T* __restrict__ to) {
  const int64_t count = shape.rows * shape.width, stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = FromAccumulator<T>(ToAccumulator(from[i]) * ToAccumulator(mask[MaskIndex(shape, i)]));
  }
}

template <typename T>
__global__ void AddDroppedKernel(DropoutRows shape, const Accumulator<T>* __restrict__ part,
                                 const T* __restrict__ mask, bool accumulate,
                                 Accumulator<T>* __restrict__ sum) {
  const int64_t count = shape.rows * shape.width, stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const Accumulator<T> share = part[i] * ToAccumulator(mask[MaskIndex(shape, i)]);
    sum[i] = accumulate ? sum[i] + share : share;
  }
}

// Calls function(Word{}) with the widest word that divides rows of `bytes` at these addresses.
template <typename Function>
void WithWidestWord(int64_t bytes, std::initializer_list<const void*> pointers,
                    Function&& function) {
  uintptr_t bits = static_cast<uintptr_t>(bytes);
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  if (bits % 16 == 0) {
    function(uint4{});
  } else if (bits % 8 == 0) {
    function(uint2{});
  } else if (bits % 4 == 0) {
    function(uint32_t{});
  } else {
    function(uint16_t{});
  }
}

// Stage one: a block sums 32 columns over a chunk of rows; stage two: over the chunks.
constexpr int kSumColumns = 32;
constexpr int kSumRows = 16;
constexpr int64_t kMaxSumChunks = 256;

int64_t SumChunks(int64_t rows) {
  return std::min(kMaxSumChunks, std::max<int64_t>(1, rows / (4 * kSumRows)));
}

template <typename T, typename Out>
__global__ void ColumnSumKernel(const T* __restrict__ matrix, int64_t rows, int64_t columns,
                                int64_t rows_per_chunk, Out* __restrict__ sums) {
  using A = Accumulator<T>;
  __shared__ A partial[kSumRows][kSumColumns + 1];
  const int64_t column = int64_t(blockIdx.x) * kSumColumns + threadIdx.x;
  const int64_t begin = int64_t(blockIdx.y) * rows_per_chunk;
  const int64_t end = min(rows, begin + rows_per_chunk);
  A sum = 0;
  if (column < columns) {
    for (int64_t row = begin + threadIdx.y; row < end; row += kSumRows) {
      sum += ToAccumulator(matrix[row * columns + column]);
    }
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int i = 1; i < kSumRows; ++i) sum += partial[i][threadIdx.x];
    sums[blockIdx.y * columns + column] = FromAccumulator<Out>(sum);
  }
}

template <typename T, typename Out>
void LaunchColumnSum(const void* matrix, int64_t rows, int64_t columns, int64_t chunks, void* sums,
                     cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((columns + kSumColumns - 1) / kSumColumns),
                  static_cast<unsigned>(chunks));
  ColumnSumKernel<T, Out><<<grid, dim3(kSumColumns, kSumRows), 0, stream>>>(
      static_cast<const T*>(matrix), rows, columns, (rows + chunks - 1) / chunks,
      static_cast<Out*>(sums));
}

}  // namespace

tfl_status Convert(const void* from, tfl_dtype from_dtype, void* to, tfl_dtype to_dtype,
                   int64_t count, cudaStream_t stream) {
  if (count == 0) return Ok();
  if (from_dtype == to_dtype) {
    return FromCuda(
        cudaMemcpyAsync(to, from, count * SizeOf(to_dtype), cudaMemcpyDeviceToDevice, stream),
        "copying an array");
  }
  DispatchType(from_dtype, [&](auto from_tag) {
    DispatchType(to_dtype, [&](auto to_tag) {
      using From = typename decltype(from_tag)::type;
      using To = typename decltype(to_tag)::type;
      ConvertKernel<From, To><<<BlocksFor(count), kThreads, 0, stream>>>(
          static_cast<const From*>(from), static_cast<To*>(to), count);
    });
  });
  return LaunchStatus("ConvertKernel");
}

tfl_status FirstValidStep(const tfl_lstm_spec& spec, const uint8_t* mask, int64_t* first,
                          cudaStream_t stream) {
  FirstValidStepKernel<<<BlocksFor(spec.batch * 32), kThreads, 0, stream>>>(
      mask, spec.batch, spec.steps, spec.time_major ? 1 : spec.steps,
      spec.time_major ? spec.batch : 1, spec.go_backwards != 0, first);
  return LaunchStatus("FirstValidStepKernel");
}

tfl_status CopyUnmaskedRows(const void* from, const uint8_t* mask, int64_t rows, int64_t width,
                            tfl_dtype dtype, void* to, cudaStream_t stream) {
  const int64_t bytes = width * SizeOf(dtype);
  if (rows * bytes == 0) return Ok();
  WithWidestWord(bytes, {from, to}, [&](auto word) {
    using Word = decltype(word);
    const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
    CopyUnmaskedRowsKernel<Word><<<BlocksFor(rows * words), kThreads, 0, stream>>>(
        static_cast<const Word*>(from), mask, rows, words, static_cast<Word*>(to));
  });
  return LaunchStatus("CopyUnmaskedRowsKernel");
}

tfl_status WritePreviousHidden(const tfl_lstm_spec& spec, const PreviousHidden& arguments,
                               cudaStream_t stream) {
  const int64_t bytes = spec.hidden_size * SizeOf(spec.dtype);
  WithWidestWord(
      bytes, {arguments.hidden, arguments.initial_h, arguments.previous_h}, [&](auto word) {
        using Word = decltype(word);
        PreviousHidden a = arguments;
        const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
        a.step_stride = a.step_stride * SizeOf(spec.dtype) / static_cast<int64_t>(sizeof(Word));
        a.batch_stride = a.batch_stride * SizeOf(spec.dtype) / static_cast<int64_t>(sizeof(Word));
        PreviousHiddenKernel<Word>
            <<<BlocksFor(spec.batch * spec.steps * words), kThreads, 0, stream>>>(
                a, spec.batch, spec.steps, words, spec.time_major != 0, spec.go_backwards != 0);
      });
  return LaunchStatus("PreviousHiddenKernel");
}

tfl_status Drop(const DropoutRows& shape, const void* from, const void* mask, void* to,
                cudaStream_t stream) {
  const int64_t count = shape.rows * shape.width;
  if (count == 0) return Ok();
  DispatchType(shape.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    DropKernel<T><<<BlocksFor(count), kThreads, 0, stream>>>(
        shape, static_cast<const T*>(from), static_cast<const T*>(mask), static_cast<T*>(to));
  });
  return LaunchStatus("DropKernel");
}

tfl_status AddDropped(const DropoutRows& shape, const void* part, const void* mask, bool accumulate,
                      void* sum, cudaStream_t stream) {
  const int64_t count = shape.rows * shape.width;
  if (count == 0) return Ok();
  DispatchType(shape.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    AddDroppedKernel<T><<<BlocksFor(count), kThreads, 0, stream>>>(
        shape, static_cast<const A*>(part), static_cast<const T*>(mask), accumulate,
        static_cast<A*>(sum));
  });
  return LaunchStatus("AddDroppedKernel");
}

int64_t ColumnSumWorkspaceBytes(int64_t rows, int64_t columns, tfl_dtype dtype) {
  return SumChunks(rows) * columns * SizeOf(AccumulatorOf(dtype));
}

tfl_status ColumnSum(const void* matrix, tfl_dtype dtype, int64_t rows, int64_t columns, void* sums,
                     tfl_dtype sums_dtype, void* workspace, cudaStream_t stream) {
  if (columns == 0) return Ok();
  const int64_t chunks = SumChunks(rows);
  DispatchType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    LaunchColumnSum<T, A>(matrix, rows, columns, chunks, workspace, stream);
    DispatchType(sums_dtype, [&](auto sums_tag) {
      using Out = typename decltype(sums_tag)::type;
      if constexpr (std::is_same_v<Accumulator<Out>, A>) {
        LaunchColumnSum<A, Out>(workspace, chunks, columns, 1, sums, stream);
      }
    });
  });
  return LaunchStatus("ColumnSumKernel");
}

}  // namespace tfl::cuda
