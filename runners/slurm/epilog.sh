#!/bin/sh
# Epilog of slurmd, as root, after a job: nothing of it stays on a node that it had for itself, and a node that it left
# unwell is drained now, not when the next job meets it.
#
#   REGBOT_PARTITION   only after jobs of this partition ('' after all)
#   REGBOT_EXCLUSIVE   1: jobs have whole nodes, so that all processes of the job's user are the job's (1)
#   REGBOT_LEAST_UID   users below this are the system's, and left alone                                (1000)
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
