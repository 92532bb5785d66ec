//! What came of a world.

use super::super::Admission;
use crate::time::Micros;
use std::fmt;

/// What one instance's place was asked and admitted, whoever took it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Tokens that were asked for.
    pub offered: u64,
    /// Tokens that were admitted by the limit.
    pub admitted: u64,
    /// Tokens that the limit refused.
    pub denied: u64,
    /// Tokens asked for while the authority could not be asked, or not in time, and refused.
    pub failed: u64,
    /// Tokens that the outage policy let through.
    pub outage: u64,
    /// Questions about buckets that it sent.
    pub syncs: u64,
}

/// A span in which more was admitted than the bound allows, all exceptions of that world counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Violation {
    /// The rule, in the order in which the world was given them.
    pub rule: usize,
    /// The key, from 0.
    pub key: u32,
    /// Where the span begins, since the world's start.
    pub from: Micros,
    /// Where it ends: the admission that was too much.
    pub to: Micros,
    /// By how many tokens.
    pub excess: f64,
}

/// Where the tokens of one key were when the world ended: nothing is made and nothing vanishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conserved {
    /// What the full bucket had at the start, and what came at the rate since it was first asked.
    pub came: i128,
    /// What was admitted.
    pub admitted: i128,
    /// What instances that live still hold.
    pub held: i128,
    /// What the authority has free; below zero where it owes.
    pub free: i128,
    /// Refill that found the bucket full, as far as it was lent or free.
    pub overflowed: i128,
}

impl Conserved {
    /// What has vanished, or (below zero) was made out of nothing.
    #[must_use]
    pub fn missing(&self) -> i128 {
        self.came - self.admitted - self.held - self.free - self.overflowed
    }
}

/// What came of one world: counts, and the judge's verdict.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The world's seed.
    pub seed: u64,
    /// How long it lasted, in its own time.
    pub span: Micros,
    /// Requests that were made.
    pub requests: u64,
    /// Requests that the limit admitted.
    pub admissions: u64,
    /// By instance.
    pub places: Vec<Place>,
    /// Tokens that one central machine would have admitted of the same requests; 0 unless that was asked for.
    pub central: u64,
    /// How many admissions were above the bound, exceptions counted. 0: it holds.
    pub violations: u64,
    /// The first of them.
    pub first: Option<Violation>,
    /// By how many tokens the bound was exceeded at worst, exceptions not counted.
    pub excess: f64,
    /// What the exceptions that this world met may add, in tokens for the key where that is most.
    pub conceded: u64,
    /// The bound that applied, in words.
    pub bound: String,
    /// How often an instance was told that a bucket's state was lost.
    pub states_lost: u64,
    /// Where the tokens of the first rule's first key were in the end, if that was asked for.
    pub conserved: Option<Conserved>,
    /// The authority's books did not add up at this time, if that was asked for.
    pub unbalanced: Option<Micros>,
    /// All admissions by the first rule, in the order of time since the start, if that was asked for. For a leaky queue
    /// with the times to leave.
    pub trace: Vec<Admission>,
}

impl Report {
    /// Whether the bound holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations == 0
    }

    /// Tokens that were asked for.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.places.iter().map(|place| place.offered).sum()
    }

    /// Tokens that the limit admitted.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.places.iter().map(|place| place.admitted).sum()
    }

    /// Tokens that the limit refused.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.places.iter().map(|place| place.denied).sum()
    }

    /// Tokens that outage policies let through.
    #[must_use]
    pub fn outage(&self) -> u64 {
        self.places.iter().map(|place| place.outage).sum()
    }

    /// What was admitted, as a part of what one central machine would have admitted of the same requests.
    #[must_use]
    pub fn used(&self) -> f64 {
        self.admitted() as f64 / self.central.max(1) as f64
    }

    /// Jain's index over what each instance was admitted of what it asked for: 1 when all got the same part.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let asked = self.places.iter().filter(|place| place.offered > 0);
        let parts: Vec<f64> = asked.map(|place| place.admitted as f64 / place.offered as f64).collect();
        let (sum, squares) = parts.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        if squares > 0.0 { sum * sum / (parts.len() as f64 * squares) } else { 1.0 }
    }

    /// Questions about buckets, a second and instance.
    #[must_use]
    pub fn syncs_per_second(&self) -> f64 {
        let syncs: u64 = self.places.iter().map(|place| place.syncs).sum();
        syncs as f64 / self.span.as_secs_f64() / self.places.len().max(1) as f64
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {} of {} tokens admitted in {:.3} s, {:.1} syncs/s and instance, fairness {:.3}; bound {}",
            self.seed,
            self.admitted(),
            self.offered(),
            self.span.as_secs_f64(),
            self.syncs_per_second(),
            self.fairness(),
            self.bound,
        )?;
        if self.conceded > 0 {
            write!(f, " + {} conceded", self.conceded)?;
        }
        if let Some(first) = self.first {
            write!(
                f,
                "; {} violations, the first by {:.3} tokens from {} to {} µs, rule {}, key {}",
                self.violations, first.excess, first.from.0, first.to.0, first.rule, first.key,
            )?;
        }
        Ok(())
    }
}
