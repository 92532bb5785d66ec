//! The scripts: their text, and the hash under which a server keeps it.
//!
//! Nothing here remembers what a server has: it may forget at any time, and says so.

use redis::{Cmd, Script as Hashed, cmd};
use std::sync::OnceLock;

/// `sync_buckets-n`, whose parts lie in a folder of this name.
const SYNC_BUCKETS: &str = concat!(
    include_str!("lua/sync_buckets-n/1-words.lua"),
    include_str!("lua/sync_buckets-n/2-numbers.lua"),
    include_str!("lua/sync_buckets-n/3-windows.lua"),
    include_str!("lua/sync_buckets-n/4-apply.lua"),
);

/// A script and its hash.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Script {
        Script { text, hash: Hashed::new(text).get_hash().to_owned() }
    }

    /// Counts the members.
    pub(super) fn beat() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        SCRIPT.get_or_init(|| Script::new(include_str!("lua/beat-1.lua")))
    }

    /// Counts on a plain number.
    pub(super) fn count_plain() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        SCRIPT.get_or_init(|| Script::new(include_str!("lua/count_plain-1.lua")))
    }

    /// Applies a batch of questions.
    pub(super) fn sync_buckets() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        SCRIPT.get_or_init(|| Script::new(SYNC_BUCKETS))
    }

    /// The command that calls it by its hash.
    pub(super) fn by_hash(&self, call: &Call<'_>) -> Cmd {
        call.command("EVALSHA", &self.hash)
    }

    /// The command that brings its text along, after which the server has it.
    pub(super) fn by_text(&self, call: &Call<'_>) -> Cmd {
        call.command("EVAL", self.text)
    }
}

/// The words of one call. Every key that the script touches is among the keys.
#[derive(Debug, Default)]
pub(super) struct Call<'a> {
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Call<'_> {
    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(*key);
        }
        for arg in &self.args {
            command.arg(arg.as_slice());
        }
        command
    }
}
