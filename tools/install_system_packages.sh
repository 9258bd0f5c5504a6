#!/usr/bin/env bash
# Installs the Debian packages that a build needs and this machine lacks. Without root or apt it
# names what is missing and the command that gets it, and fails if the build could not go on.
set -euo pipefail

required=() # nothing else can bring these
optional=() # Bazel downloads these if it can

command -v g++ >/dev/null || required+=(g++)
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  required+=(python3 python3-venv)
fi
if [[ ! -x /usr/bin/bazel-4 ]]; then
  if { command -v bazelisk || command -v bazel || command -v npm; } >/dev/null; then
    optional+=(bazel-bootstrap)
  else
    required+=(bazel-bootstrap)
  fi
fi
[[ -n ${HIGHWAY_SRC-} || -e /usr/include/hwy/highway.h ]] || optional+=(libhwy-dev)
[[ -n ${GTEST_SRC-} || -e /usr/src/googletest ]] || optional+=(googletest)

missing=("${required[@]}" "${optional[@]}")
((${#missing[@]})) || exit 0

export DEBIAN_FRONTEND=noninteractive
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]}"
  if apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; then
    exit 0
  fi
fi

cat >&2 <<EOF
Missing: ${missing[*]}
On Debian and Ubuntu this gets them:
  sudo apt-get install -y ${missing[*]}
EOF
((${#required[@]})) && exit 1
echo "Bazel will try to download what it needs of them." >&2
