# Sourced by build.sh here and in tests/helm: builds a set of Go programs once, into a cache outside
# the checkout, so that a clean checkout and a second test run do not pay for it again.
#
# A script that sources this file prints exactly one line on its standard output, the directory with
# the programs; everything else goes to standard error, so that `dir=$(build.sh)` works.

# Descriptor 3 is the real standard output; 1 becomes standard error.
exec 3>&1 1>&2

fail() {
    echo "$(basename "$(dirname "$0")")/build.sh: $*"
    exit 1
}

# use_ready_made VARIABLE PROGRAM...: if the variable names a directory, that directory is the answer.
# It is checked, because a program that is missing would otherwise show up as a puzzling test failure.
use_ready_made() {
    local variable=$1 directory=${!1-} program
    shift
    [ -n "$directory" ] || return 0
    for program in "$@"; do
        [ -x "$directory/$program" ] ||
            fail "$variable=$directory has no executable $program; name a directory with all of: $* (or unset $variable to build them)"
    done
    (cd "$directory" && pwd) >&3
    exit 0
}

require_tools() {
    command -v go >/dev/null ||
        fail "needs the Go toolchain (1.26 or newer) to build $1, and there is no 'go' on the PATH. Install Go, or set $2 to a directory with ready-made programs."
    command -v flock >/dev/null || fail "needs 'flock' (package util-linux), which is not on the PATH"
    # The toolchain that is installed is the one that is used: no download behind the user's back,
    # and no surprises from the caller's settings.
    export GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 GOOS= GOARCH= GOFLAGS='-trimpath -buildvcs=false -mod=readonly'
    go_version=$(cd / && go version) || fail "'go version' failed: repair the Go installation"
}

# show_progress WHAT [TOTAL]: reads what `go build -v` writes and shows how far it is: a line that changes on a
# terminal, one line every ten seconds elsewhere. What the compiler complains about is passed on.
show_progress() {
    local what=$1 total=${2:+ of at most $2} compiled=0 downloaded=0 told=$SECONDS line text
    while IFS= read -r line; do
        case $line in
        'go: downloading '*) downloaded=$((downloaded + 1)) ;;
        *' '* | '#'*)
            echo "$line"
            continue
            ;;
        *) compiled=$((compiled + 1)) ;;
        esac
        text="$what: $downloaded modules downloaded, $compiled$total packages compiled"
        if [ -t 1 ]; then
            printf '\r\033[2K%s' "$text"
        elif ((SECONDS - told >= 10)); then
            told=$SECONDS
            echo "$text"
        fi
    done
    if [ -t 1 ]; then printf '\r\033[2K'; fi
    [ -z "${text-}" ] || echo "$text"
}

# cached_build NAME KEY BUILD: prints CACHE/NAME-KEY and, where it does not exist yet, makes it by
# calling BUILD with an empty directory. The directory appears by one rename, complete or not at all.
# One lock for all such builds: two callers build once, and two linkers never fight for memory.
cached_build() {
    local cache=${MUSTER_CACHE:-${XDG_CACHE_HOME:-${HOME:?set MUSTER_CACHE or HOME, the place for the build cache}/.cache}/muster}
    local target=$cache/$1-$2 partial
    [[ $cache = /* ]] || fail "the cache $cache is no absolute path: set MUSTER_CACHE (or XDG_CACHE_HOME) to one"
    if [ ! -d "$target" ]; then
        mkdir -p "$cache"
        exec 9>"$cache/build.lock"
        if ! flock --nonblock 9; then
            echo "waiting for another build that holds $cache/build.lock"
            flock 9
        fi
        if [ ! -d "$target" ]; then
            rm -rf "$cache/$1-"*.partial # of builds that were killed; nobody else builds while we hold the lock
            partial=$target.partial
            mkdir "$partial"
            echo "building $1 into $target (minutes the first time)"
            SECONDS=0
            "$3" "$partial" || fail "the build of $1 failed, see above"
            echo "built $1 in $SECONDS s"
            mv "$partial" "$target"
        fi
        exec 9>&-
    fi
    echo "$target" >&3
}
