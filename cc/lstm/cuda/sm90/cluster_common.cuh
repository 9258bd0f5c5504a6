// What both directions share: bringing R into registers, products, the exchange's bookkeeping.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_COMMON_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_COMMON_CUH_

#include <cstdint>
#include <cstring>

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
  int warp, lane, rank, slice, unit, column, first_unit;
  bool upper;

  __device__ Place() {
    warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
    lane = threadIdx.x & 31;
    rank = ClusterCtaRank();
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

// Brings kStageRows rows of the block's columns of R, row_of(0) and on, to shared memory as
// [row][gate][unit], or with kByWarp as [row][warp][gate][4 units]. Zeros beyond `hidden`.
template <class C, bool kByWarp, class RowOf>
__device__ void StageWeights(unsigned char* stage, const CommonParams& p, int first_unit,
                             const RowOf& row_of) {
  using S = typename C::Storage;
  using E = typename C::Element;
  struct alignas(4 * sizeof(S)) Quad {
    S v[4];
  };
  constexpr int kItems = C::kStageRows * 4 * C::kWarps;
  constexpr int kBatch = kItems / C::kThreads < 16 ? kItems / C::kThreads : 16;
  static_assert(kItems % (kBatch * C::kThreads) == 0, "whole batches of loads");
  const S zero = E::From(0.0f);
  const auto stage_all = [&](const auto& load) {
    for (int base = threadIdx.x; base < kItems; base += kBatch * C::kThreads) {
      Quad quads[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = base + i * C::kThreads;
        const int quad = item % C::kWarps, gate = item / C::kWarps % 4;
        const int row = row_of(item / (4 * C::kWarps)), unit = first_unit + 4 * quad;
        quads[i] = {zero, zero, zero, zero};
        if (row < p.hidden && unit < p.hidden) {
          quads[i] = load(int64_t{row} * 4 * p.hidden + gate * p.hidden + unit, p.hidden - unit);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = base + i * C::kThreads;
        const int quad = item % C::kWarps, gate = item / C::kWarps % 4;
        const int row = item / (4 * C::kWarps);
        if constexpr (sizeof(S) == 4) {
          for (int j = 0; j < 4; ++j) quads[i].v[j] = Factor<E>(quads[i].v[j]);
        }
        const int column = kByWarp ? 4 * quad + gate : gate * C::kWarps + quad;
        *reinterpret_cast<Quad*>(stage + row * C::kStagePitch + column * int{sizeof(Quad)}) =
            quads[i];
      }
    }
  };
  const S* const native = static_cast<const S*>(p.recurrent_kernel);
  const float* const wide = static_cast<const float*>(p.recurrent_kernel);
  if (p.weight_load == WeightLoad::kNativeVector) {
    stage_all([&](int64_t at, int) { return *reinterpret_cast<const Quad*>(native + at); });
  } else if (p.weight_load == WeightLoad::kFloatVector) {
    stage_all([&](int64_t at, int) -> Quad {
      const float4 v = *reinterpret_cast<const float4*>(wide + at);
      return {E::From(v.x), E::From(v.y), E::From(v.z), E::From(v.w)};
    });
  } else {
    const bool is_wide = p.weight_load == WeightLoad::kFloat;
    stage_all([&](int64_t at, int count) {
      Quad quad = {zero, zero, zero, zero};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j < count) quad.v[j] = is_wide ? E::From(wide[at + j]) : native[at + j];
      }
      return quad;
    });
  }
}

// The product of kA tiles of 16 rows by K (in registers) with a factor in shared memory.
template <class C, int kA, int kSteps>
struct Product {
  using E = typename C::Element;
  // Enough independent accumulators to hide the latency of mma.sync, which is 8 times its rate.
  static constexpr int kChains =
      C::kWarpgroup || kA * C::kTiles >= 4 ? 1 : (kSteps >= 8 ? 4 / (kA * C::kTiles) : 2);
  float v[kChains][kA][C::kTiles * 4];

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kChains * kA * C::kTiles * 4; ++i) (&v[0][0][0])[i] = 0.0f;
    if constexpr (C::kWarpgroup) WgmmaFence();
  }
  // Steps [kFirst, kFirst + kCount) of K; those of the factor begin at `factor`.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void Add(const uint32_t (&a)[kA][kSteps][4], uint32_t factor,
                                      uint32_t group_bytes, int lane) {
    if constexpr (C::kWarpgroup) {
      const uint64_t descriptor = MatrixDescriptor(factor, group_bytes);
#pragma unroll
      for (int m = 0; m < kA; ++m) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          E::template Wgmma<C::kRows>(v[0][m], a[m][kFirst + k],
                                      descriptor + k * (group_bytes >> 3));
        }
      }
    } else if constexpr (kCount % 2 == 0) {
      const uint32_t address = factor + (lane >> 3) * group_bytes + (lane & 7) * 16;
#pragma unroll
      for (int k = 0; k < kCount; k += 2) {
#pragma unroll
        for (int n = 0; n < C::kTiles; ++n) {
          uint32_t b[4];
          LdMatrixX4(b, address + 2 * k * group_bytes + n * 128);
#pragma unroll
          for (int m = 0; m < kA; ++m) {
            E::Mma(&v[(kFirst + k) % kChains][m][4 * n], a[m][kFirst + k], b[0], b[1]);
            E::Mma(&v[(kFirst + k + 1) % kChains][m][4 * n], a[m][kFirst + k + 1], b[2], b[3]);
          }
        }
      }
    } else {
      const uint32_t address = factor + (lane >> 3 & 1) * group_bytes + (lane & 7) * 16;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
#pragma unroll
        for (int n = 0; n < C::kTiles; ++n) {
          uint32_t b[2];
          LdMatrixX2(b, address + 2 * k * group_bytes + n * 128);
#pragma unroll
          for (int m = 0; m < kA; ++m) {
            E::Mma(&v[(kFirst + k) % kChains][m][4 * n], a[m][kFirst + k], b[0], b[1]);
          }
        }
      }
    }
  }
  // The sums are in v[0] from here on.
  __device__ __forceinline__ void End() {
    if constexpr (C::kWarpgroup) WgmmaCommitAndWait();
#pragma unroll
    for (int c = 1; c < kChains; ++c) {
#pragma unroll
      for (int i = 0; i < kA * C::kTiles * 4; ++i) (&v[0][0][0])[i] += (&v[c][0][0])[i];
    }
  }
};

// The barriers of a double buffer that other blocks fill: message n lands in buffer n % 2, and is
// complete when `bytes` have come to each of kArrivals barriers (the first may expect fewer).
template <int kArrivals>
struct Mailbox {
  uint32_t barriers;
  uint32_t first_bytes, bytes;

  __device__ uint32_t Barrier(int message, int arrival) const {
    return barriers + 8 * ((message & 1) * kArrivals + arrival);
  }
  __device__ void Arm(int message, int arrival) const {
    MbarrierArriveExpectTx(Barrier(message, arrival), arrival == 0 ? first_bytes : bytes);
  }
  // By one thread, before the cluster's first barrier.
  __device__ void Init() const {
    for (int i = 0; i < 2 * kArrivals; ++i) MbarrierInit(barriers + 8 * i, 1);
    FenceMbarrierInit();
    for (int i = 0; i < 2 * kArrivals; ++i) Arm(i / kArrivals, i % kArrivals);
  }
  // Every thread. Thread 0 arms the barrier for message n + 2 at once; bytes that come before that
  // only lower the count of a phase that cannot end without its one arrival.
  __device__ __forceinline__ void Wait(int message, int arrival) const {
    MbarrierWaitParity(Barrier(message, arrival), (message >> 1) & 1);
    if (threadIdx.x == 0) Arm(message, arrival);
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
