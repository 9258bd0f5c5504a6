// What both directions share: a lane's place, and R's way into registers.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_COMMON_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_COMMON_CUH_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/lstm/cuda/block/config.h"
#include "cc/lstm/cuda/early_launch.cuh"
#include "cc/lstm/cuda/sm90/element.cuh"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/cuda/sm90/ptx.cuh"

// Older devices have no matrix instruction of these types: there the kernels are empty, and the
// family says that it cannot run.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define TFL_BLOCK_RUNS 0
#define TFL_BLOCK_CONSTANT
#else
#define TFL_BLOCK_RUNS 1
#define TFL_BLOCK_CONSTANT __grid_constant__
#endif

namespace tfl::cuda::block {

using sm90::BackwardParams;
using sm90::BarArrive;
using sm90::BarSync;
using sm90::CommonParams;
using sm90::ForwardParams;
using sm90::WeightLoad;

#if TFL_BLOCK_RUNS

// A value worked out once: the compiler would rather read parameters anew at every step.
template <class T>
__device__ __forceinline__ T Kept(T value) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 4, "one register or two");
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

// In a 16x8 accumulator tile lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
// The rows of a warp's tile t are gates t % 2 and t % 2 + 2 of the 8 units that begin at 8 (t / 2),
// so that a lane's two tiles hold all four gates of a unit. Which rows of the batch the columns
// are, and so which cells are a lane's:
//   2 rows: columns 0, 1, 4, 5 and 2, 3, 6, 7; lane l has row l % 2 of one of its two units;
//   4 rows: two columns each; row l % 4 of both units;
//   8 rows: rows 2 (l % 4) and the next of both units.
template <class C>
struct Place {
  int thread, warp, lane, first_row;

  __device__ explicit Place(const CommonParams& p) {
    thread = Kept(static_cast<int>(threadIdx.x));
    warp = __shfl_sync(~0u, thread >> 5, 0);
    lane = Kept(thread & 31);
    first_row = blockIdx.x * p.rows;
  }
  // Of cell i, in the warp.
  __device__ __forceinline__ int LocalUnit(int i) const {
    const int group = C::kCells == 1 ? lane >> 1 & 1 : (C::kCells == 2 ? i : i >> 1);
    return 8 * group + (lane >> 2);
  }
  __device__ __forceinline__ int Unit(int i) const { return 16 * warp + LocalUnit(i); }
  __device__ __forceinline__ int Row(int i) const {
    return C::kCells == 1 ? lane & 1 : (C::kCells == 2 ? lane & 3 : 2 * (lane & 3) + (i & 1));
  }
  // Of a lane's rows, that of cell i.
  __device__ static constexpr int LaneRow(int i) { return C::kLaneRows == 1 ? 0 : i & 1; }
  // The batch row that is column `column` of a factor.
  __device__ static __forceinline__ int FactorRow(int column) {
    return C::kCells == 1 ? column >> 1 & 1 : (C::kCells == 2 ? column >> 1 : column);
  }
  __device__ __forceinline__ int Batch(int i) const { return first_row + Row(i); }
  __device__ __forceinline__ bool HasRow(const CommonParams& p, int i) const {
    return Row(i) < p.rows && Batch(i) < p.batch;
  }
  // The record of cell i after s steps, in the layout of sm90/config.h.
  __device__ __forceinline__ int64_t ReserveCell(const CommonParams& p, int64_t s, int i) const {
    const int unit = Unit(i);
    return ((s * (C::kHidden / 4) + unit / 4) * p.batch + Batch(i)) * 4 + unit % 4;
  }
};

// Where the products of forward take row `row` of 32 of R: a lane reads 8 units of h at once, those
// of 4 slots of K of one instruction and 4 of the next.
__device__ __forceinline__ int ForwardPosition(int row) {
  return (row & 4) << 2 | (row & 2) << 2 | row >> 3 << 1 | (row & 1);
}

// Brings rows of R to a slot of the stage, zeros beyond `hidden`; where R lies as the kernel wants
// it by asynchronous copies, part of the thread's next group.
template <class C, bool kForward>
__device__ __forceinline__ void StageGroup(unsigned char* slot, const CommonParams& p,
                                           const void* recurrent_kernel, int group) {
  using E = typename C::Element;
  using S = typename C::Storage;
  // A thread keeps its 8 units of one gate and takes every 4th row.
  constexpr int kPieces = C::kHidden / 8, kPasses = kGroupRows / 4;
  const int piece = threadIdx.x % kPieces, gate = threadIdx.x / kPieces % 4;
  const int row0 = threadIdx.x / (4 * kPieces), unit = 8 * piece;
  const int64_t width = 4 * int64_t{p.hidden};
  const int64_t column = int64_t{gate} * p.hidden + unit;
  const auto place = [&](int i) {
    const int row = row0 + 4 * i;
    return slot + (kForward ? ForwardPosition(row) : row) * C::kStagePitch +
           (gate * C::kHidden + unit) * int{sizeof(S)};
  };
  const auto row_of = [&](int i) { return group * kGroupRows + row0 + 4 * i; };
  const S* const native = static_cast<const S*>(recurrent_kernel);
  if (p.weight_load == WeightLoad::kNativeWide) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const bool valid = row_of(i) < p.hidden && unit < p.hidden;
      sm90::CpAsync<16>(sm90::SharedAddress(place(i)),
                        valid ? native + row_of(i) * width + column : native, valid);
    }
    return;
  }
  if (p.weight_load == WeightLoad::kNativeVector) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const bool valid = row_of(i) < p.hidden && unit + j < p.hidden;
        sm90::CpAsync<8>(sm90::SharedAddress(place(i)) + j * int{sizeof(S)},
                         valid ? native + row_of(i) * width + column + j : native, valid);
      }
    }
    return;
  }
  const float* const wide = static_cast<const float*>(recurrent_kernel);
  constexpr int kAtOnce = 4;
#pragma unroll 1
  for (int begin = 0; begin < kPasses; begin += kAtOnce) {
    S values[kAtOnce][8];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = row_of(begin + i);
      const int64_t at = row * width + column;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        S* const v = values[i] + j;
        v[0] = v[1] = v[2] = v[3] = E::From(0.0f);
        if (row >= p.hidden) continue;
        if (p.weight_load == WeightLoad::kFloatVector) {
          if (unit + j >= p.hidden) continue;
          const float4 four = *reinterpret_cast<const float4*>(wide + at + j);
          v[0] = E::From(four.x), v[1] = E::From(four.y);
          v[2] = E::From(four.z), v[3] = E::From(four.w);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (unit + j + k >= p.hidden) continue;
            v[k] = p.weight_load == WeightLoad::kFloat ? E::From(wide[at + j + k])
                                                       : native[at + j + k];
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      uint4 packed;
      memcpy(&packed, values[i], 16);
      *reinterpret_cast<uint4*>(place(begin + i)) = packed;
    }
  }
}

// The first groups, as many as there are slots.
template <class C, bool kForward>
__device__ __forceinline__ void BeginStaging(unsigned char* stage, int slots, const CommonParams& p,
                                             const void* recurrent_kernel) {
  for (int group = 0; group < slots; ++group) {
    StageGroup<C, kForward>(stage + group * C::kSlotBytes, p, recurrent_kernel, group);
    sm90::CpAsyncCommit();
  }
}

// Reads group after group with load(group, its slot) and stages those that are left. Straight code:
// a loop over fragments once made the compiler mix them up.
template <class C, bool kForward, class Load, int kGroup = 0>
__device__ __forceinline__ void LoadGroups(unsigned char* stage, int slots, const CommonParams& p,
                                           const void* recurrent_kernel, const Load& load) {
  if constexpr (kGroup < C::kGroups) {
    if (slots == C::kGroups) {
      sm90::CpAsyncWait<C::kGroups - 1 - kGroup>();
    } else {
      sm90::CpAsyncWait<kGroup + 1 < C::kGroups ? kLeastSlots - 1 : 0>();
    }
    __syncthreads();
    unsigned char* const slot =
        stage + (slots == C::kGroups ? kGroup : kGroup % kLeastSlots) * C::kSlotBytes;
    load(std::integral_constant<int, kGroup>(), slot);
    if constexpr (kGroup + kLeastSlots < C::kGroups) {
      if (slots < C::kGroups) {
        __syncthreads();
        StageGroup<C, kForward>(slot, p, recurrent_kernel, kGroup + kLeastSlots);
        sm90::CpAsyncCommit();
      }
    }
    LoadGroups<C, kForward, Load, kGroup + 1>(stage, slots, p, recurrent_kernel, load);
  }
}

// A 16-bit value in the lower half of a word.
template <class S>
__device__ __forceinline__ uint32_t Bits(S value) {
  uint16_t bits;
  memcpy(&bits, &value, 2);
  return bits;
}

// Loads and stores under a predicate, for code that is not to branch: so the compiler can put it
// among the products. A value not loaded is zero. What a preceding kernel may still have written
// when this one began is no constant: floats.
__device__ __forceinline__ float LoadIf(bool condition, const float* p) {
  float v = 0.0f;
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.f32 %0, [%1];\n}"
               : "+f"(v)
               : "l"(p), "r"(static_cast<int>(condition)));
  return v;
}
__device__ __forceinline__ uint32_t LoadIf(bool condition, const uint16_t* p) {
  uint32_t v = 0;
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.u16 %0, [%1];\n}"
               : "+r"(v)
               : "l"(p), "r"(static_cast<int>(condition)));
  return v;
}
__device__ __forceinline__ uint4 LoadIf(bool condition, const uint4* p) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<int>(condition)));
  return v;
}
// A mask's byte, or one that is valid.
__device__ __forceinline__ uint32_t LoadValidIf(bool condition, const uint8_t* p) {
  uint32_t v = 1;
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.u8 %0, [%1];\n}"
               : "+r"(v)
               : "l"(p), "r"(static_cast<int>(condition)));
  return v;
}
template <class S>
__device__ __forceinline__ void StoreIf(bool condition, S* p, S value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u16 [%0], %1;\n}" ::"l"(p),
               "h"(static_cast<uint16_t>(Bits(value))), "r"(static_cast<int>(condition))
               : "memory");
}
__device__ __forceinline__ void StoreIf(bool condition, uint4* p, const uint4& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(p),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(static_cast<int>(condition))
      : "memory");
}
__device__ __forceinline__ void PrefetchIf(bool condition, const void* p) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p prefetch.global.L2 [%0];\n}" ::"l"(p),
               "r"(static_cast<int>(condition)));
}

// That half `half` of the block has left what the other needs for a step.
__device__ __forceinline__ int CrossBarrier(int half, int step) {
  return 3 + 2 * half + (step & 1);
}

__device__ __forceinline__ uint4 LdShared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// The factor of the lane's cell i of h where it meets R; 1 without recurrent dropout.
template <class C>
__device__ __forceinline__ float DropoutOf(const void* mask, int64_t at) {
  using S = typename C::Storage;
  return mask == nullptr ? 1.0f : C::Element::To(static_cast<const S*>(mask)[at]);
}

#endif  // TFL_BLOCK_RUNS

}  // namespace tfl::cuda::block

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_COMMON_CUH_
