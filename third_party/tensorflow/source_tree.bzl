"""For builds where TensorFlow is compiled from source, as in TensorFlow Serving: docs/serving.md."""

load("//third_party/cuda:cuda_configure.bzl", "cuda_configure")
load("//third_party/highway:highway_configure.bzl", "highway_configure")

# Of the framework, what kernels compile against; the server links it once.
_BUILD = """
cc_library(
    name = "headers",
    visibility = ["//visibility:public"],
    deps = [
        "@org_tensorflow//tensorflow/core:framework",
        "@org_tensorflow//tensorflow/core:lib",
    ],
)
"""

def _source_tree_tensorflow_impl(ctx):
    ctx.file("BUILD", _BUILD)

_source_tree_tensorflow = repository_rule(
    implementation = _source_tree_tensorflow_impl,
)

def fused_lstm_repositories(name, path):
    """Declares @<name>, with the target //cc/kernels:ops_lib, and what it needs.

    Args:
      name: of the repository to declare.
      path: this project's source folder.
    """
    cuda_configure(name = name + "_cuda")
    highway_configure(name = name + "_highway")
    _source_tree_tensorflow(name = name + "_tensorflow")
    native.local_repository(
        name = name,
        path = path,
        repo_mapping = {
            # TensorFlow has a @local_config_cuda of its own.
            "@highway": "@%s_highway" % name,
            "@local_config_cuda": "@%s_cuda" % name,
            "@local_config_tensorflow": "@%s_tensorflow" % name,
        },
    )
