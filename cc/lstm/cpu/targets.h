// The instruction sets that the SIMD sources are compiled for. Included before Highway's headers.
//
// AVX-512 and AVX2 on x86, the baseline elsewhere. Left out: what no machine that runs TensorFlow
// needs, what brings nothing to float32 arithmetic, and vectors whose length the compiler does not
// know, as tiles are arrays of vectors.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_TARGETS_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_TARGETS_H_

#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV | TFL_NEWER_TARGETS)

#include "hwy/detect_targets.h"

// Targets that Highway gained after 1.0.
#ifdef HWY_SSE2
#define TFL_NEWER_TARGETS (HWY_SSE2 | HWY_AVX3_ZEN4 | HWY_AVX3_SPR)
#else
#define TFL_NEWER_TARGETS 0
#endif

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_TARGETS_H_
