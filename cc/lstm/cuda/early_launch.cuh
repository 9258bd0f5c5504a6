// Programmatic dependent launch: a kernel's blocks begin, and bring weights in, while the kernel
// before it in the stream still runs (CUDA Programming Guide, "Programmatic Dependent Launch and
// Synchronization"). The kernels before that one have ended by then, as it was launched plainly.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_EARLY_LAUNCH_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_EARLY_LAUNCH_CUH_

namespace tfl::cuda {

// In the earlier kernel: once every block has said so or ended, the later one's may begin.
__device__ __forceinline__ void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In the later kernel: until the earlier one has ended and its results are to be seen, by plain
// loads alone: __ldg is for what nobody writes while the kernel runs. Nothing is written before.
// Does not wait in a plain launch.
__device__ __forceinline__ void WaitForPrecedingKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_EARLY_LAUNCH_CUH_
