# Functions that remove the processes and files of a user. clean.sh and slurm/epilog.sh source this file.
# shellcheck shell=sh

say() { printf 'regbot: %s\n' "$*" >&2; }

# Prints the id of a user, from a name or a number. Fails for root, for the calling user, and for an unknown user.
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

# Prints the process ids of user $1, without zombies, because they cannot be ended.
processes_of() {
  for entry in /proc/[0-9]*; do
    awk -v uid="$1" -v pid="${entry#/proc/}" '
      /^State:/ { dead = ($2 == "Z" || $2 == "X") }
      /^Uid:/ { if (($2 == uid || $3 == uid) && !dead) print pid }' "$entry/status" 2>/dev/null
  done
}

# Ends all processes of user $1. A process that forks all the time can escape a list of process ids. So if we may become
# the user, "kill -1" first makes the kernel end all processes of the user at once.
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

# Removes everything in folder $1, but not the folder. Other file systems are not changed, and links are not followed.
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

# Removes the files of user $1 in folder $2.
remove_owned() {
  [ -d "$2" ] || return 0
  find "$2" -xdev -mindepth 1 -depth -user "$1" -exec rm -rf {} + 2>/dev/null
  [ -z "$(find "$2" -xdev -mindepth 1 -user "$1" -print 2>/dev/null | head -n 1)" ] || {
    say "files of user $1 are left in $2"
    return 1
  }
}

# Removes the System V shared memory, semaphores and message queues of user $1, and the POSIX queues of this user.
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
