"""cuda_library: .cu files compiled side by side with nvcc, for deps of C++ rules."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_config_cuda//:defs.bzl", "CUDA", "CUDA_ARCHITECTURES", "NVCC")

def _gencode(source):
    """Returns the flags that name the devices to compile `source` for."""
    if "/sm90/" in source.path or source.basename.endswith("_sm90.cu"):
        return ["-gencode=arch=compute_90a,code=sm_90a"]
    flags = ["-gencode=arch=compute_%s,code=sm_%s" % (a, a) for a in CUDA_ARCHITECTURES]
    newest = CUDA_ARCHITECTURES[-1]
    return flags + ["-gencode=arch=compute_%s,code=compute_%s" % (newest, newest)]

def _compile(ctx, source, headers, context, cc_toolchain):
    """Declares the action that compiles one file, and returns its object."""
    folder = "_objs/%s/%s" % (ctx.label.name, source.short_path.replace("../", "external/"))
    output = ctx.actions.declare_file(folder + "/kernels.pic.o")
    args = ctx.actions.args()

    # Kept intermediate files have names of their own; those of temporary files, which differ from
    # run to run, would end up in the object. So would the current folder, with -lineinfo.
    args.add("--keep")
    args.add("--keep-dir", output.dirname)
    args.add("-c", source)
    args.add("-o", output)
    args.add("-ccbin", cc_toolchain.compiler_executable)
    args.add_all([
        "-std=c++17",
        "-O3",
        "--expt-relaxed-constexpr",
        "-Xcompiler=-fPIC,-fvisibility=hidden",
    ])
    args.add_all(_gencode(source))
    args.add_all(ctx.attr.copts)
    args.add_all(context.defines, before_each = "-D")
    args.add_all(context.includes, before_each = "-I")
    args.add_all(context.quote_includes, before_each = "-I")
    args.add_all(context.system_includes, before_each = "-isystem")
    ctx.actions.run(
        arguments = [args],
        executable = NVCC,
        inputs = depset([source] + headers, transitive = [context.headers, cc_toolchain.all_files]),
        mnemonic = "CudaCompile",
        outputs = [output],
        progress_message = "Compiling CUDA %s" % source.short_path,
        use_default_shell_env = True,
    )
    return output

def _cuda_library_impl(ctx):
    cc_toolchain = find_cpp_toolchain(ctx)
    headers = ctx.files.hdrs
    dependencies = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    if not CUDA:
        return [dependencies]

    own = CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset(headers),
        quote_includes = depset([".", ctx.bin_dir.path]),
    ))
    context = cc_common.merge_cc_infos(cc_infos = [own, dependencies]).compilation_context
    features = cc_common.configure_features(
        cc_toolchain = cc_toolchain,
        ctx = ctx,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    objects = [_compile(ctx, s, headers, context, cc_toolchain) for s in ctx.files.srcs]
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        cc_toolchain = cc_toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        disallow_dynamic_library = True,
        feature_configuration = features,
        linking_contexts = [dependencies.linking_context],
        name = ctx.label.name,
    )
    return [
        DefaultInfo(files = depset(objects)),
        CcInfo(compilation_context = context, linking_context = linking_context),
    ]

_cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "copts": attr.string_list(doc = "More flags for nvcc."),
        "deps": attr.label_list(doc = "C++ libraries.", providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh", ".inc"], doc = "Headers, also for dependents."),
        "srcs": attr.label_list(allow_files = [".cu"], doc = "One nvcc action each."),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, deps = [], **kwargs):
    """A C++ library of CUDA sources; without nvcc it holds nothing but its deps.

    Args:
      name: the target's name.
      deps: C++ libraries; the static CUDA runtime is added.
      **kwargs: srcs (.cu), hdrs, copts and what every rule takes.
    """
    _cuda_library(
        name = name,
        deps = deps + ["@local_config_cuda//:cudart_static"],
        **kwargs
    )
