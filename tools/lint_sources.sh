#!/usr/bin/env bash
# C++ and Starlark style of the tracked files, with the tools that this machine has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Current buildifier wants rules_cc and rules_python loaded; Bazel 4 has them built in.
warnings=-native-cc-common,-native-cc-info,-native-cc-library,-native-cc-binary,-native-cc-test
warnings+=,-native-py,-unnamed-macro

if command -v clang-format >/dev/null; then
  git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format --dry-run --Werror
else
  echo "clang-format is not installed; C++ style not checked" >&2
fi
if command -v buildifier >/dev/null; then
  git ls-files -z '*BUILD' 'WORKSPACE' '*.bzl' |
    xargs -0 buildifier -mode=check -lint=warn -warnings="$warnings"
else
  echo "buildifier is not installed; Starlark style not checked" >&2
fi
