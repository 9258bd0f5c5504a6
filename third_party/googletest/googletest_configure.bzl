"""GoogleTest from $GTEST_SRC, Debian's package googletest, or its release on GitHub."""

_VERSION = "1.14.0"
_SHA256 = "8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7"

_BUILD = """
cc_library(
    name = "gtest_main",
    testonly = 1,
    srcs = [
        "googletest/src/gtest-all.cc",
        "googletest/src/gtest_main.cc",
    ],
    hdrs = glob([
        "googletest/include/**/*.h",
        "googletest/src/*.h",
    ]),
    includes = [
        "googletest",
        "googletest/include",
    ],
    linkopts = ["-lpthread"],
    textual_hdrs = glob(["googletest/src/*.cc"]),
    visibility = ["//visibility:public"],
)
"""

def _googletest_configure_impl(ctx):
    source = ctx.path(ctx.os.environ.get("GTEST_SRC", "") or "/usr/src/googletest")
    if source.exists:
        ctx.symlink(source.get_child("googletest"), "googletest")
    else:
        ctx.download_and_extract(
            url = "https://github.com/google/googletest/archive/refs/tags/v%s.tar.gz" % _VERSION,
            sha256 = _SHA256,
            stripPrefix = "googletest-" + _VERSION,
        )
    ctx.file("BUILD", _BUILD)

googletest_configure = repository_rule(
    implementation = _googletest_configure_impl,
    configure = True,
    environ = ["GTEST_SRC"],
    local = True,
)
