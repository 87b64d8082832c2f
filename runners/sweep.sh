# Functions that leave nothing of a user behind. Sourced by clean.sh and slurm/epilog.sh; does nothing by itself.
# shellcheck shell=sh

say() { printf 'regbot: %s\n' "$*" >&2; }

# The user id of a name or a number. Fails for root, for ourselves, and for what is no user.
user_id() {
  case $1 in
    '' | *[!0-9]*) found=$(id -u "$1" 2>/dev/null) || { say "there is no user '$1'"; return 1; } ;;
    *) found=$1 ;;
  esac
  if [ "$found" -eq 0 ] || [ "$found" -eq "$(id -u)" ]; then
    say "the processes of user $found are not ended: that is root, or who runs this"
    return 1
  fi
  printf '%s\n' "$found"
}

# Process ids of user $1, zombies left out: nobody can end those.
processes_of() {
  for entry in /proc/[0-9]*; do
    awk -v uid="$1" -v pid="${entry#/proc/}" '
      /^State:/ { dead = ($2 == "Z" || $2 == "X") }
      /^Uid:/ { if (($2 == uid || $3 == uid) && !dead) print pid }' "$entry/status" 2>/dev/null
  done
}

# End all processes of user $1. One that forks all the time is never seen by a list, so that the kernel ends all of them
# at one stroke first, where we may become that user.
end_processes() {
  tries=0
  while left=$(processes_of "$1") && [ -n "$left" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 50 ]; then
      # shellcheck disable=SC2086 # one line
      say "processes of user $1 could not be ended:" $left
      return 1
    fi
    if command -v setpriv >/dev/null; then
      setpriv --reuid="$1" --clear-groups sh -c 'kill -9 -1' 2>/dev/null
    fi
    for pid in $left; do kill -9 "$pid" 2>/dev/null; done
    sleep 0.1
  done
}

# Remove everything below folder $1, not the folder; other file systems are left alone, links are not followed.
empty() {
  case $1 in
    /?*) ;;
    *) say "'$1' is not emptied: it is no folder below /"; return 1 ;;
  esac
  [ -d "$1" ] || return 0
  [ ! -L "$1" ] || { say "$1 is not emptied: it is a link"; return 1; }
  find "$1" -xdev -mindepth 1 -delete 2>/dev/null
  [ -z "$(find "$1" -xdev -mindepth 1 -print 2>/dev/null | head -n 1)" ] || { say "$1 could not be emptied"; return 1; }
}

# Remove what user $1 owns below folder $2.
remove_owned() {
  [ -d "$2" ] || return 0
  find "$2" -xdev -mindepth 1 -depth -user "$1" -exec rm -rf {} + 2>/dev/null
  [ -z "$(find "$2" -xdev -mindepth 1 -user "$1" -print 2>/dev/null | head -n 1)" ] || {
    say "files of user $1 are left in $2"
    return 1
  }
}

# Remove the System V shared memory, semaphores and message queues of user $1, and his POSIX queues.
remove_ipc() {
  while read -r kind file column; do
    [ -r "/proc/sysvipc/$file" ] || continue
    awk -v uid="$1" -v column="$column" 'NR > 1 && $column == uid { print $2 }' "/proc/sysvipc/$file" |
      while read -r number; do ipcrm "-$kind" "$number" 2>/dev/null || say "ipcrm -$kind $number failed"; done
  done <<LIST
m shm 8
q msg 8
s sem 5
LIST
  remove_owned "$1" /dev/mqueue
}
