#!/bin/sh
# Sets constant clocks: clocks.sh set | reset | show. Run as root. All steps are optional; a step that fails says why.
#
#   REGBOT_GPU_MHZ   SM clock to lock on all GPUs, in the form of 'nvidia-smi -lgc' ('' locks none). Choose a clock that a
#                    GPU sustains under full load. regbot reports a GPU below half of its highest clock as faulty.
#   REGBOT_STRICT    1: the exit code is 1 if a step fails
set -u
failed=0
say() { printf 'regbot: %s\n' "$*" >&2; }
missed() { say "$*"; failed=1; }
gpu() { timeout 60 nvidia-smi "$@" >/dev/null 2>&1; }

governor() {
  if command -v cpupower >/dev/null && cpupower frequency-set -g "$1" >/dev/null 2>&1; then return; fi
  set_one=
  for file in "${REGBOT_SYS:-/sys}"/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do
    [ -e "$file" ] || continue
    set_one=1
    printf '%s\n' "$1" 2>/dev/null >"$file" || { missed "the governor of the processors is not $1: $file"; return; }
  done
  [ -n "$set_one" ] || missed "the governor of the processors cannot be set here: the machine, or its host, decides"
}

case ${1:-} in
  set)
    if ! command -v nvidia-smi >/dev/null; then
      say "no nvidia-smi: nothing is set of GPUs"
    else
      gpu -pm 1 || missed "persistence mode is not on: nvidia-smi -pm 1"
      if [ -n "${REGBOT_GPU_MHZ:-}" ]; then
        gpu -lgc "$REGBOT_GPU_MHZ" || missed "the SM clock is not locked: nvidia-smi -lgc $REGBOT_GPU_MHZ"
      else
        say "the SM clock is free; REGBOT_GPU_MHZ locks it"
      fi
      modes=$(timeout 60 nvidia-smi --query-gpu=ecc.mode.current --format=csv,noheader 2>/dev/null | sort -u | tr '\n' ' ')
      [ "$modes" = "Enabled " ] || say "ECC of the GPUs: ${modes:-unknown}; without it memory errors pass unseen"
    fi
    governor "${REGBOT_GOVERNOR:-performance}"
    ;;
  reset)
    if command -v nvidia-smi >/dev/null; then
      gpu -rgc || missed "the SM clock is still locked: nvidia-smi -rgc"
      gpu -rmc || say "the memory clock was not reset: nvidia-smi -rmc"
    fi
    ;;
  show)
    if command -v nvidia-smi >/dev/null; then
      timeout 60 nvidia-smi --format=csv \
        --query-gpu=index,persistence_mode,clocks.sm,clocks.max.sm,ecc.mode.current
    else
      echo "no nvidia-smi"
    fi
    cat "${REGBOT_SYS:-/sys}"/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor 2>/dev/null | sort | uniq -c
    ;;
  *)
    say "usage: clocks.sh set | reset | show"
    exit 2
    ;;
esac
[ "${REGBOT_STRICT:-0}" = 1 ] && exit "$failed"
exit 0
