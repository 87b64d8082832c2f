#!/bin/sh
# Epilog of slurmd. It runs as root after a job. If the job had the whole node, it removes all processes and files in
# shared memory that the job left. If the node is then unhealthy, it is drained at once, before another job starts.
#
#   REGBOT_PARTITION   partition whose jobs have this epilog ('' for all partitions)
#   REGBOT_EXCLUSIVE   1: jobs have whole nodes, so all processes of the job's user belong to the job   (1)
#   REGBOT_LEAST_UID   smaller user ids are system users, whose processes are not ended                 (1000)
set -u
here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=runners/sweep.sh
. "$here/../sweep.sh"
conf=${REGBOT_SLURM_CONF:-/etc/regbot-slurm.conf}
if [ -r "$conf" ]; then
  set -a
  # shellcheck source=/dev/null
  . "$conf"
  set +a
fi
if [ -n "${REGBOT_PARTITION:-}" ] && [ "${SLURM_JOB_PARTITION:-}" != "$REGBOT_PARTITION" ]; then exit 0; fi

uid=${SLURM_JOB_UID:-0}
if [ "${REGBOT_EXCLUSIVE:-1}" = 1 ] && [ "$uid" -ge "${REGBOT_LEAST_UID:-1000}" ] && user=$(user_id "$uid"); then
  end_processes "$user"
  remove_owned "$user" "${REGBOT_SHM:-/dev/shm}"
  remove_ipc "$user"
fi
exec "$here/prolog.sh"
