// Shape inference of the ops; unknown ranks and dimensions pass through.
#ifndef TF_FUSED_LSTM_CC_OPS_SHAPE_FUNCTIONS_H_
#define TF_FUSED_LSTM_CC_OPS_SHAPE_FUNCTIONS_H_

#include "tensorflow/core/framework/shape_inference.h"

namespace tf_fused_lstm {

absl::Status ForwardShape(tensorflow::shape_inference::InferenceContext* c);
absl::Status GradientShape(tensorflow::shape_inference::InferenceContext* c);

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_OPS_SHAPE_FUNCTIONS_H_
