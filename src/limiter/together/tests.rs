use super::*;
use crate::rate::Rate;

fn said(limit: u64, remaining: u64) -> Decision {
    Decision { limit, remaining, ..Decision::unasked() }
}

fn no(rule: &'static str, micros: u64) -> Decision {
    Decision { verdict: Verdict::Denied, refused_by: Some(rule), retry_after: Micros(micros), ..said(10, 0) }
}

#[test]
fn a_yes_shows_the_limit_that_is_nearest_to_being_exhausted() {
    let all = [said(10, 5), said(1_000, 300), said(3, 1), said(u64::MAX, u64::MAX)];
    assert_eq!((combine(&all).limit, combine(&all).remaining), (1_000, 300));
    assert_eq!(combine(&[said(10, 5), said(20, 10)]).limit, 10, "the first of equals");
    let slow = Decision { delay: Micros(7), trouble: Some(ErrorKind::Unreachable), ..said(10, 9) };
    let both = combine(&[said(10, 1), slow]);
    assert_eq!((both.remaining, both.delay, both.trouble), (1, Micros(7), Some(ErrorKind::Unreachable)));
}

#[test]
fn a_no_names_the_first_that_refuses_and_waits_for_the_longest() {
    let all = [said(10, 5), no("a", 100), no("b", 900), no("c", 300)];
    assert_eq!((combine(&all).refused_by, combine(&all).retry_after), (Some("a"), Micros(900)));
    let unknown = combine(&[no("a", 100), no("b", Micros::MAX.0)]);
    assert_eq!((unknown.refused_by, unknown.retry_after()), (Some("a"), None), "nobody knows");
    let never = combine(&[no("a", 100), Decision { verdict: Verdict::Never, ..no("b", 0) }]);
    assert!(never.is_never() && never.refused_by == Some("a"));
}

#[test]
fn nothing_asked_is_allowed() {
    let nothing = combine(&[]);
    assert!(nothing.is_allowed() && nothing.limit() == u64::MAX);
    assert_eq!(nothing.reset_after(), std::time::Duration::ZERO);
    assert_eq!(nothing.rate, Rate::ONE_A_SECOND);
}
