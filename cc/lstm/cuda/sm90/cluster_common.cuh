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
  __device__ int Row(int tile) const { return slice * C::kRows + tile * 8 + column; }
  // The lane's record in the reserve, of step 0 of row tile `tile`.
  __device__ int64_t ReserveCell(int tile) const {
    return (int64_t{slice * C::kTiles + tile} * (C::kHidden / 4) + rank * C::kWarps + warp) * 32 +
           lane;
  }
};

// Brings rows [row0, row0 + kStageRows) of the block's columns of R to shared memory, as
// [row][gate][unit], or with kByWarp as [row][warp][gate][4 units]. Zeros beyond `hidden`.
template <class C, bool kByWarp>
__device__ void StageWeights(unsigned char* stage, const CommonParams& p, int row0,
                             int first_unit) {
  using S = typename C::Storage;
  using E = typename C::Element;
  struct alignas(4 * sizeof(S)) Quad {
    S v[4];
  };
  constexpr int kBatch = C::kBytes == 2 ? 8 : 4;
  constexpr int kItems = C::kStageRows * 4 * C::kWarps;
  static_assert(kItems % (kBatch * C::kThreads) == 0, "whole batches of loads");
  const S zero = E::From(0.0f);
  for (int base = threadIdx.x; base < kItems; base += kBatch * C::kThreads) {
    Quad quads[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int item = base + i * C::kThreads;
      const int quad = item % C::kWarps, gate = item / C::kWarps % 4;
      const int row = row0 + item / (4 * C::kWarps), unit = first_unit + 4 * quad;
      quads[i] = {zero, zero, zero, zero};
      if (row >= p.hidden || unit >= p.hidden) continue;
      const int64_t at = int64_t{row} * 4 * p.hidden + gate * p.hidden + unit;
      if (p.weight_load == WeightLoad::kNativeVector) {
        quads[i] = *reinterpret_cast<const Quad*>(static_cast<const S*>(p.recurrent_kernel) + at);
      } else if (p.weight_load == WeightLoad::kFloatVector) {
        const float4 v =
            *reinterpret_cast<const float4*>(static_cast<const float*>(p.recurrent_kernel) + at);
        quads[i] = {E::From(v.x), E::From(v.y), E::From(v.z), E::From(v.w)};
      } else {
        for (int j = 0; j < 4 && unit + j < p.hidden; ++j) {
          quads[i].v[j] = p.weight_load == WeightLoad::kFloat
                              ? E::From(static_cast<const float*>(p.recurrent_kernel)[at + j])
                              : static_cast<const S*>(p.recurrent_kernel)[at + j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int item = base + i * C::kThreads;
      const int quad = item % C::kWarps, gate = item / C::kWarps % 4, row = item / (4 * C::kWarps);
      if constexpr (sizeof(S) == 4) {
        for (int j = 0; j < 4; ++j) quads[i].v[j] = Factor<E>(quads[i].v[j]);
      }
      const int column = kByWarp ? 4 * quad + gate : gate * C::kWarps + quad;
      *reinterpret_cast<Quad*>(stage + row * C::kStagePitch + column * int{sizeof(Quad)}) =
          quads[i];
    }
  }
}

// acc[tile] += a x (the factor in shared memory at `factor`, kSteps matrix steps deep).
template <class C, int kSteps, int kA>
__device__ __forceinline__ void Multiply(float (&acc)[kA][C::kTiles * 4],
                                         const uint32_t (&a)[kA][kSteps][4], uint32_t factor,
                                         int lane) {
  using E = typename C::Element;
  if constexpr (C::kWarpgroup) {
    WgmmaFence();
#pragma unroll
    for (int m = 0; m < kA; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        E::template Wgmma<C::kRows>(
            acc[m], a[m][k], MatrixDescriptor(factor + 2 * k * C::kGroupBytes, C::kGroupBytes));
      }
    }
    WgmmaCommitAndWait();
  } else {
    // Enough independent accumulators to hide the latency of mma.sync, which is 8 times its rate.
    constexpr int kChains = kA * C::kTiles >= 4 ? 1 : (kSteps >= 8 ? 4 / (kA * C::kTiles) : 2);
    static_assert(kSteps % 2 == 0, "ldmatrix.x4 brings the factor of two matrix steps");
    float more[kChains][kA][C::kTiles * 4];
#pragma unroll
    for (int c = 1; c < kChains; ++c) {
#pragma unroll
      for (int m = 0; m < kA; ++m) {
#pragma unroll
        for (int i = 0; i < C::kTiles * 4; ++i) more[c][m][i] = 0.0f;
      }
    }
    const uint32_t address = factor + (lane >> 3) * C::kGroupBytes + (lane & 7) * 16;
#pragma unroll
    for (int k = 0; k < kSteps; k += 2) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
        uint32_t b[4];
        LdMatrixX4(b, address + 2 * k * C::kGroupBytes + n * 128);
#pragma unroll
        for (int m = 0; m < kA; ++m) {
          const int c0 = k % kChains, c1 = (k + 1) % kChains;
          E::Mma(&(c0 == 0 ? acc : more[c0])[m][4 * n], a[m][k], b[0], b[1]);
          E::Mma(&(c1 == 0 ? acc : more[c1])[m][4 * n], a[m][k + 1], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int c = 1; c < kChains; ++c) {
#pragma unroll
      for (int m = 0; m < kA; ++m) {
#pragma unroll
        for (int i = 0; i < C::kTiles * 4; ++i) acc[m][i] += more[c][m][i];
      }
    }
  }
}

// The two barriers of a double buffer that other blocks fill: message n lands in buffer n % 2.
struct Mailbox {
  uint32_t barriers;
  uint32_t bytes;

  // By one thread, before the cluster's first barrier.
  __device__ void Init() const {
    MbarrierInit(barriers, 1);
    MbarrierInit(barriers + 8, 1);
    FenceMbarrierInit();
    MbarrierArriveExpectTx(barriers, bytes);
    MbarrierArriveExpectTx(barriers + 8, bytes);
  }
  __device__ uint32_t Barrier(int message) const { return barriers + 8 * (message & 1); }
  // Every thread. Thread 0 arms the barrier for message n + 2 at once; bytes that come before that
  // only lower the count of a phase that cannot end without its one arrival.
  __device__ void Wait(int message) const {
    MbarrierWaitParity(Barrier(message), (message >> 1) & 1);
    if (threadIdx.x == 0) MbarrierArriveExpectTx(Barrier(message), bytes);
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
