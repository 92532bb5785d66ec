#!/usr/bin/env bash
# Runs every test there is: the loom models, the examples in the docs, unit and integration tests.
#
# Installs what the tests need when it is missing (Debian and its kin). A part that cannot be had fails the run; nothing
# is skipped. The last lines are the test runner's own summary. Needs Rust and a C compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

say() { printf '\n-- %s\n' "$*"; }
die() { printf 'tests/run.sh: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        # Without a terminal sudo could only wait for a password that never comes.
        sudo -n true 2>/dev/null || { : </dev/tty; } 2>/dev/null || die "cannot become root to install packages: sudo asks for a password"
        sudo "$@"
    else
        die "not root and no sudo: cannot install packages"
    fi
}

updated=no
# need COMMAND PACKAGE: the command, from the package when it is missing.
need() {
    command -v "$1" >/dev/null && return
    command -v apt-get >/dev/null || die "$1 is missing and there is no apt-get: install $2 (or what provides $1)"
    say "installing $2"
    if [ "$updated" = no ]; then
        as_root apt-get update
        updated=yes
    fi
    # RUNLEVEL=1: the package must not start a service of its own on this machine.
    as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends "$2"
    command -v "$1" >/dev/null || die "$2 is installed, but there is still no $1"
}

command -v cargo >/dev/null || die "cargo is missing: install Rust, https://rustup.rs"
command -v cc >/dev/null || die "a C compiler (cc) is missing"
need redis-server redis-server
need redis-cli redis-tools

target=${CARGO_TARGET_DIR:-target}

say "loom models"
# In a folder of their own, since the flag rebuilds everything. The bound on forced thread switches keeps the larger
# models to minutes; a larger number explores more.
models=$(mktemp)
trap 'rm -f "$models"' EXIT
CARGO_TARGET_DIR="$target/loom" RUSTFLAGS="${RUSTFLAGS:-} --cfg tollgate_loom" \
    LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}" CARGO_PROFILE_RELEASE_DEBUG=none \
    cargo test --release --no-default-features --lib -- models:: 2>&1 | tee "$models"
grep -q '^test .*models::.* ok$' "$models" || die "no loom model was run"

say "examples in the docs"
cargo test --all-features --doc

say "unit and integration tests"
# Some of them start the examples as processes.
cargo build --all-features --examples
cargo test --all-features --lib --tests
