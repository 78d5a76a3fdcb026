# Cleans up after a local PostgreSQL whose owner is gone. Arguments: the server's directory.
#
# Standard input is a pipe whose other end only the owner holds. Each line on it is the process group to kill at the end,
# or 0 for none (initdb has no pid file by which it could be found). The end of the input is the end of the owner, by
# whatever cause; after an orderly stop there is nothing left to do.
trap '' HUP INT TERM
dir=$1
group=0
while read -r line; do group=$line; done

# postmaster sets pid to the server's, if that process still is the server of this directory and not a later one.
postmaster() {
	read -r pid <"$dir/data/postmaster.pid" || return 1
	case $pid in '' | *[!0-9]*) return 1 ;; esac
	{ cat "/proc/$pid/cmdline" 2>/dev/null || ps -ww -o command= -p "$pid"; } | grep -qF -- "$dir/data"
}

# Fractions of a second are common, but not POSIX.
pause() { sleep 0.1 || sleep 1; }

[ "$group" -gt 1 ] && kill -s KILL -- "-$group"

tries=0
while postmaster && [ $tries -lt 150 ]; do
	[ $tries -eq 0 ] && kill -s QUIT "$pid"
	[ $tries -eq 100 ] && kill -s KILL "$pid"
	pause
	tries=$((tries + 1))
done

# The last processes of the server may still be writing: a folder can fill again while it is emptied.
tries=0
while [ -e "$dir" ] && [ $tries -lt 100 ]; do
	rm -rf -- "$dir" || pause
	tries=$((tries + 1))
done
