"""Finds nvcc: $CUDA_HOME/bin, then PATH, then /usr/local/cuda. Without one the build is CPU-only.

TFL_CUDA=0 builds without CUDA although there is an nvcc. TFL_CUDA_ARCHITECTURES, comma-separated
in any order ("80,90"), replaces the default: what the compiler can do of 60 to 90. The newest one
is also kept as PTX, for newer devices. Sources below a folder sm90/ are always compiled for sm_90a
alone.

@local_config_cuda has
  //:cudart_static  the CUDA runtime, static, with its headers
  //:defs.bzl       CUDA (whether there is an nvcc), NVCC, NVCC_VERSION, CUDA_ARCHITECTURES, if_cuda
"""

# The smallest set that covers every device from Pascal to Hopper with code tuned for it.
_ARCHITECTURES = ["60", "70", "75", "80", "86", "89", "90"]

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = {headers},
    includes = {includes},
)

cc_library(
    name = "cudart_static",
    srcs = {libraries},
    linkopts = {linkopts},
    deps = [":headers"],
)
"""

_DEFS = """
CUDA = {cuda}
NVCC = "{nvcc}"
NVCC_VERSION = "{version}"
CUDA_ARCHITECTURES = {architectures}

def if_cuda(then, otherwise = []):
    return then if CUDA else otherwise
"""

def _find_nvcc(ctx):
    """Returns the path of nvcc, or None."""
    if ctx.os.environ.get("TFL_CUDA", "") == "0":
        return None
    home = ctx.os.environ.get("CUDA_HOME", "")
    if home:
        nvcc = ctx.path(home + "/bin/nvcc")
        if not nvcc.exists:
            fail("CUDA_HOME is %s, but there is no %s." % (home, nvcc))
        return nvcc
    nvcc = ctx.which("nvcc")
    if nvcc != None:
        return nvcc
    nvcc = ctx.path("/usr/local/cuda/bin/nvcc")
    return nvcc if nvcc.exists else None

def _run(ctx, command):
    result = ctx.execute(command)
    if result.return_code != 0:
        fail("%s failed:\n%s" % (" ".join([str(c) for c in command]), result.stderr))
    return result.stdout

def _toolkit(ctx, nvcc):
    """Returns the root of nvcc's toolkit (a wrapper script on PATH may stand elsewhere)."""
    result = ctx.execute([nvcc, "--dryrun", "-c", "x.cu"])
    for line in result.stderr.split("\n"):
        if line.startswith("#$ TOP="):
            return str(ctx.path(line[len("#$ TOP="):].strip()).realpath)
    fail("cannot find the toolkit of %s:\n%s" % (nvcc, result.stderr))

def _version(ctx, nvcc):
    for word in _run(ctx, [nvcc, "--version"]).replace("\n", " ").split(" "):
        if word.startswith("V") and word.count(".") == 2:
            return word[1:]
    fail("cannot read the version of %s" % nvcc)

def _number(architecture):
    return int(architecture.rstrip("af"))

def _architectures(ctx, nvcc):
    supported = [line[len("sm_"):].strip() for line in _run(ctx, [nvcc, "--list-gpu-code"]).split("\n")]
    wanted = ctx.os.environ.get("TFL_CUDA_ARCHITECTURES", "")
    if not wanted:
        return [a for a in _ARCHITECTURES if a in supported]
    wanted = {a.strip(): None for a in wanted.split(",") if a.strip()}
    for a in wanted:
        if a not in supported:
            fail("TFL_CUDA_ARCHITECTURES names %s; this nvcc knows %s." % (a, ", ".join(supported)))
    return sorted(wanted, key = _number)

def _cuda_configure_impl(ctx):
    nvcc = _find_nvcc(ctx)
    if nvcc == None:
        # buildifier: disable=print
        print("CUDA: no nvcc in CUDA_HOME, PATH or /usr/local/cuda; building for the CPU only.")
        ctx.file("BUILD", _BUILD.format(headers = [], includes = [], libraries = [], linkopts = []))
        ctx.file("defs.bzl", _DEFS.format(
            architectures = [],
            cuda = False,
            nvcc = "",
            version = "",
        ))
        return

    version = _version(ctx, nvcc)
    if int(version.split(".")[0]) < 12:
        fail("%s is CUDA %s; 12.0 or newer is needed. TFL_CUDA=0 builds without it." % (nvcc, version))
    top = _toolkit(ctx, nvcc)
    folders = [ctx.path(top + f) for f in ["/lib64", "/lib", "/targets/x86_64-linux/lib"]]
    libraries = [f.get_child("libcudart_static.a") for f in folders]
    libraries = [f for f in libraries if f.exists]
    includes = [ctx.path(top + f) for f in ["/include", "/targets/x86_64-linux/include"]]
    includes = [f for f in includes if f.get_child("cuda_runtime.h").exists]
    if not libraries or not includes:
        fail("The toolkit of %s at %s has no libcudart_static.a or no cuda_runtime.h. " % (nvcc, top) +
             "TFL_CUDA=0 builds without it.")
    ctx.symlink(libraries[0], "libcudart_static.a")
    ctx.symlink(includes[0], "include")
    ctx.file("BUILD", _BUILD.format(
        headers = [":include"],
        includes = ["include"],
        libraries = ["libcudart_static.a"],
        linkopts = ["-ldl", "-lpthread", "-lrt"],
    ))
    ctx.file("defs.bzl", _DEFS.format(
        architectures = _architectures(ctx, nvcc),
        cuda = True,
        nvcc = str(nvcc),
        version = version,
    ))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = [
        "CUDA_HOME",
        "PATH",
        "TFL_CUDA",
        "TFL_CUDA_ARCHITECTURES",
    ],
    local = True,
)
