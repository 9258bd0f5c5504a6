"""Highway from $HIGHWAY_SRC, Debian's package libhwy-dev, or its release on GitHub.

@highway has
  //:hwy           headers, and what detects the CPU at run time
  //:runtime       the shared library that a wheel must carry; empty where //:hwy is static
  //:license       Highway's license
Source is compiled in. Debian has only a shared library, which then travels with this package.
"""

_VERSION = "1.2.0"
_SHA256 = "7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343"

_SOURCE_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "hwy",
    srcs = glob(
        ["hwy/*.cc"],
        exclude = [
            "hwy/*_test.cc",
            "hwy/nanobenchmark.cc",
            "hwy/perf_counters.cc",
            "hwy/profiler.cc",
        ],
    ),
    hdrs = glob(["hwy/**/*.h"]),
    defines = ["HWY_STATIC_DEFINE"],
    includes = ["."],
)

filegroup(name = "runtime")

filegroup(
    name = "license",
    srcs = glob(["LICENSE", "LICENSE-*"]),
)
"""

_SYSTEM_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "hwy",
    hdrs = glob(["include/hwy/**/*.h"]),
    includes = ["include"],
    linkopts = ["-lhwy"],
)

filegroup(
    name = "runtime",
    srcs = ["libhwy.so.1"],
)

filegroup(
    name = "license",
    srcs = ["LICENSE"],
)
"""

_LIBRARY_FOLDERS = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]

def _system_library(ctx):
    for folder in _LIBRARY_FOLDERS:
        library = ctx.path(folder + "/libhwy.so.1")
        if library.exists and ctx.path(folder + "/libhwy.so").exists:
            return library
    return None

def _highway_configure_impl(ctx):
    source = ctx.os.environ.get("HIGHWAY_SRC", "")
    if source:
        for entry in ctx.path(source).readdir():
            if entry.basename == "hwy" or entry.basename.startswith("LICENSE"):
                ctx.symlink(entry, entry.basename)
        ctx.file("BUILD", _SOURCE_BUILD)
        return

    headers = ctx.path("/usr/include/hwy")
    library = _system_library(ctx)
    if headers.exists and library != None:
        ctx.symlink(headers, "include/hwy")
        ctx.symlink(library, "libhwy.so.1")
        ctx.symlink("/usr/share/doc/libhwy-dev/copyright", "LICENSE")
        ctx.file("BUILD", _SYSTEM_BUILD)
        return

    ctx.download_and_extract(
        url = "https://github.com/google/highway/archive/refs/tags/%s.tar.gz" % _VERSION,
        sha256 = _SHA256,
        stripPrefix = "highway-" + _VERSION,
    )
    ctx.file("BUILD", _SOURCE_BUILD)

highway_configure = repository_rule(
    implementation = _highway_configure_impl,
    configure = True,
    environ = ["HIGHWAY_SRC"],
    local = True,
)
