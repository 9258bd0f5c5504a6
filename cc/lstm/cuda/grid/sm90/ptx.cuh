// The instructions of sm_90a that the grid kernels use besides those of others, one function each.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_PTX_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_PTX_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cc/lstm/cuda/ptx.cuh"

namespace tfl::cuda::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// All threads of a warpgroup, of a block of `kThreads` that has a multiprocessor to itself and so
// starts with an equal share of its registers, in eighths, for each.
template <int kCount, int kThreads>
__device__ __forceinline__ void SetRegisters() {
  if constexpr (kCount > 65536 / kThreads / 8 * 8) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

// All threads of both blocks of the cluster.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Between accesses by ordinary instructions and by the copy engine or the tensor cores.
__device__ __forceinline__ void FenceAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// A word that carries its number along needs no order to other accesses.
__device__ __forceinline__ uint2 LoadRelaxed(const uint2* address) {
  uint64_t both;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(both) : "l"(address) : "memory");
  return make_uint2(static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32));
}
__device__ __forceinline__ void StoreRelaxed(uint2* address, uint32_t low, uint32_t high) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address),
               "l"(static_cast<uint64_t>(high) << 32 | low)
               : "memory");
}

// Global memory to the same place in the shared memory of every block in `blocks`, counted on the
// barrier at the same place in each.
__device__ __forceinline__ void BulkCopyMulticast(uint32_t to, const void* from, uint32_t bytes,
                                                  uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void MmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void MmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void MmaWaitAll() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// A K-major operand without swizzle, as 8 x 16-byte core matrices: from one to the next along k
// and along n.
__device__ __forceinline__ uint64_t MmaDescriptor(uint32_t address, uint32_t k_bytes,
                                                  uint32_t n_bytes) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         (static_cast<uint64_t>(k_bytes >> 4) << 16) | (static_cast<uint64_t>(n_bytes >> 4) << 32);
}

// d[64 x 16] += a[64 x k] b[k x 16] for 32 bytes of k, a from registers.
template <typename F>
struct Mma;

#define TFL_GRID_MMA(TYPE, SHAPE, NAME, MAJOR)                                               \
  template <>                                                                                \
  struct Mma<TYPE> {                                                                         \
    static __device__ __forceinline__ void Run(float* d, const uint32_t* a, uint64_t b) {    \
      asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".f32." NAME "." NAME               \
                   " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1" MAJOR ";"     \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
                     "+f"(d[6]), "+f"(d[7])                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                    \
    }                                                                                        \
  };
TFL_GRID_MMA(__nv_bfloat16, "m64n16k16", "bf16", ", 0")
TFL_GRID_MMA(__half, "m64n16k16", "f16", ", 0")
TFL_GRID_MMA(float, "m64n16k8", "tf32", "")  // operands of TF32 are always K-major
#undef TFL_GRID_MMA

// The nearest TF32 value; the tensor cores would cut the last 13 bits off.
__device__ __forceinline__ uint32_t RoundToTf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

}  // namespace tfl::cuda::ptx

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_PTX_CUH_
