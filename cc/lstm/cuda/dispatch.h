// From a tfl_dtype to a C++ type.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_DISPATCH_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_DISPATCH_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls function(TypeTag<T>()) with the T of dtype.
template <typename Function>
auto DispatchType(tfl_dtype dtype, Function&& function) {
  switch (dtype) {
    case TFL_FLOAT64:
      return function(TypeTag<double>());
    case TFL_FLOAT16:
      return function(TypeTag<__half>());
    case TFL_BFLOAT16:
      return function(TypeTag<__nv_bfloat16>());
    case TFL_FLOAT32:
      break;
  }
  return function(TypeTag<float>());
}

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_DISPATCH_H_
