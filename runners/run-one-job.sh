#!/bin/sh
# Runs one job on a self-hosted GitHub runner that is removed after this job.
#
#   run-one-job.sh prepare   as root: check the health of the node, then get a just-in-time configuration from the
#                            helper. The runner's user never has the credentials of the helper.
#   run-one-job.sh run       as the runner's user: run exactly one job with a fresh copy of the runner
#
#   REGBOT_JIT_HELPER     command that prints the encoded configuration (POST .../actions/runners/generate-jitconfig)
#   REGBOT_RUNNER_HOME    folder of the unpacked runner, which only root may change   (/opt/actions-runner)
#   REGBOT_RUNNER_WORK    folder in which the job works                                (/var/lib/regbot-runner/work)
#   REGBOT_RUNNER_RUN     folder of the configuration and the lock                     (/run/regbot-runner)
set -u
here=$(dirname -- "$(readlink -f -- "$0")")
run=${REGBOT_RUNNER_RUN:-/run/regbot-runner}
work=${REGBOT_RUNNER_WORK:-/var/lib/regbot-runner/work}
user=${REGBOT_RUNNER_USER:-regbot-runner}
say() { printf 'regbot: %s\n' "$*" >&2; }

# Runs a command under a lock, so that only one job runs at a time. Child processes do not inherit the lock, because a
# process that outlives its job must not keep the lock.
alone() {
  flock --nonblock --close --conflict-exit-code 75 "$run/lock" "$@"
  code=$?
  [ "$code" -ne 75 ] || say "another job runs on this node: $run/lock is held"
  return "$code"
}

prepare() {
  "$here/slurm/health.sh" || { say "this node takes no job before that is mended"; return 1; }
  [ -n "${REGBOT_JIT_HELPER:-}" ] || { say "REGBOT_JIT_HELPER is not set; see runners/README.md"; return 1; }
  umask 077
  # shellcheck disable=SC2086 # a command with its arguments
  config=$(timeout 120 $REGBOT_JIT_HELPER) && [ -n "$config" ] || { say "$REGBOT_JIT_HELPER gave no configuration"; return 1; }
  rm -f "$run/jitconfig"
  printf '%s\n' "$config" >"$run/jitconfig" && chown "$user" "$run/jitconfig"
}

job() {
  config=$(cat "$run/jitconfig") || { say "there is no configuration: run-one-job.sh prepare comes first"; return 1; }
  rm -f "$run/jitconfig" 2>/dev/null || : >"$run/jitconfig"
  cp -R "${REGBOT_RUNNER_HOME:-/opt/actions-runner}" "$work/runner" || return 1
  cd "$work/runner" || return 1
  ./run.sh --jitconfig "$config"
}

case ${1:-} in
  prepare) prepare ;;
  run) alone "$0" job ;;
  job) job ;;
  *) say "usage: run-one-job.sh prepare | run"; exit 2 ;;
esac
