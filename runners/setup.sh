#!/bin/sh
# Sets up a node as a self-hosted runner: users, folders and service. Run as root. It can be repeated, and changes only
# what is missing or different.
#
#   setup.sh [--root DIR]     --root DIR: set up the image that is mounted at DIR
#
# The files have three owners, so that a job can change only its own work:
#   root            /opt/regbot (regbot and these scripts), /opt/actions-runner, /etc/regbot-runner.conf
#   regbot          /var/lib/regbot: results
#   regbot-runner   /var/lib/regbot-runner/work (current job) and /var/lib/regbot-runner/cache (clones, earlier pairs)
set -eu
root=
case ${1:-} in
  '') ;;
  --root) root=${2:?--root DIR} ;;
  *) echo "usage: setup.sh [--root DIR]" >&2; exit 2 ;;
esac
here=$(dirname -- "$(readlink -f -- "$0")")
[ "$(id -u)" = 0 ] || { echo "regbot: setup.sh makes users and folders; run it as root" >&2; exit 1; }
did() { printf 'regbot: %s\n' "$*"; }

account() {
  grep -q "^$1:" "$root/etc/passwd" && return
  useradd ${root:+--prefix "$root"} --system --user-group --no-create-home --home-dir "$2" \
    --shell /usr/sbin/nologin "$1"
  did "user $1"
}
number() { awk -F: -v name="$1" -v column="$2" '$1 == name { print $column }' "$root/etc/passwd"; }
folder() { # PATH MODE OWNER
  want="$(number "$3" 3):$(number "$3" 4) $2"
  [ -d "$root$1" ] && [ "$(stat -c '%u:%g %a' "$root$1")" = "$want" ] && return
  mkdir -p "$root$1"
  chown "$(number "$3" 3):$(number "$3" 4)" "$root$1"
  chmod "$2" "$root$1"
  did "folder $1, $3, mode $2"
}
place() { # SOURCE TARGET MODE
  [ -f "$root$2" ] && cmp -s "$1" "$root$2" && [ "$(stat -c '%u %a' "$root$2")" = "0 $3" ] && return
  install -D -o root -g root -m "$3" "$1" "$root$2"
  did "file $2"
}

account regbot /var/lib/regbot
account regbot-runner /var/lib/regbot-runner
folder /opt/regbot 755 root
folder /opt/actions-runner 755 root
folder /var/lib/regbot 755 regbot
folder /var/lib/regbot/results 750 regbot
folder /var/lib/regbot-runner 755 root
folder /var/lib/regbot-runner/work 700 regbot-runner
folder /var/lib/regbot-runner/cache 700 regbot-runner
for script in setup.sh sweep.sh clean.sh clocks.sh run-one-job.sh slurm/health.sh slurm/prolog.sh slurm/epilog.sh; do
  place "$here/$script" "/opt/regbot/runners/$script" 755
done
place "$here/regbot-runner.service" /etc/systemd/system/regbot-runner.service 644
if [ ! -e "$root/etc/regbot-runner.conf" ]; then
  install -D -o root -g root -m 600 /dev/stdin "$root/etc/regbot-runner.conf" <<'CONF'
# Read by the service regbot-runner. Holds no secret: the helper keeps its own where only root reads it.
REGBOT_JIT_HELPER=
REGBOT_GPU_MHZ=
REGBOT_GPUS=
CONF
  did "file /etc/regbot-runner.conf: set REGBOT_JIT_HELPER there"
fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  did "start it with: systemctl enable --now regbot-runner"
fi
