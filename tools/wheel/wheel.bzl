"""Rules that gather a Python package with native libraries and pack it."""

load("@local_config_tensorflow//:defs.bzl", "PYTHON")

def _copy_here_impl(ctx):
    copies = []
    for source in ctx.files.srcs:
        copy = ctx.actions.declare_file(source.basename)
        ctx.actions.run(
            arguments = ["-fL", source.path, copy.path],
            executable = "/bin/cp",
            inputs = [source],
            mnemonic = "CopyHere",
            outputs = [copy],
        )
        copies.append(copy)
    files = depset(copies)
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(files = copies))]

copy_here = rule(
    doc = "Copies files into this package's folder.",
    implementation = _copy_here_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = True),
    },
)

def _wheel_impl(ctx):
    # The file's name depends on what the libraries need, so only its folder has a name here.
    output = ctx.actions.declare_directory(ctx.label.name)
    args = ctx.actions.args()
    args.add("--pyproject", ctx.file.pyproject)
    args.add("--output", output.path)
    args.add_all(ctx.files.readme, before_each = "--readme")
    args.add_all(ctx.files.license_files, before_each = "--license")
    args.add("--root", ctx.bin_dir.path)
    args.add_all(ctx.files.srcs)
    ctx.actions.run(
        arguments = [ctx.file._tool.path, args],
        executable = PYTHON,
        inputs = ctx.files.srcs + ctx.files.readme + ctx.files.license_files +
                 [ctx.file.pyproject, ctx.file._tool] + ctx.files._tool_modules,
        mnemonic = "Wheel",
        outputs = [output],
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles(files = [output]))]

wheel = rule(
    doc = "Packs files, at their paths from the workspace's root, into a folder with one wheel.",
    implementation = _wheel_impl,
    attrs = {
        "license_files": attr.label_list(allow_files = True),
        "pyproject": attr.label(
            doc = "Beside it lies tf_fused_lstm/_version.py, one of srcs.",
            allow_single_file = [".toml"],
            mandatory = True,
        ),
        "readme": attr.label_list(allow_files = [".md"]),
        "srcs": attr.label_list(allow_files = True),
        "_tool": attr.label(allow_single_file = True, default = "//tools/wheel:build_wheel.py"),
        "_tool_modules": attr.label_list(default = ["//tools/wheel:modules"]),
    },
)
