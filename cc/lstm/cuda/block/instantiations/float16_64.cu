#include "cc/lstm/cuda/block/instantiations/instantiate.cuh"

namespace tfl::cuda::block {

const KernelSet* Float16Blocks64() { return Sets<sm90::Float16, 64>(); }

}  // namespace tfl::cuda::block
