use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn fair() -> Rule {
    Rule::token_bucket(100, SECOND)
}

#[track_caller]
fn refused(name: &str, rule: &Rule, field: &str) -> String {
    let error = rule.check(name).expect_err("out of range");
    assert_eq!(error.kind(), ErrorKind::Config);
    let message = error.to_string();
    assert!(message.starts_with("rule ") && message.contains(&format!(": {field}: ")), "{message}");
    message
}

#[test]
fn a_rule_that_says_nothing_more_has_the_documented_defaults() {
    let terms = fair().check("api").expect("a fair rule");
    let rate = Rate::new(100, SECOND).expect("a fair rate");
    let want = Terms {
        name: "api",
        label: "api",
        constant: None,
        shadow: false,
        numbers: Numbers::bucket(0, rate, 100),
        plain: None,
        mode: Mode::Leased,
        outage: Outage::Share,
        overload: Outage::Share,
        delta_max: None,
        cold: Cold::Deny,
        lost: Lost::Empty,
        deadline: Micros::from_millis(50),
        lease_ttl: Micros::from_secs(10),
        horizon: Micros::from_millis(100),
        cadence: Micros::from_millis(10),
        reservation_ttl: Micros::from_secs(60),
        abandoned: Abandoned::Release,
    };
    assert_eq!(terms, want);
}

#[test]
fn every_setter_reaches_the_terms() {
    let rule = fair()
        .burst(7)
        .mode(Mode::Leased)
        .outage(Outage::Deny)
        .cold(Cold::Credit(7))
        .lost(Lost::Full)
        .revision(3)
        .deadline(Duration::from_millis(1))
        .lease_ttl(Duration::from_millis(100))
        .horizon(Duration::from_millis(100))
        .cadence(SECOND);
    let terms = rule.check("api").expect("a fair rule");
    assert_eq!((terms.numbers.burst, terms.numbers.revision), (7, 3));
    assert_eq!((terms.outage, terms.cold, terms.lost), (Outage::Deny, Cold::Credit(7), Lost::Full));
    assert_eq!((terms.deadline, terms.lease_ttl), (Micros::from_millis(1), Micros::from_millis(100)));
    assert_eq!((terms.horizon, terms.cadence), (Micros::from_millis(100), Micros::from_secs(1)));
    assert_eq!(fair().mode(Mode::Exact).check("api").map(|t| t.mode), Ok(Mode::Exact));
}

// case C-13: more than a thousand a second is an everyday rate.
#[test]
fn rates_of_fifteen_hundred_and_two_thousand_a_second_are_taken_exactly() {
    for count in [1_500, 2_000, 999_983, 1_000_000_000] {
        let terms = Rule::token_bucket(count, SECOND).check("fast").expect("a fair rule");
        assert_eq!(terms.numbers.rate.tokens_in(Micros::from_secs(10)), 10 * count);
        assert_eq!(terms.numbers.burst, count);
    }
}

// cases C-14, C-17: a limit or a window of zero is refused when it is configured, not when it is hit.
#[test]
fn zero_and_absurd_numbers_are_refused_with_the_rule_and_the_field() {
    let table: &[(Rule, &str)] = &[
        (Rule::token_bucket(0, Duration::from_secs(60)), "rate"),
        (Rule::token_bucket(1_000, Duration::ZERO), "rate"),
        (Rule::token_bucket(1, Duration::from_nanos(1)), "rate"),
        (Rule::token_bucket(1, Duration::from_nanos(1_500)), "rate"),
        (Rule::token_bucket(1, Duration::MAX), "rate"),
        (Rule::token_bucket(u64::MAX, SECOND), "rate"),
        (Rule::token_bucket(1_000_000_001, SECOND), "rate"),
        (Rule::token_bucket(2_000_000_000, DAY), "burst"), // by its default
        (fair().burst(0), "burst"),
        (fair().burst(1_000_000_001), "burst"),
        (fair().burst(u64::MAX), "burst"),
        (Rule::token_bucket(1, DAY).burst(36_526), "burst"),
        (Rule::token_bucket(1, 366 * DAY).burst(1_000_000_000), "burst"),
        (fair().cold(Cold::Credit(0)), "cold"),
        (fair().cold(Cold::Credit(101)), "cold"),
        (fair().mode(Mode::Local).cold(Cold::Credit(1)), "cold"),
        (fair().mode(Mode::Exact).cold(Cold::Credit(1)), "cold"),
        (fair().deadline(Duration::ZERO), "deadline"),
        (fair().deadline(Duration::from_micros(999)), "deadline"),
        (fair().deadline(Duration::from_secs(61)), "deadline"),
        (fair().lease_ttl(Duration::from_millis(99)), "lease_ttl"),
        (fair().lease_ttl(Duration::MAX), "lease_ttl"),
        (fair().horizon(Duration::ZERO), "horizon"),
        (fair().horizon(Duration::from_secs(11)), "horizon"),
        (fair().lease_ttl(SECOND).horizon(2 * SECOND), "horizon"),
        (fair().cadence(Duration::from_micros(999)), "cadence"),
        (fair().cadence(Duration::from_millis(1_001)), "cadence"),
        (fair().mode(Mode::Exact).plain_key("{key}"), "plain_key"),
        (Rule::sliding_log(1, SECOND).mode(Mode::Exact).plain_key("{key}"), "plain_key"),
        (Rule::deny_all().plain_key("{key}"), "plain_key"),
        (Rule::fixed_window(1, SECOND).plain_key("{key}"), "plain_key"),
        (Rule::fixed_window(1, SECOND).mode(Mode::Local).plain_key("{key}"), "plain_key"),
        (Rule::fixed_window(1, SECOND).mode(Mode::Buffered).plain_key("{key}"), "plain_key"),
        (Rule::fixed_window(1, SECOND).mode(Mode::Exact).plain_key("{index}"), "plain_key"),
        (Rule::fixed_window(1, SECOND / 2).mode(Mode::Exact).plain_key("{key}:{start}"), "plain_key"),
        (Rule::fixed_window(1, Duration::ZERO), "window"),
        (Rule::sliding_counter(1, Duration::ZERO), "window"),
        (Rule::leaky_bucket(1, Duration::ZERO), "rate"),
        (Rule::leaky_queue(0, SECOND), "rate"),
        (Rule::fixed_window(1, Duration::from_micros(999)), "window"),
        (Rule::sliding_log(1, 366 * DAY + SECOND), "window"),
        (Rule::sliding_counter(1_000_000_001, SECOND), "limit"),
        (Rule::fixed_window(1_000_000_001, DAY), "limit"),
        (Rule::fixed_window(5, SECOND).burst(5), "burst"),
        (Rule::fixed_window(5, DAY).utc_offset(86_400), "utc_offset"),
        (Rule::fixed_window(5, DAY).utc_offset(-86_400), "utc_offset"),
        (Rule::fixed_window(5, DAY).utc_offset(i32::MIN), "utc_offset"),
        (Rule::sliding_log(5, DAY).utc_offset(3_600), "utc_offset"),
        (fair().utc_offset(1), "utc_offset"),
        (fair().delta_max(1), "delta_max"),
        (fair().mode(Mode::Buffered).delta_max(0), "delta_max"),
        (fair().mode(Mode::Buffered).delta_max(101), "delta_max"),
        (fair().mode(Mode::Buffered).cold(Cold::Credit(1)), "cold"),
        (fair().reservation_ttl(Duration::from_micros(999)), "reservation_ttl"),
        (fair().reservation_ttl(DAY + SECOND), "reservation_ttl"),
        (Rule::unlimited().burst(1), "burst"),
        (Rule::deny_all().mode(Mode::Leased), "mode"),
        (Rule::fixed_window(1, DAY).utc_offset(3_600).mode(Mode::Exact).plain_key("{key}"), "utc_offset"),
        (Rule::fixed_window(0, SECOND), "limit"),
        (Rule::fixed_window(1_000_000_000, Duration::from_millis(1)), "limit"),
        (Rule::sliding_log(1, Duration::ZERO), "window"),
        (Rule::sliding_counter(1, Duration::from_nanos(1_500_500)), "window"),
    ];
    for (rule, field) in table {
        let message = refused("login", rule, field);
        assert!(message.starts_with("rule \"login\": "), "{message}");
    }
}

#[test]
fn times_are_told_in_the_units_of_a_file() {
    let message = refused("r", &fair().lease_ttl(Duration::from_secs(90 * 60)), "lease_ttl");
    assert!(message.ends_with("100ms to 1h, not 5400s"), "{message}");
    let message = refused("r", &Rule::fixed_window(1, 367 * DAY), "window");
    assert!(message.ends_with("1ms to 366d, not 367d"), "{message}");
}

#[test]
fn the_ends_of_every_range_are_allowed() {
    for rule in [
        Rule::token_bucket(1, 366 * DAY).burst(99),
        Rule::token_bucket(1, DAY).burst(36_525),
        Rule::token_bucket(1, DAY).burst(1),
        Rule::token_bucket(1_000, Duration::from_micros(1)).burst(1_000_000_000),
        fair().deadline(Duration::from_secs(60)).lease_ttl(Duration::from_secs(3_600)),
        fair().lease_ttl(Duration::from_secs(3_600)).horizon(Duration::from_secs(3_600)),
        fair().horizon(Duration::from_millis(1)).cadence(Duration::from_millis(1)),
        fair().reservation_ttl(Duration::from_millis(1)),
        fair().reservation_ttl(DAY),
        fair().mode(Mode::Buffered).delta_max(1),
        fair().mode(Mode::Buffered).delta_max(100),
        Rule::fixed_window(1_000_000_000, DAY).utc_offset(86_399),
        Rule::fixed_window(1, Duration::from_millis(1)).utc_offset(-86_399),
        Rule::sliding_log(1, 366 * DAY),
    ] {
        assert!(rule.check("api").is_ok(), "{rule:?} {:?}", rule.check("api"));
    }
}

#[test]
fn only_a_fixed_window_in_exact_mode_has_plain_keys_and_others_are_told_why() {
    let fixed = Rule::fixed_window(5, SECOND).plain_key("rate:{key}:{index}");
    let terms = fixed.clone().mode(Mode::Exact).check("api").expect("a fair rule");
    assert!(terms.plain.is_some_and(Template::is_dated));
    let message = refused("api", &fixed, "plain_key");
    assert!(message.contains("`Exact`, not `Leased`"), "{message}");
    let message = refused("api", &fair().plain_key("rate:{key}"), "plain_key");
    assert!(message.contains("fixed windows alone"), "{message}");
}

#[test]
fn an_algorithm_in_a_mode_that_makes_no_sense_is_told_why() {
    for mode in [Mode::Leased, Mode::Buffered] {
        let message = refused("api", &Rule::leaky_queue(5, SECOND).mode(mode), "mode");
        assert!(message.contains("cannot be lent ahead or reported afterwards; `Exact` or `Local`"), "{message}");
    }
    let kinds = [Rule::token_bucket, Rule::leaky_bucket, Rule::fixed_window, Rule::sliding_log, Rule::sliding_counter];
    for kind in kinds {
        for mode in [Mode::Local, Mode::Leased, Mode::Exact, Mode::Buffered] {
            assert!(kind(5, SECOND).mode(mode).check("api").is_ok(), "{:?} {mode:?}", kind(5, SECOND));
        }
    }
    assert!(Rule::leaky_queue(5, SECOND).mode(Mode::Local).check("api").is_ok());
    assert!(Rule::leaky_queue(5, SECOND).mode(Mode::Exact).check("api").is_ok());
}

#[test]
fn an_error_says_what_was_given_and_what_is_allowed() {
    let message = refused("api", &fair().burst(0), "burst");
    assert_eq!(message, "rule \"api\": burst: 1 to 1000000000 tokens, not 0 (given)");
    let message = refused("api", &fair().cadence(Duration::ZERO), "cadence");
    assert_eq!(message, "rule \"api\": cadence: 1ms to 1s, not 0ns");
}

// case C-37: "4000 per second" with a burst of 8000 lets 20,000 through in 3 s, not 8,000.
#[test]
fn four_thousand_a_second_means_four_thousand_each_second() {
    let terms = Rule::token_bucket(4_000, SECOND).burst(8_000).check("api").expect("a fair rule");
    assert_eq!(terms.numbers.burst + terms.numbers.rate.tokens_in(Micros::from_secs(3)), 20_000);
}

#[test]
fn a_name_is_any_printable_text_of_128_bytes() {
    for good in ["a", "user login", "api:{v1}", "限流", &"x".repeat(128)] {
        assert_eq!(fair().check(good).map(|t| t.name), Ok(good));
    }
    for bad in ["", "a\nb", "a\0", "\u{7f}", "\u{85}", &"x".repeat(129), &"é".repeat(65)] {
        let message = refused(bad, &fair(), "name");
        assert!(message.len() < 300 && !message.contains(char::is_control), "{message}");
    }
}

#[test]
fn a_name_is_kept_once_however_often_it_is_used() {
    let first = fair().check("kept-once").expect("a fair rule").name;
    let second = fair().burst(3).check(&String::from("kept-once")).expect("a fair rule").name;
    assert!(std::ptr::eq(first, second));
}
