#!/bin/sh
# Checks whether this node is fit for a timed run. Prints one line for each reason against it. The exit code is 1 if there
# is a reason. It needs a POSIX sh and its utilities, and nvidia-smi if there are GPUs. It makes no measurement.
#
#   REGBOT_GPUS             least number of GPUs of this node                       ('' for any number)
#   REGBOT_EXCLUSIVE        1: no process may be on the GPUs when a job starts      (1)
#   REGBOT_SCRATCH          folder that must have free space                        (/tmp)
#   REGBOT_SCRATCH_MB       free space of REGBOT_SCRATCH, at least, in MB           (10240)
#   REGBOT_SHM              shared memory that must have free space                 (/dev/shm)
#   REGBOT_SHM_PCT          free space of REGBOT_SHM, at least, in percent          (20)
#   REGBOT_XID_HOURS        age limit of errors of the GPU driver, in hours         (24)
#   REGBOT_KERNEL_LOG       file that is read instead of dmesg
set -u
scratch=${REGBOT_SCRATCH:-/tmp}
shm=${REGBOT_SHM:-/dev/shm}
bad=0
wrong() {
  bad=1
  printf '%s\n' "$*"
}

# Errors that NVIDIA's catalogue attributes to the application are not counted. Xid 154 only recommends an action.
xids() {
  if [ -n "${REGBOT_KERNEL_LOG:-}" ]; then cat "$REGBOT_KERNEL_LOG"; else dmesg 2>/dev/null; fi |
    awk -v hours="${REGBOT_XID_HOURS:-24}" -v up="$(cut -d ' ' -f 1 "${REGBOT_UPTIME:-/proc/uptime}" 2>/dev/null || echo 0)" '
      BEGIN { split("8 11 13 31 32 37 43 45 68 69 109 154", known); for (i in known) harmless[known[i]] = 1 }
      /NVRM: Xid/ {
        at = $0; sub(/^[^[]*\[ */, "", at); sub(/\].*/, "", at)
        if (up - at > hours * 3600) next
        number = $0; sub(/.*NVRM: Xid[^)]*\): */, "", number); sub(/[^0-9].*/, "", number)
        if (number != "" && !(number in harmless) && !seen[number]++) list = list " " number
      }
      END { if (list != "") print "the GPU driver reported Xid" list }'
}

gpus() {
  if ! command -v nvidia-smi >/dev/null; then
    [ "${REGBOT_GPUS:-0}" -eq 0 ] || wrong "no nvidia-smi, and this node must have $REGBOT_GPUS GPUs"
    return
  fi
  listed=$(timeout 60 nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total \
    --format=csv,noheader,nounits 2>&1) || {
    wrong "the GPUs do not answer: $(printf '%s' "$listed" | head -n 1 | cut -c 1-200)"
    return
  }
  count=$(printf '%s\n' "$listed" | grep -c '^[0-9]')
  [ "$count" -ge "${REGBOT_GPUS:-0}" ] || wrong "$count GPUs answer, and this node must have $REGBOT_GPUS"
  ecc=$(printf '%s\n' "$listed" | awk -F ', *' '$2 ~ /^[0-9]+$/ && $2 > 0 { printf " GPU %s: %s", $1, $2 }')
  [ -z "$ecc" ] || wrong "uncorrected memory errors:$ecc"
  [ "${REGBOT_EXCLUSIVE:-1}" = 1 ] || return 0
  others=$(timeout 60 nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader 2>/dev/null |
    grep -v -e nvidia-cuda-mps -e nv-hostengine -e dcgm | grep '^[0-9]' | head -n 4 | tr '\n' ';')
  [ -z "$others" ] || wrong "processes of an earlier job are on the GPUs: $others"
}

room() {
  free=$(df -P -k "$scratch" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
  if [ -z "$free" ]; then
    wrong "$scratch cannot be seen"
  elif [ "$free" -lt "${REGBOT_SCRATCH_MB:-10240}" ]; then
    wrong "$scratch has $free MB left, ${REGBOT_SCRATCH_MB:-10240} are needed"
  elif ! probe=$(mktemp "$scratch/.regbot.XXXXXX" 2>/dev/null); then
    wrong "$scratch cannot be written to"
  else
    rm -f "$probe"
  fi
  used=$(df -P -k "$shm" 2>/dev/null | awk 'NR == 2 && $2 > 0 { print int(100 * $4 / $2) }')
  [ -z "$used" ] || [ "$used" -ge "${REGBOT_SHM_PCT:-20}" ] || wrong "$shm has $used% left, ${REGBOT_SHM_PCT:-20}% are needed"
}

found=$(xids)
[ -z "$found" ] || wrong "$found"
gpus
room
exit "$bad"
