#!/usr/bin/env bash
# The demo: `examples/demo.sh PYTHON RANKS [options of train_gpt.py]`. `make demo` calls it.
# Two runs, as in real life: one trains on RANKS ranks and saves; another, of one rank, loads what the first one left.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 ranks=$2
shift 2

cores=$(nproc 2>/dev/null || echo 2)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
export KINETO_LOG_LEVEL=${KINETO_LOG_LEVEL:-99} # the profiler announces every start and stop
launch() { "$python" -m torch.distributed.run --standalone --nproc-per-node "$@"; }

start=$SECONDS
launch "$ranks" examples/train_gpt.py "$@"
launch 1 examples/reload_gpt.py "$@"
echo "The demo took $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s."
