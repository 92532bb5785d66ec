//! What docs/algorithms.md says of its plots is what they show.
#![allow(missing_docs, dead_code, clippy::unwrap_used)]

#[path = "../examples/algorithms.rs"]
mod example;

use example::Course;
use std::{fs, path::Path};

fn of<'c>(courses: &'c [Course], name: &str) -> &'c Course {
    courses.iter().find(|course| course.name == name).unwrap()
}

#[test]
fn the_plots_show_what_the_page_says_of_each_algorithm() {
    let courses = example::courses(1).unwrap();
    // The same requests for all of them.
    assert!(courses.iter().all(|course| course.offered == courses[0].offered));

    let peak = |name| of(&courses, name).peak();
    assert!((170..=200).contains(&peak("fixed window")), "twice the limit around an edge: {}", peak("fixed window"));
    assert!(peak("sliding log") <= 100, "never more than the limit: {}", peak("sliding log"));
    assert!(peak("sliding counter") < 200, "less than twice: {}", peak("sliding counter"));
    assert!(peak("leaky queue") <= 101, "no burst: {}", peak("leaky queue"));
    assert!((101..=200).contains(&peak("token bucket")), "the burst and a second's rate: {}", peak("token bucket"));

    let admitted = |name| of(&courses, name).admitted();
    assert_eq!(admitted("fixed window"), 600, "all of six windows");
    assert!(courses.iter().all(|course| course.admitted() >= admitted("sliding log")), "the log is the strictest");
    assert!(admitted("token bucket").abs_diff(admitted("leaky bucket")) <= 5, "two views of one machine");
}

#[test]
fn the_plots_of_the_page_are_those_of_the_example() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("algorithms");
    example::draw(&example::courses(1).unwrap(), &out).unwrap();
    let page = fs::read_to_string("docs/algorithms.md").unwrap();
    for name in ["admitted.svg", "last-second.svg"] {
        assert!(page.contains(&format!("(img/{name})")), "{name} is on the page");
        let (new, kept) = (out.join(name), Path::new("docs/img").join(name));
        let (new, kept) = (fs::read_to_string(new).unwrap(), fs::read_to_string(kept).unwrap());
        // Not byte for byte: how much a lease is worth may change by a token without making the page wrong.
        assert_eq!(words(&new), words(&kept), "{name}: run the example with --out docs/img");
        assert!(new.len().abs_diff(kept.len()) < new.len() / 4, "{name}: run the example with --out docs/img");
    }
}

/// The words of a plot, without its numbers.
fn words(svg: &str) -> Vec<String> {
    let lines = svg.lines().map(str::trim).filter(|line| !line.starts_with('<') && !line.is_empty());
    let wordy = |line: &str| line.chars().filter(|c| c.is_alphabetic() || *c == ' ').collect::<String>();
    lines.map(wordy).filter(|line| !line.trim().is_empty()).collect()
}
