//! The same bursty traffic through every algorithm, drawn: `cargo run --release --features sim --example algorithms`.
//!
//! Two gateways share a limit of 100 a second in a simulated world; each algorithm sees the same requests. Writes two
//! plots, what was admitted in each 50 ms and in the last second, and prints a line of figures for each algorithm. All of it
//! follows from the seed.

use plotters::prelude::*;
use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tollgate::{
    Rule,
    sim::{Admission, Traffic, World},
};

const HELP: &str = "\
Draws what each algorithm admits of the same bursty traffic, as two SVG files.

Usage: cargo run --release --features sim --example algorithms -- [OPTIONS]

Options:
  --out FOLDER  where the plots go [default: target/algorithms]
  --seed N      another traffic [default: 1]
  --help        this text";

const SECOND: Duration = Duration::from_secs(1);
/// What is let through in a second.
const LIMIT: u64 = 100;
/// How long the traffic lasts.
const SPAN: Duration = Duration::from_secs(6);
/// A bar of the first plot, in µs.
const BAR: u64 = 50_000;

/// One algorithm's way through the traffic.
#[derive(Debug)]
pub(crate) struct Course {
    /// What it is called.
    pub(crate) name: &'static str,
    /// Requests that were made.
    pub(crate) offered: u64,
    /// What was admitted, by time. For the queue: by the time to leave.
    pub(crate) trace: Vec<Admission>,
    /// Questions to the authority, a second and gateway.
    pub(crate) syncs: f64,
}

impl Course {
    /// Requests that were admitted.
    pub(crate) fn admitted(&self) -> u64 {
        self.trace.iter().map(|a| a.cost).sum()
    }

    /// What was admitted in the second up to this time, in µs.
    fn last_second(&self, at: u64) -> u64 {
        let within = |one: &&Admission| one.after.0 <= at && one.after.0 + 1_000_000 > at;
        self.trace.iter().filter(within).map(|one| one.cost).sum()
    }

    /// The most that were admitted in any span of a second.
    pub(crate) fn peak(&self) -> u64 {
        // Such a span ends with an admission.
        self.trace.iter().map(|one| self.last_second(one.after.0)).max().unwrap_or(0)
    }

    /// What was admitted in each bar of time.
    fn bars(&self) -> Vec<(f64, f64)> {
        let mut bars = vec![0; (SPAN.as_micros() as u64 / BAR) as usize + 1];
        for one in &self.trace {
            if let Some(bar) = bars.get_mut((one.after.0 / BAR) as usize) {
                *bar += one.cost;
            }
        }
        (0..).zip(bars).map(|(n, sum)| ((n * BAR) as f64 / 1e6, sum as f64)).collect()
    }
}

/// Bursts of 150 each 0.7 s, which no window knows of, and 40 a second in between.
fn traffic() -> Traffic {
    Traffic::poisson(40.0).bursts(7 * SECOND / 10, 150)
}

/// Lets the traffic through each algorithm.
pub(crate) fn courses(seed: u64) -> Result<Vec<Course>, tollgate::Error> {
    let rules = [
        ("token bucket", Rule::token_bucket(LIMIT, SECOND)),
        ("leaky bucket", Rule::leaky_bucket(LIMIT, SECOND)),
        ("leaky queue", Rule::leaky_queue(LIMIT, SECOND)),
        ("fixed window", Rule::fixed_window(LIMIT, SECOND)),
        ("sliding log", Rule::sliding_log(LIMIT, SECOND)),
        ("sliding counter", Rule::sliding_counter(LIMIT, SECOND)),
    ];
    let run = |(name, rule)| {
        let world =
            World::builder().instances(2).rule(rule).traffic(traffic()).span(SPAN).seed(seed).trace().build()?;
        let report = world.run();
        Ok(Course { name, offered: report.offered(), syncs: report.syncs_per_second(), trace: report.trace })
    };
    rules.into_iter().map(run).collect()
}

/// Each algorithm's admissions in bars of 50 ms, one below the other.
fn draw_bars(courses: &[Course], path: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (800, 760)).into_drawing_area();
    root.fill(&WHITE)?;
    for (course, area) in courses.iter().zip(root.split_evenly((courses.len(), 1))) {
        let bars = course.bars();
        let mut chart = ChartBuilder::on(&area)
            .margin(6)
            .caption(
                format!("{}: {} of {} admitted", course.name, course.admitted(), course.offered),
                ("sans-serif", 14),
            )
            .x_label_area_size(20)
            .y_label_area_size(34)
            .build_cartesian_2d(0.0..SPAN.as_secs_f64(), 0.0..120.0)?;
        chart.configure_mesh().light_line_style(TRANSPARENT).x_labels(7).y_labels(4).draw()?;
        let width = BAR as f64 / 1e6;
        let steps = bars.iter().flat_map(|(at, sum)| [(*at, *sum), (at + width, *sum)]);
        chart.draw_series(AreaSeries::new(steps, 0.0, BLUE.mix(0.5)))?;
    }
    root.present()?;
    Ok(())
}

/// What each algorithm admitted in the second up to each moment.
fn draw_last_second(courses: &[Course], path: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (800, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .caption("admitted in the last second, where 100 a second are allowed", ("sans-serif", 16))
        .x_label_area_size(24)
        .y_label_area_size(36)
        .build_cartesian_2d(0.0..SPAN.as_secs_f64(), 0.0..330.0)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("seconds").draw()?;
    for (n, course) in courses.iter().enumerate() {
        let colour = Palette99::pick(n).to_rgba();
        let moments = (0..=SPAN.as_micros() as u64).step_by(20_000);
        let line = moments.map(|at| (at as f64 / 1e6, course.last_second(at) as f64));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(format!("{}, at most {}", course.name, course.peak()))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 12))
        .draw()?;
    root.present()?;
    Ok(())
}

/// Writes both plots into a folder.
pub(crate) fn draw(courses: &[Course], out: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(out)?;
    draw_bars(courses, &out.join("admitted.svg"))?;
    draw_last_second(courses, &out.join("last-second.svg"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut out, mut seed) = (PathBuf::from("target/algorithms"), 1);
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("out") => out = args.value()?.into(),
            lexopt::Arg::Long("seed") => seed = lexopt::ValueExt::parse(&args.value()?)?,
            lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => {
                println!("{HELP}");
                return Ok(());
            }
            other => return Err(format!("{}; see --help", other.unexpected()).into()),
        }
    }
    let courses = courses(seed)?;
    println!(
        "{:<16} {:>8} {:>9} {:>22} {:>20}",
        "algorithm", "offered", "admitted", "most in any second", "syncs/s and gateway"
    );
    for course in &courses {
        println!(
            "{:<16} {:>8} {:>9} {:>22} {:>20.1}",
            course.name,
            course.offered,
            course.admitted(),
            course.peak(),
            course.syncs
        );
    }
    draw(&courses, &out)?;
    println!("\nplots: {}", out.display());
    Ok(())
}
