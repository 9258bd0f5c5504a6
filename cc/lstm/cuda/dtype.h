// What the enums of lstm.h mean in bytes and in arithmetic.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_DTYPE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_DTYPE_H_

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

inline int64_t SizeOf(tfl_dtype dtype) {
  switch (dtype) {
    case TFL_FLOAT64:
      return 8;
    case TFL_FLOAT32:
      return 4;
    case TFL_FLOAT16:
    case TFL_BFLOAT16:
      return 2;
  }
  return 0;
}

inline bool Is16Bit(tfl_dtype dtype) { return dtype == TFL_FLOAT16 || dtype == TFL_BFLOAT16; }

// The type in which products accumulate and the cell state is kept.
inline tfl_dtype AccumulatorOf(tfl_dtype dtype) {
  return dtype == TFL_FLOAT64 ? TFL_FLOAT64 : TFL_FLOAT32;
}

// Every part of a workspace or reserve starts on such a boundary.
constexpr int64_t kAlignment = 256;
inline int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Hands out the parts of a workspace in order; with a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}
  void* Take(int64_t bytes) {
    void* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += Align(bytes);
    return part;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_DTYPE_H_
