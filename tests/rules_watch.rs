//! A file of rules that changes while a gate runs. Real files and real time: each test waits for what must come, and for
//! what must not come it waits until something that came later is there.
#![cfg(feature = "watch")]

#[path = "support/gates.rs"]
mod gates;

use gates::{Seen, until};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};
use tollgate::{Event, Limiter, RulesWatch, Tollgate};

/// A folder of its own that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static LAST: AtomicU32 = AtomicU32::new(0);
        // ordering: Relaxed: a number that is taken once.
        let name = format!("tollgate-watch-{}-{}", std::process::id(), LAST.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn toml(limit: u64) -> String {
    format!("[rules.r]\nalgorithm = \"token_bucket\"\nlimit = {limit}\nper = \"1h\"\nmode = \"local\"\n")
}

/// Written aside and renamed, as it should be.
fn put(path: &Path, text: &str) {
    let aside = path.with_extension("new");
    fs::write(&aside, text).expect("written");
    fs::rename(&aside, path).expect("renamed");
}

struct World {
    gate: Tollgate,
    seen: Seen,
    limiter: Limiter,
}

impl World {
    fn watching(path: &Path) -> (World, RulesWatch) {
        let seen = Seen::default();
        let rules = tollgate::Rules::from_file(path).expect("a good file");
        let gate = Tollgate::builder().observer(seen.clone()).rules(rules).build_local().expect("fair rules");
        let watch = gate.watch_rules(path).expect("a good file");
        let limiter = gate.limiter("r").expect("its rule");
        (World { gate, seen, limiter }, watch)
    }

    fn limit(&self) -> u64 {
        self.limiter.check_now("key").limit()
    }

    fn refusals(&self) -> usize {
        self.seen.count(|event| matches!(event, Event::RulesRefused { .. }))
    }

    async fn limit_becomes(&self, limit: u64) {
        until(&format!("a limit of {limit}"), || self.limit() == limit).await;
    }
}

#[tokio::test]
async fn a_file_that_is_renamed_over_written_in_place_or_removed_and_made_anew_is_followed() {
    let folder = Folder::new();
    let path = folder.path("rules.toml");
    put(&path, &toml(1));
    let (world, _watch) = World::watching(&path);
    assert_eq!(world.limit(), 1);
    put(&path, &toml(2));
    world.limit_becomes(2).await;
    fs::write(&path, toml(3)).expect("written");
    world.limit_becomes(3).await;
    fs::remove_file(&path).expect("removed");
    until("the missing file is told", || world.refusals() > 0).await;
    assert_eq!(world.limit(), 3, "and changes nothing");
    fs::write(&path, toml(4)).expect("written");
    world.limit_becomes(4).await;
}

#[tokio::test]
async fn a_wrong_or_half_written_file_changes_nothing_and_is_told_once_with_its_place() {
    let folder = Folder::new();
    let path = folder.path("rules.toml");
    put(&path, &toml(1));
    let (world, _watch) = World::watching(&path);
    put(&path, &toml(0));
    until("a wrong number is told", || world.refusals() == 1).await;
    put(&path, "[rules.r]\nalgorithm = \"tok");
    until("half a file is told", || world.refusals() == 2).await;
    put(&path, "");
    until("an empty file is told", || world.refusals() == 3).await;
    put(&path, "# nothing\n");
    put(&path, &toml(5).replace("local", "exact"));
    until("what this gate cannot do is told", || world.refusals() >= 4).await;
    assert_eq!(world.limit(), 1);
    put(&path, &toml(6));
    world.limit_becomes(6).await;
    let told = world.seen.all();
    let place = format!("{}:3:9: rule \"r\": rate: ", path.display());
    let with_place = |event: &Event| matches!(event, Event::RulesRefused { message } if message.starts_with(&place));
    assert_eq!(told.iter().filter(|event| with_place(event)).count(), 1, "{told:?}");
}

#[tokio::test]
async fn what_a_gate_cannot_do_at_first_is_an_error_and_nothing_is_watched() {
    let folder = Folder::new();
    let path = folder.path("rules.toml");
    put(&path, &toml(1));
    let (world, watch) = World::watching(&path);
    drop(watch);
    for bad in [toml(0), toml(5).replace("local", "leased"), String::new()] {
        put(&path, &bad);
        assert!(world.gate.watch_rules(&path).is_err(), "{bad}");
    }
    assert!(world.gate.watch_rules(folder.path("none.toml")).is_err());
    assert_eq!(world.limit(), 1);
}

/// As Kubernetes mounts a config map: the file links into a folder that is a link, and that link is exchanged.
#[cfg(unix)]
#[tokio::test]
async fn a_link_that_is_turned_to_another_folder_is_followed() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let path = folder.path("rules.toml");
    let edition = |number: u64| {
        let data = folder.path(&format!("..{number}"));
        fs::create_dir(&data).expect("a folder");
        fs::write(data.join("rules.toml"), toml(number)).expect("written");
        symlink(&data, folder.path("..tmp")).expect("a link");
        fs::rename(folder.path("..tmp"), folder.path("..data")).expect("exchanged");
    };
    edition(1);
    symlink("..data/rules.toml", &path).expect("a link");
    let (world, _watch) = World::watching(&path);
    for number in 2..5 {
        edition(number);
        fs::remove_dir_all(folder.path(&format!("..{}", number - 1))).expect("the old one goes");
        world.limit_becomes(number).await;
    }
    assert_eq!(world.refusals(), 0, "{:?}", world.seen.all());
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_behind_a_link_is_followed_where_it_lies() {
    let (folder, far) = (Folder::new(), Folder::new());
    put(&far.path("real.toml"), &toml(1));
    let path = folder.path("rules.toml");
    std::os::unix::fs::symlink(far.path("real.toml"), &path).expect("a link");
    let (world, _watch) = World::watching(&path);
    put(&far.path("real.toml"), &toml(2));
    world.limit_becomes(2).await;
}

#[tokio::test]
async fn a_watch_that_is_dropped_ends_and_a_new_one_begins() {
    let folder = Folder::new();
    let (one, two) = (folder.path("one.toml"), folder.path("two.toml"));
    put(&one, &toml(1));
    put(&two, &toml(100));
    let (world, watch) = World::watching(&one);
    drop(watch);
    put(&one, &toml(2));
    let _watch = world.gate.watch_rules(&two).expect("a good file");
    world.limit_becomes(100).await;
    put(&two, &toml(101));
    world.limit_becomes(101).await;
    // The later change has come, and the earlier one has not.
    let replaced =
        world.seen.count(|event| matches!(event, Event::RulesReplaced { changed, .. } if !changed.is_empty()));
    assert_eq!(replaced, 2, "{:?}", world.seen.all());
}

#[tokio::test]
async fn a_file_that_says_the_same_as_before_changes_nothing_and_limiters_outlive_gate_and_watch() {
    let folder = Folder::new();
    let path = folder.path("rules.toml");
    put(&path, &toml(1));
    let (world, watch) = World::watching(&path);
    put(&path, &toml(1));
    put(&path, &toml(2));
    world.limit_becomes(2).await;
    let changed =
        world.seen.count(|event| matches!(event, Event::RulesReplaced { changed, .. } if !changed.is_empty()));
    assert_eq!(changed, 1, "{:?}", world.seen.all());
    let World { gate, limiter, .. } = world;
    drop(gate);
    assert_eq!(limiter.check_now("key").limit(), 2, "its limiters go on");
    drop(watch);
}
