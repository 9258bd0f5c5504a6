#include "cc/lstm/cuda/block/instantiations/instantiate.cuh"

namespace tfl::cuda::block {

const KernelSet* Float16Blocks128() { return Sets<sm90::Float16, 128>(); }

}  // namespace tfl::cuda::block
