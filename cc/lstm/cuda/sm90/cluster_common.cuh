// What both directions share: bringing R into registers, products, the exchange's bookkeeping.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_COMMON_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_COMMON_CUH_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/lstm/cuda/sm90/config.h"
#include "cc/lstm/cuda/sm90/element.cuh"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/cuda/sm90/ptx.cuh"

namespace tfl::cuda::sm90 {

// A thread's place. In a 16x8 accumulator tile of the matrix instructions lane l holds rows l / 4
// and l / 4 + 8, columns 2 (l % 4) and the next. The rows of a warp's tile are (gate, unit) with 4
// units, so lanes l and l ^ 16 hold all four gates of two cells; after one exchange each has one:
// unit `unit` of the warp's 4, batch column `column` of each row tile.
template <class C>
struct Place {
  int thread, warp, lane, rank, job, slice, unit, column, first_unit;
  bool upper;

  __device__ Place() {
    thread = Kept<C>(static_cast<int>(threadIdx.x));
    warp = __shfl_sync(~0u, thread >> 5, 0);
    lane = Kept<C>(thread & 31);
    rank = ClusterCtaRank();
    job = blockIdx.y;
    slice = blockIdx.x / C::kClusterSize;
    unit = (lane >> 2) & 3;
    upper = lane >= 16;
    column = (lane & 3) * 2 + (lane >> 4);
    first_unit = rank * C::kUnits;
  }
  // In the block.
  __device__ int LocalUnit() const { return warp * 4 + unit; }
  __device__ int Batch(const CommonParams& p, int tile) const {
    return slice * p.rows + tile * 8 + column;
  }
  // Whether the slice has this row and the batch too.
  __device__ bool HasRow(const CommonParams& p, int tile) const {
    return tile * 8 + column < p.rows && Batch(p, tile) < p.batch;
  }
  // The record of the thread's cell of batch element b after s steps.
  __device__ int64_t ReserveCell(const CommonParams& p, int64_t s, int b) const {
    return ((s * (C::kHidden / 4) + rank * C::kWarps + warp) * p.batch + b) * 4 + unit;
  }
};

// Of the threads that compute: all of the block, or in a stack all but the couriers.
template <class C, bool kStack>
__device__ __forceinline__ void BlockBarrier() {
  if constexpr (kStack) {
    BarSync<C::kThreads>(1);
  } else {
    __syncthreads();
  }
}

// What the steps ask of a job, read once. In a stack the input projection of the first layer alone
// is in memory, and layers below the last return sequences whether the last does or not.
template <class C, class Job, bool kStack = std::is_base_of_v<StackPart, Job>>
struct JobFlags {
  __device__ explicit JobFlags(const Job&) {}
  // Whether rows of a neighbour are a factor of the job's products.
  __device__ static constexpr bool IsFed() { return false; }
  __device__ static bool ReturnsSequences(const CommonParams& p) { return p.return_sequences; }
};

template <class C, class Job>
struct JobFlags<C, Job, true> {
  int is_fed, returns_sequences;
  __device__ explicit JobFlags(const Job& job)
      : is_fed(Kept<C>(int{job.source != nullptr})),
        returns_sequences(job.layer_returns_sequences) {}
  __device__ bool IsFed() const { return is_fed != 0; }
  __device__ bool ReturnsSequences(const CommonParams&) const { return returns_sequences != 0; }
};

// Rows of row tile `tile` of the slice.
__device__ __forceinline__ int TileRows(const CommonParams& p, int tile) {
  return max(0, min(8, p.rows - 8 * tile));
}

// Brings staged rows [kFirst, kFirst + kCount) of the block's columns of R to shared memory as
// [row][gate][unit], or with kByWarp as [row][warp][gate][4 units]; row_of(i) is R's row for staged
// row i, a multiple of 8 and those after it alike. Zeros beyond `hidden`. Where R lies as the
// kernel wants it the copies are asynchronous, part of the thread's next group.
template <class C, bool kByWarp, int kFirst, int kCount, class RowOf>
__device__ __forceinline__ void StageWeights(unsigned char* stage, const CommonParams& p,
                                             const void* recurrent_kernel, int first_unit,
                                             const RowOf& row_of) {
  using S = typename C::Storage;
  using E = typename C::Element;
  struct alignas(4 * sizeof(S)) Quad {
    S v[4];
  };
  static_assert(kCount % 16 == 0, "16 or 8 rows a pass");
  const S* const native = static_cast<const S*>(recurrent_kernel);
  const int64_t width = 4 * int64_t{p.hidden};
  if constexpr (!kByWarp && sizeof(S) == 2) {
    if (p.weight_load == WeightLoad::kNativeWide) {
      // A thread keeps its 8 units of one gate and takes every 16th row.
      const int part = threadIdx.x % (C::kWarps / 2), gate = threadIdx.x / (C::kWarps / 2) % 4;
      const int row0 = threadIdx.x / (2 * C::kWarps), unit = first_unit + 8 * part;
      const uint32_t to = SharedAddress(stage) + (kFirst + row0) * C::kStagePitch +
                          (gate * C::kUnits + 8 * part) * int{sizeof(S)};
      const S* const from = native + gate * p.hidden + unit;
#pragma unroll 8
      for (int i = 0; i < kCount; i += 16) {
        const int row = row_of(kFirst + i + (row0 & 8)) + (row0 & 7);
        const bool valid = row < p.hidden && unit < p.hidden;
        CpAsync<16>(to + i * C::kStagePitch, valid ? from + row * width : native, valid);
      }
      return;
    }
  }
  // A thread keeps its 4 units of one gate and takes every 8th row.
  const int quad = threadIdx.x % C::kWarps, gate = threadIdx.x / C::kWarps % 4;
  const int row0 = threadIdx.x / (4 * C::kWarps), unit = first_unit + 4 * quad;
  unsigned char* const to =
      stage + (kFirst + row0) * C::kStagePitch +
      (kByWarp ? 4 * quad + gate : gate * C::kWarps + quad) * int{sizeof(Quad)};
  const int column = gate * p.hidden + unit;
  if (p.weight_load <= WeightLoad::kNativeVector) {
    const uint32_t shared = SharedAddress(to);
#pragma unroll 8
    for (int i = 0; i < kCount; i += 8) {
      const int row = row_of(kFirst + i) + row0;
      const bool valid = row < p.hidden && unit < p.hidden;
      CpAsync<sizeof(Quad)>(shared + i * C::kStagePitch,
                            valid ? native + row * width + column : native, valid);
    }
    return;
  }
  const float* const wide = static_cast<const float*>(recurrent_kernel);
  const S zero = E::From(0.0f);
  constexpr int kBatch = kCount / 8 < 16 ? kCount / 8 : (kCount % 128 == 0 ? 16 : 8);
  static_assert(kCount / 8 % kBatch == 0, "whole batches of loads");
#pragma unroll 1
  for (int begin = 0; begin < kCount; begin += 8 * kBatch) {
    Quad quads[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      Quad& q = quads[i];
      q = {zero, zero, zero, zero};
      const int row = row_of(kFirst + begin + 8 * i) + row0;
      if (row >= p.hidden) continue;
      const int64_t at = row * width + column;
      if (p.weight_load == WeightLoad::kFloatVector) {
        if (unit >= p.hidden) continue;
        const float4 v = *reinterpret_cast<const float4*>(wide + at);
        q = {E::From(v.x), E::From(v.y), E::From(v.z), E::From(v.w)};
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (unit + j >= p.hidden) continue;
          q.v[j] = p.weight_load == WeightLoad::kFloat ? E::From(wide[at + j]) : native[at + j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      *reinterpret_cast<Quad*>(to + (begin + 8 * i) * C::kStagePitch) = quads[i];
    }
  }
}

// The product of kA tiles of 16 rows by K (in registers) with a factor of 8 columns in shared
// memory.
template <class C, int kA, int kSteps>
struct Product {
  using E = typename C::Element;
  // Enough independent accumulators to hide the latency of mma.sync, which is 8 times its rate.
  static constexpr int kChains = kA >= 4 ? 1 : (kSteps >= 8 ? 4 / kA : 2);
  float v[kChains][kA][4];

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kChains * kA * 4; ++i) (&v[0][0][0])[i] = 0.0f;
  }
  // Steps [kFirst, kFirst + kCount) of K; those of the factor begin at `factor`.
  template <int kFirst, int kCount, int kOf>
  __device__ __forceinline__ void Add(const uint32_t (&a)[kA][kOf][4], uint32_t factor,
                                      uint32_t group_bytes, int lane) {
    if constexpr (kCount % 2 == 0) {
      const uint32_t address = factor + (lane >> 3) * group_bytes + (lane & 7) * 16;
#pragma unroll
      for (int k = 0; k < kCount; k += 2) {
        uint32_t b[4];
        LdMatrixX4(b, address + 2 * k * group_bytes);
#pragma unroll
        for (int m = 0; m < kA; ++m) {
          E::Mma(v[(kFirst + k) % kChains][m], a[m][kFirst + k], b[0], b[1]);
          E::Mma(v[(kFirst + k + 1) % kChains][m], a[m][kFirst + k + 1], b[2], b[3]);
        }
      }
    } else {
      const uint32_t address = factor + (lane >> 3 & 1) * group_bytes + (lane & 7) * 16;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        uint32_t b[2];
        LdMatrixX2(b, address + 2 * k * group_bytes);
#pragma unroll
        for (int m = 0; m < kA; ++m) {
          E::Mma(v[(kFirst + k) % kChains][m], a[m][kFirst + k], b[0], b[1]);
        }
      }
    }
  }
  // The next kCount steps of K, an even number, whose fragments load(fragment, step, tile) brings
  // from shared memory.
  template <int kCount, class Load>
  __device__ __forceinline__ void AddLoaded(const Load& load, uint32_t factor, uint32_t group_bytes,
                                            int lane) {
    static_assert(kCount % 2 == 0, "pairs of steps");
    const uint32_t address = factor + (lane >> 3) * group_bytes + (lane & 7) * 16;
    // Two pairs by turns: one is on its way while the other is used.
    uint32_t a[2][2][kA][4], b[2][4];
    const auto bring = [&](int k) {
#pragma unroll
      for (int m = 0; m < kA; ++m) {
        load(a[k / 2 % 2][0][m], k, m);
        load(a[k / 2 % 2][1][m], k + 1, m);
      }
      LdMatrixX4(b[k / 2 % 2], address + 2 * k * group_bytes);
    };
    bring(0);
#pragma unroll
    for (int k = 0; k < kCount; k += 2) {
      if (k + 2 < kCount) bring(k + 2);
      const int i = k / 2 % 2;
#pragma unroll
      for (int m = 0; m < kA; ++m) {
        E::Mma(v[k % kChains][m], a[i][0][m], b[i][0], b[i][1]);
        E::Mma(v[(k + 1) % kChains][m], a[i][1][m], b[i][2], b[i][3]);
      }
    }
  }
  // The sums are in v[0] from here on.
  __device__ __forceinline__ void End() {
#pragma unroll
    for (int c = 1; c < kChains; ++c) {
#pragma unroll
      for (int i = 0; i < kA * 4; ++i) (&v[0][0][0])[i] += (&v[c][0][0])[i];
    }
  }
  __device__ __forceinline__ const float* Sums() const { return v[0][0]; }
};

// The same of a warpgroup's four 16-row tiles, by wgmma, with a factor of all the slice's rows:
// shared memory is read once for four warps, and the tensor cores run at twice the rate of
// mma.sync.
template <class C>
struct WarpgroupProduct {
  using E = typename C::Element;
  float v[4 * C::kTiles];

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (float& sum : v) sum = 0.0f;
    WgmmaFence();
  }
  template <int kFirst, int kCount, int kOf>
  __device__ __forceinline__ void Add(const uint32_t (&a)[1][kOf][4], uint32_t factor,
                                      uint32_t group_bytes, int) {
    const uint64_t descriptor = MatrixDescriptor(factor, group_bytes);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      E::template Wgmma<C::kRows>(v, a[0][kFirst + k], descriptor + k * (group_bytes >> 3));
    }
  }
  // The next kCount steps of K with weights in core matrices, of which the warpgroup's first is at
  // `weights`: a step in two groups `step_bytes` / 2 apart.
  template <int kCount>
  __device__ __forceinline__ void AddShared(uint32_t weights, uint32_t step_bytes, uint32_t factor,
                                            uint32_t group_bytes) {
    const uint64_t a = MatrixDescriptor(weights, step_bytes / 2);
    const uint64_t b = MatrixDescriptor(factor, group_bytes);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      E::template WgmmaShared<C::kRows>(v, a + k * (step_bytes >> 4), b + k * (group_bytes >> 3));
    }
  }
  __device__ __forceinline__ void End() { WgmmaCommitAndWait(); }
  __device__ __forceinline__ const float* Sums() const { return v; }
};

// The barriers of a double buffer that other blocks fill: message n lands in buffer n % 2, in
// kTiles row tiles of kArrivals arrivals each. An arrival is complete when its bytes have come to
// its barrier. A tile without rows has no messages. With one tile that is all rows of the slice.
template <int kTiles, int kArrivals>
struct Mailbox {
  uint32_t barriers;
  int32_t rows;
  int32_t first_row_bytes, row_bytes;  // of the first arrival of a tile, and of the others
  bool leader;                         // the thread that arms them

  __device__ uint32_t Barrier(int message, int tile, int arrival) const {
    return barriers + 8 * (((message & 1) * kTiles + tile) * kArrivals + arrival);
  }
  __device__ void Arm(int message, int tile, int arrival) const {
    const int tile_rows = kTiles == 1 ? rows : min(8, rows - 8 * tile);
    MbarrierArriveExpectTx(Barrier(message, tile, arrival),
                           tile_rows * (arrival == 0 ? first_row_bytes : row_bytes));
  }
  // By one thread, before the cluster's first barrier.
  __device__ void Init() const {
    for (int i = 0; i < 2 * kTiles * kArrivals; ++i) MbarrierInit(barriers + 8 * i, 1);
    FenceMbarrierInit();
    for (int i = 0; i < 2 * kTiles * kArrivals; ++i) {
      const int tile = i / kArrivals % kTiles;
      if (8 * tile < rows) Arm(i / (kTiles * kArrivals), tile, i % kArrivals);
    }
  }
  // Every thread. The leader arms the barrier for message n + 2 at once; bytes that come before
  // that only lower the count of a phase that cannot end without its one arrival.
  __device__ __forceinline__ void Wait(int message, int tile, int arrival) const {
    MbarrierWaitParity(Barrier(message, tile, arrival), (message >> 1) & 1);
    if (leader) Arm(message, tile, arrival);
  }
};

// The factors of the thread's cells of h where they meet R; ones without recurrent dropout. Kernels
// of many tiles have no registers to keep them.
template <class C>
struct Dropout {
  using S = typename C::Storage;
  static constexpr bool kKeeps = C::kTiles <= 2;
  const S* first;  // that of the first row tile; null without dropout
  int32_t hidden;
  float kept[kKeeps ? C::kTiles : 1];

  __device__ Dropout(const CommonParams& p, const CommonJob& job, const Place<C>& place, int unit)
      : first(nullptr), hidden(p.hidden) {
    if (job.recurrent_dropout != nullptr) {
      first = static_cast<const S*>(job.recurrent_dropout) + int64_t{place.Batch(p, 0)} * hidden +
              min(unit, hidden - 1);
    }
    first = Kept<C>(first);
    if constexpr (kKeeps) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) kept[n] = place.HasRow(p, n) ? Read(n) : 1.0f;
    }
  }
  // Of a cell that is there.
  __device__ __forceinline__ float operator()(int tile) const {
    if constexpr (kKeeps) {
      return kept[tile];
    } else {
      return Read(tile);
    }
  }

 private:
  __device__ __forceinline__ float Read(int tile) const {
    return first == nullptr ? 1.0f : C::Element::To(first[int64_t{8} * tile * hidden]);
  }
};

// `count` elements at `from` in shared memory, one row of a core matrix, to a row in global memory.
template <class E>
__device__ __forceinline__ void StoreGroup(typename E::Storage* to, uint4 group, int count,
                                           bool vector) {
  using S = typename E::Storage;
  if (vector) {
    *reinterpret_cast<uint4*>(to) = group;
  } else {
    S values[16 / sizeof(S)];
    memcpy(values, &group, 16);
#pragma unroll
    for (int i = 0; i < int{16 / sizeof(S)}; ++i) {
      if (i < count) to[i] = values[i];
    }
  }
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_COMMON_CUH_
