"""Prints tf_fused_lstm/_build_info.py: what a build was made from and with."""

import argparse
import pathlib
import subprocess

from metadata import read_project

_TEMPLATE = '''"""What this build was made from and with. Generated."""

VERSION = {version!r}
TF_VERSION = {tf_version!r}
CXX11_ABI = {cxx11_abi!r}
CUDA = {cuda!r}
CUDA_ARCHITECTURES = {cuda_architectures!r}
COMPILER = {compiler!r}
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pyproject", type=pathlib.Path, required=True)
    parser.add_argument("--tf_version", required=True)
    parser.add_argument("--cxx11_abi", type=int, required=True)
    parser.add_argument("--cuda", required=True, help="nvcc's version, empty without CUDA")
    parser.add_argument("--cuda_architectures", required=True, help="comma-separated, may be empty")
    parser.add_argument("--compiler", required=True, help="the C++ compiler's path")
    args = parser.parse_args()
    banner = subprocess.check_output([args.compiler, "--version"], text=True)
    info = _TEMPLATE.format(
        version=read_project(args.pyproject)["version"],
        tf_version=args.tf_version,
        cxx11_abi=args.cxx11_abi,
        cuda=args.cuda or None,
        cuda_architectures=tuple(filter(None, args.cuda_architectures.split(","))),
        compiler=banner.splitlines()[0],
    )
    print(info, end="")


if __name__ == "__main__":
    main()
