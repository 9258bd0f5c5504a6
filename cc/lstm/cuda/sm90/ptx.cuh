// The instructions of Hopper that CUDA C++ has no word for, one wrapper each, named after it.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PTX_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PTX_CUH_

#include <cstdint>

namespace tfl::cuda::sm90 {

// A value worked out once, before a loop: the compiler would rather read parameters and the
// thread's index anew at every step, which kernels of one row tile, short of time and not of
// registers, feel. Pointers lose what it knows of their address space.
template <class C, class T>
__device__ __forceinline__ T Kept(T value) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 4, "one register or two");
  if constexpr (C::kTiles == 1) {
    if constexpr (sizeof(T) == 8) {
      asm volatile("" : "+l"(value));
    } else {
      asm volatile("" : "+r"(value));
    }
  }
  return value;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The same address, but computed once: the compiler would rather derive it anew at every use.
__device__ __forceinline__ uint32_t KeptSharedAddress(const void* p) {
  uint32_t address = SharedAddress(p);
  asm volatile("" : "+r"(address));
  return address;
}

// The address in block `rank`'s shared memory that `address` is in one's own.
__device__ __forceinline__ uint32_t Mapa(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ uint32_t ClusterCtaRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of the cluster, with release and acquire of all memory.
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterBarrier() {
  ClusterArrive();
  ClusterWait();
}

// Of kThreads threads in whole warps, by barrier `id`; 0 is that of __syncthreads.
template <int kThreads>
__device__ __forceinline__ void BarSync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// Without waiting for the others.
template <int kThreads>
__device__ __forceinline__ void BarArrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// By all of a warpgroup.
template <int kRegisters>
__device__ __forceinline__ void SetMaxRegistersUp() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void SetMaxRegistersDown() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ uint32_t LdAcquireGpu(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void StReleaseGpu(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// 16 bytes as CpAsync, but past the L1 cache, for what other blocks of the launch have written.
__device__ __forceinline__ void CpAsyncL2(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Arrives at the barrier when the thread's copies so far have come; the barrier counts the thread.
__device__ __forceinline__ void CpAsyncMbarrierArrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// kBytes, 4, 8 or 16, from global to shared memory; zeros unless `valid`.
template <int kBytes>
__device__ __forceinline__ void CpAsync(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
               "n"(kBytes), "r"(valid ? kBytes : 0)
               : "memory");
}
__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kGroups of the thread's latest groups are under way.
template <int kGroups>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

__device__ __forceinline__ void MbarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void FenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void MbarrierArriveExpectTx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void MbarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Acquire at block scope (the default) is enough for what complete_tx counted, and does not drop
// the L1 cache as acquire.cluster does.
__device__ __forceinline__ void MbarrierWaitParity(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether that has come, without waiting.
__device__ __forceinline__ bool MbarrierTestParity(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Makes generic stores to one's own shared memory visible to the copy engine and to wgmma.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// 16-byte aligned addresses, bytes a multiple of 16; counts on a barrier beside the destination.
__device__ __forceinline__ void CpAsyncBulk(uint32_t remote, uint32_t local, uint32_t bytes,
                                            uint32_t remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(remote),
      "r"(local), "r"(bytes), "r"(remote_barrier)
      : "memory");
}

__device__ __forceinline__ void StAsync16(uint32_t remote, uint4 v, uint32_t remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(remote_barrier)
      : "memory");
}

// Opaque to the compiler's alias analysis, like ldmatrix: what lies there was stored as another
// type.
__device__ __forceinline__ uint32_t LdShared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

__device__ __forceinline__ void StShared(uint32_t address, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ __forceinline__ void LdSharedX4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void StSharedX4(uint32_t address, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

__device__ __forceinline__ void LdMatrixX4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LdMatrixX2(uint32_t (&d)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LdMatrixX4Trans(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void PrefetchL2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ __forceinline__ float TanhApprox(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float CvtRnaTf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void WgmmaCommitAndWait() {
  asm volatile(
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;" ::
          : "memory");
}

// A wgmma operand in shared memory, no swizzle, K-major: core matrices of 8 rows of 16 bytes, the
// next one along K `k_stride` bytes on, the next 8 rows 128 bytes on. Adding to the lower word
// moves the address by 16 bytes each.
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t address, uint32_t k_stride) {
  return static_cast<uint64_t>(128 >> 4) << 32 | ((address & 0x3FFFF) >> 4 | k_stride >> 4 << 16);
}

// d[16, 8] += a[16, 32 bytes] b[32 bytes, 8], a warp.
#define TFL_MMA(name, shape, type)                                                              \
  __device__ __forceinline__ void name(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) { \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                        \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"         \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));               \
  }
TFL_MMA(MmaBf16, "m16n8k16", "bf16")
TFL_MMA(MmaF16, "m16n8k16", "f16")
TFL_MMA(MmaTf32, "m16n8k8", "tf32")
#undef TFL_MMA

// d[64, N] += a[64, 32 bytes] b[32 bytes, N], a warpgroup; a in registers.
#define TFL_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TFL_D12 TFL_D4(0), TFL_D4(4), TFL_D4(8)
#define TFL_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
#define TFL_S8 " {%0, %1, %2, %3, %4, %5, %6, %7"
#define TFL_S12 TFL_S8 ", %8, %9, %10, %11"
#define TFL_S16 TFL_S12 ", %12, %13, %14, %15"
#define TFL_S20 TFL_S16 ", %16, %17, %18, %19"
#define TFL_WGMMA(name, k, type, tail)                                                         \
  template <int N>                                                                             \
  __device__ __forceinline__ void name(float* d, const uint32_t* a, uint64_t b) {              \
    static_assert(N == 16 || N == 24 || N == 32 || N == 40, "no wgmma wrapper of this width"); \
    if constexpr (N == 16) {                                                                   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n16" k ".f32." type "." type TFL_S8        \
                   "}, {%8, %9, %10, %11}, %12, 1, 1, 1" tail ";"                              \
                   : TFL_D4(0), TFL_D4(4)                                                      \
                   : TFL_A);                                                                   \
    } else if constexpr (N == 24) {                                                            \
      asm volatile("wgmma.mma_async.sync.aligned.m64n24" k ".f32." type "." type TFL_S12       \
                   "}, {%12, %13, %14, %15}, %16, 1, 1, 1" tail ";"                            \
                   : TFL_D12                                                                   \
                   : TFL_A);                                                                   \
    } else if constexpr (N == 32) {                                                            \
      asm volatile("wgmma.mma_async.sync.aligned.m64n32" k ".f32." type "." type TFL_S16       \
                   "}, {%16, %17, %18, %19}, %20, 1, 1, 1" tail ";"                            \
                   : TFL_D12, TFL_D4(12)                                                       \
                   : TFL_A);                                                                   \
    } else {                                                                                   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n40" k ".f32." type "." type TFL_S20       \
                   "}, {%20, %21, %22, %23}, %24, 1, 1, 1" tail ";"                            \
                   : TFL_D12, TFL_D4(12), TFL_D4(16)                                           \
                   : TFL_A);                                                                   \
    }                                                                                          \
  }
TFL_WGMMA(WgmmaBf16, "k16", "bf16", ", 0")
TFL_WGMMA(WgmmaF16, "k16", "f16", ", 0")
TFL_WGMMA(WgmmaTf32, "k8", "tf32", "")
#undef TFL_WGMMA
#undef TFL_A

// The same with a in shared memory: core matrices of 8 rows of a, 16 bytes of K each.
#define TFL_WGMMA_SHARED(name, k, type, tail)                                            \
  template <int N>                                                                       \
  __device__ __forceinline__ void name(float* d, uint64_t a, uint64_t b) {               \
    static_assert(N == 16 || N == 24, "no wgmma wrapper of this width");                 \
    if constexpr (N == 16) {                                                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n16" k ".f32." type "." type TFL_S8  \
                   "}, %8, %9, 1, 1, 1" tail ";"                                         \
                   : TFL_D4(0), TFL_D4(4)                                                \
                   : "l"(a), "l"(b));                                                    \
    } else {                                                                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n24" k ".f32." type "." type TFL_S12 \
                   "}, %12, %13, 1, 1, 1" tail ";"                                       \
                   : TFL_D12                                                             \
                   : "l"(a), "l"(b));                                                    \
    }                                                                                    \
  }
TFL_WGMMA_SHARED(WgmmaSharedBf16, "k16", "bf16", ", 0, 0")
TFL_WGMMA_SHARED(WgmmaSharedF16, "k16", "f16", ", 0, 0")
TFL_WGMMA_SHARED(WgmmaSharedTf32, "k8", "tf32", "")
#undef TFL_WGMMA_SHARED
#undef TFL_S20
#undef TFL_S16
#undef TFL_S12
#undef TFL_S8
#undef TFL_D12
#undef TFL_D4

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PTX_CUH_
