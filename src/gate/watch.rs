//! A file of rules that is read again whenever it changes.
//!
//! The system's notices only make it quick. What decides is a look at the file, at least one a second, so that neither a
//! notice that is lost nor a file system that gives none leaves the rules old.

use super::handle::{Inner, Tollgate};
use crate::{
    error::{Error, ErrorKind},
    observe::Event,
    rule::Rules,
};
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use std::{
    collections::HashSet,
    fmt, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{self, Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, SystemTime},
};

/// Between two looks without a notice.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A file that has changed is read once it has stayed the same for this long: who writes it may not be done.
const QUIET: Duration = Duration::from_millis(100);
/// A file that never stays the same is read after so many looks at it.
const QUIET_LOOKS_MAX: u32 = 50;

/// Watches a file of rules until it is dropped; see [`Tollgate::watch_rules`].
#[must_use = "the file is watched only while this lives"]
pub struct RulesWatch {
    signal: Arc<Signal>,
    path: PathBuf,
}

impl Tollgate {
    /// Reads a [file of rules](Rules::from_file), [replaces](Tollgate::replace_rules) the gate's rules with it, and does so
    /// again whenever the file changes, until the watch or the gate's last clone is dropped.
    ///
    /// A change is seen within some 100 ms, and within two seconds where the file system tells nobody of changes. A file that is
    /// wrong, half written or missing changes nothing and is told to the observer, once, as
    /// [`Event::RulesRefused`]. Whoever renames a new file over the old one, or turns a symbolic link to another file or
    /// folder (as Kubernetes does with config maps), is understood. A file that is written in place may be read between two
    /// writes that are more than 100 ms apart: write it aside, and rename it.
    ///
    /// # Errors
    /// As [`Rules::from_file`] and [`replace_rules`](Tollgate::replace_rules) for the file as it is now. Nothing is watched
    /// then, and the rules are as before.
    pub fn watch_rules(&self, path: impl AsRef<Path>) -> Result<RulesWatch, Error> {
        let cannot = |error: std::io::Error| {
            Error::new(ErrorKind::Config, format!("{}: cannot be watched: {error}", path.as_ref().display()))
        };
        let path = path::absolute(path.as_ref()).map_err(cannot)?;
        let signal = Arc::new(Signal::default());
        let eyes = Eyes::open(&path, &signal);
        // Watched first, so that no change falls between.
        let stamp = Stamp::of(&path);
        let rules = Rules::from_file(&path)?;
        self.replace_rules(rules.clone())?;
        if let Some(trouble) = &eyes.trouble {
            let message = format!("{}: no notice of changes ({trouble}); it is looked at each second", path.display());
            self.inner.parts.common.alarm.event(&Event::Warning { message });
        }
        let (gate, watch) = (Arc::downgrade(&self.inner), RulesWatch { signal: signal.clone(), path: path.clone() });
        let mut watcher = Watching { gate, signal, eyes, stamp, last: Ok(rules), path };
        let body = move || watcher.run();
        thread::Builder::new().name("tollgate-rules".into()).spawn(body).map_err(cannot)?;
        Ok(watch)
    }
}

impl Drop for RulesWatch {
    fn drop(&mut self) {
        self.signal.state().stop = true;
        self.signal.told.notify_all();
    }
}

impl fmt::Debug for RulesWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesWatch").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What wakes the watching thread.
#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    changed: bool,
    stop: bool,
}

impl Signal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.state().changed = true;
        self.told.notify_all();
    }

    /// Sleeps until there is a notice, or for this long; whether there was one. `None`: stop.
    fn wait(&self, span: Duration) -> Option<bool> {
        let sleeps = |state: &mut State| !state.changed && !state.stop;
        let waited = self.told.wait_timeout_while(self.state(), span, sleeps);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.stop).then(|| std::mem::take(&mut state.changed))
    }

    /// Sleeps for this long, notices or not. `false`: stop.
    fn pause(&self, span: Duration) -> bool {
        let waited = self.told.wait_timeout_while(self.state(), span, |state| !state.stop);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.stop
    }
}

/// By what a file is seen to be another one.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    /// Where it really lies.
    real: PathBuf,
    length: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// The file's, following links; `None` where there is none.
    fn of(path: &Path) -> Option<Stamp> {
        let about = fs::metadata(path).ok()?;
        Some(Stamp { real: fs::canonicalize(path).ok()?, length: about.len(), modified: about.modified().ok() })
    }
}

/// The system's notices about the folders in which a change of the file shows.
struct Eyes {
    watcher: Option<RecommendedWatcher>,
    folders: HashSet<PathBuf>,
    /// Why there are none.
    trouble: Option<String>,
}

impl Eyes {
    fn open(path: &Path, signal: &Arc<Signal>) -> Eyes {
        let told = signal.clone();
        let watcher =
            notify::recommended_watcher(move |notice: notify::Result<notify::Event>| match notice.map(|n| n.kind) {
                Ok(EventKind::Access(AccessKind::Close(AccessMode::Write))) => told.changed(),
                // Our own reading is one, too.
                Ok(EventKind::Access(_)) => {}
                _ => told.changed(),
            });
        let mut eyes = match watcher {
            Ok(watcher) => Eyes { watcher: Some(watcher), folders: HashSet::new(), trouble: None },
            Err(error) => Eyes { watcher: None, folders: HashSet::new(), trouble: Some(error.to_string()) },
        };
        eyes.turn(path);
        eyes
    }

    /// Looks at the folder of the file and, where that is a link, at the folder that it leads to. Folders and not the
    /// file: a file that is renamed over it is another file.
    fn turn(&mut self, path: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        let real = fs::canonicalize(path).ok();
        let folders: HashSet<PathBuf> = [Some(path), real.as_deref()]
            .into_iter()
            .flatten()
            .filter_map(Path::parent)
            .map(Path::to_path_buf)
            .collect();
        for gone in self.folders.difference(&folders) {
            _ = watcher.unwatch(gone); // the folder itself may be gone
        }
        self.folders.retain(|folder| folders.contains(folder));
        for new in folders {
            if self.folders.contains(&new) {
                continue;
            }
            match watcher.watch(&new, RecursiveMode::NonRecursive) {
                Ok(()) => _ = self.folders.insert(new),
                Err(error) => self.trouble = Some(error.to_string()),
            }
        }
    }
}

/// What the thread owns.
struct Watching {
    gate: Weak<Inner>,
    signal: Arc<Signal>,
    eyes: Eyes,
    path: PathBuf,
    stamp: Option<Stamp>,
    /// What the file said when it was last read, or what was wrong with it.
    last: Result<Rules, String>,
}

impl Watching {
    fn run(&mut self) {
        while let Some(told) = self.signal.wait(LOOK_EVERY) {
            if self.gate.strong_count() == 0 {
                return;
            }
            let stamp = Stamp::of(&self.path);
            if !told && stamp == self.stamp {
                continue;
            }
            self.stamp = stamp;
            if !self.settle() {
                return;
            }
            self.eyes.turn(&self.path);
            self.read();
        }
    }

    /// Waits until the file stays the same. `false`: stop.
    fn settle(&mut self) -> bool {
        for _ in 0..QUIET_LOOKS_MAX {
            if !self.signal.pause(QUIET) {
                return false;
            }
            let stamp = Stamp::of(&self.path);
            if stamp == self.stamp {
                break;
            }
            self.stamp = stamp;
        }
        true
    }

    fn read(&mut self) {
        let read = Rules::from_file(&self.path).map_err(|error| error.to_string());
        if read == self.last {
            return;
        }
        self.last = read;
        let Some(inner) = self.gate.upgrade() else { return };
        let gate = Tollgate { inner };
        // The observer is somebody else's code: its panic must not end the watching.
        _ = catch_unwind(AssertUnwindSafe(|| match &self.last {
            // What is wrong with them is told by the replacement itself.
            Ok(rules) => _ = gate.replace_rules(rules.clone()),
            Err(message) => gate.inner.parts.common.alarm.event(&Event::RulesRefused { message: message.clone() }),
        }));
    }
}
