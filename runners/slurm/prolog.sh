#!/bin/sh
# Prolog of slurmd. It runs as root before a job starts on this node, and refuses the job if the node is unhealthy. With
# exit code 1, Slurm drains the node and requeues the job. This script sets the reason first, because Slurm's own reason
# would be 'Prolog error'. It can also run without a job, as HealthCheckProgram; it then drains an unhealthy node.
#
#   REGBOT_PARTITION   partition whose jobs and nodes are checked ('' for all partitions)
#   /etc/regbot-slurm.conf   settings for health.sh, if this file exists
set -u
here=$(dirname -- "$(readlink -f -- "$0")")
conf=${REGBOT_SLURM_CONF:-/etc/regbot-slurm.conf}
if [ -r "$conf" ]; then
  set -a
  # shellcheck source=/dev/null
  . "$conf"
  set +a
fi
node=${SLURMD_NODENAME:-$(uname -n | cut -d . -f 1)}
ours() {
  if [ -z "${REGBOT_PARTITION:-}" ]; then return 0; fi
  if [ -n "${SLURM_JOB_ID:-}" ]; then [ "${SLURM_JOB_PARTITION:-}" = "$REGBOT_PARTITION" ]; return; fi
  timeout 20 scontrol --oneliner show node "$node" | tr ' ' '\n' | sed -n 's/^Partitions=//p' | tr , '\n' |
    grep -Fqx -e "$REGBOT_PARTITION"
}
ours || exit 0

reasons=$("$here/health.sh") && exit 0
reason=$(printf '%s' "$reasons" | tr '\n' ';' | tr -d "\"'\`\$\\\\" | cut -c 1-500)
[ -n "$reason" ] || reason="the health check itself failed"
echo "regbot: $node refuses ${SLURM_JOB_ID:+job }${SLURM_JOB_ID:-all jobs}: $reason" >&2
logger -t regbot "refused ${SLURM_JOB_ID:+job }${SLURM_JOB_ID:-all jobs}: $reason" 2>/dev/null
timeout 20 scontrol update "NodeName=$node" State=DRAIN "Reason=regbot: $reason" >&2 ||
  echo "regbot: the reason could not be set; Slurm will call it a prolog error" >&2
exit 1
