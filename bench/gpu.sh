#!/usr/bin/env bash
# Everything that only a GPU can tell, in eight minutes and without a network: docs/gpu.md says what it needs.
#
#   bench/gpu.sh [PART …] [--dry-run]     the parts that are named, or all; --dry-run: on the CPU, with tiny shapes
#   bench/gpu.sh carry [PYTHON_VERSION]   fetches the one package that a GPU machine may lack into .carried
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = carry ]; then
  if ! command -v uv >/dev/null && [ ! -x .venv/bin/uv ]; then
    echo "bench/gpu.sh carry: needs uv; \`make venv\` installs it" >&2
    exit 2
  fi
  PATH="$PATH:$PWD/.venv/bin" uv pip install --quiet --target .carried --python-version "${2:-3.12}" \
    --python-platform x86_64-manylinux_2_28 --only-binary :all: --no-deps "$(grep -oE '^msgspec==[^ ;\\]+' requirements/runtime.txt)"
  echo "bench/gpu.sh: .carried holds msgspec for Python ${2:-3.12} on x86-64; take the folder along"
  exit 0
fi

python=${PYTHON:-}
if [ -z "$python" ]; then
  python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "bench/gpu.sh: needs Python 3.11 or later, which $python is not; PYTHON=/path/to/python chooses another" >&2
  exit 2
fi
# What the machine has comes first; what was carried helps out.
export PYTHONPATH="$PWD:$PWD/runtime:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import msgspec' 2>/dev/null; then
  export PYTHONPATH="$PYTHONPATH:$PWD/.carried"
fi
for module in torch triton numpy safetensors msgspec; do
  if ! "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)"; then
    echo "bench/gpu.sh: $("$python" -c 'import sys; print(sys.executable)') has no $module; docs/gpu.md says what is needed" >&2
    exit 2
  fi
done
# Triton compiles into a folder, which a home that is not there or read-only cannot hold.
cache=${TRITON_CACHE_DIR:-${TRITON_HOME:-${HOME:-/nowhere}}/.triton/cache}
if ! { mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null; then
  TRITON_CACHE_DIR=$(mktemp -d -t octavo-triton-XXXXXX)
  export TRITON_CACHE_DIR
  echo "bench/gpu.sh: $cache cannot be written; Triton compiles into $TRITON_CACHE_DIR" >&2
fi
exec "$python" -m bench.gpu "$@"
