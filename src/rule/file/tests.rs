//! Good files, bad files, and files that are no files at all.

use super::*;
use proptest::prelude::*;

/// Plain ASCII, so that it can be cut anywhere.
const ALL: &str = r#"
[rules.api]
algorithm = "token_bucket"
limit = 1_000
per = "1s"
burst = 200
mode = "leased"
outage = "deny"
overload = "allow"
cold_credit = 7
lost = "full"
revision = 3
deadline = "20ms"
lease_ttl = "5s"
horizon = "200ms"
cadence = "5ms"
reservation_ttl = "2m"
abandoned = "spend"
shadow = true
allow = ["health", "staff-*"]
deny = ['bot-\*']

[[rules.api.override]]
key = "vip-??"
limit = 2_000

[[rules.api.override]]
key = "slow"
limit = 10
per = "1m"
burst = 3
deadline = "1s"

[[rules.api.override]]
key = "root"
algorithm = "unlimited"

[rules."user login"]
algorithm = "fixed_window"
limit = 5
per = "1d"
utc_offset = "+05:30"
mode = "exact"
plain_key = "login:{key}:{start}"

[rules.queue]
algorithm = "leaky_queue"
limit = 5
per = "1s"

[rules.near]
algorithm = "sliding_counter"
limit = 50
per = "1m 30s"
mode = "buffered"
delta_max = 4
"#;

#[test]
fn everything_that_a_rule_can_say_can_be_said_in_a_file() {
    let ms = Duration::from_millis;
    let api = Rule::token_bucket(1_000, ms(1_000))
        .burst(200)
        .outage(Outage::Deny)
        .overload(Outage::Allow)
        .cold(Cold::Credit(7))
        .lost(Lost::Full)
        .revision(3)
        .deadline(ms(20))
        .lease_ttl(ms(5_000))
        .horizon(ms(200))
        .cadence(ms(5))
        .reservation_ttl(Duration::from_secs(120))
        .abandoned(Abandoned::Spend);
    let vip = Rule { count: 2_000, ..api.clone() }.burst(400);
    let slow = Rule { count: 10, per: ms(60_000), ..api.clone() }.burst(3).deadline(ms(1_000)).cold(Cold::Credit(2));
    let right = Rules::new()
        .rule(
            "api",
            api.allow("health")
                .allow("staff-*")
                .deny(r"bot-\*")
                .override_key("vip-??", vip.shadow(true))
                .override_key("slow", slow.shadow(true))
                .override_key("root", Rule::unlimited())
                .shadow(true),
        )
        .rule(
            "user login",
            Rule::fixed_window(5, ms(86_400_000)).utc_offset(19_800).mode(Mode::Exact).plain_key("login:{key}:{start}"),
        )
        .rule("queue", Rule::leaky_queue(5, ms(1_000)))
        .rule("near", Rule::sliding_counter(50, ms(90_000)).mode(Mode::Buffered).delta_max(4));
    assert_eq!(Rules::from_toml(ALL), Ok(right));
}

#[test]
fn what_is_wrong_is_told_with_line_and_column() {
    let rule = |more: &str| format!("[rules.api]\nalgorithm = 'token_bucket'\nlimit = 10\nper = '1s'\n{more}");
    let table: Vec<(String, &str)> = vec![
        (String::new(), "line 1, column 1: there are no rules"),
        ("[rules]\n".to_owned(), "line 1, column 1: there are no rules"),
        ("[rules.api\n".to_owned(), "line 1, column 11: "),
        ("[rule.api]\nlimit = 3".to_owned(), "line 1, column 2: the file: no field \"rule\"; perhaps \"rules\"?"),
        ("rules = 3".to_owned(), "line 1, column 9: the file: rules: a table, not a whole number"),
        ("[rules]\napi = 3".to_owned(), "line 2, column 7: rule \"api\": a table, not a whole number"),
        ("[rules.api]\n[rules.api]\n".to_owned(), "line 2, column 8: duplicate key: \"api\""),
        ("[rules.api]\nlimit = 3\n".to_owned(), "line 1, column 8: rule \"api\": algorithm: is missing"),
        (
            "[rules.api]\nalgorithm = 'gcra'\n".to_owned(),
            "line 2, column 13: rule \"api\": algorithm: one of token_bucket, ",
        ),
        (
            rule("brust = 3"),
            "line 5, column 1: rule \"api\": no field \"brust\"; perhaps \"burst\"? There are: algorithm, ",
        ),
        (rule("burst = 0"), "line 5, column 9: rule \"api\": burst: 1 to 1000000000 tokens, not 0 (given)"),
        (rule("burst = -3"), "line 5, column 9: rule \"api\": burst: a whole number from 0, not \"-3\""),
        (rule("burst = 1.5"), "line 5, column 9: rule \"api\": burst: a whole number, not a number with a point"),
        (rule("burst = '3'"), "line 5, column 9: rule \"api\": burst: a whole number, not a string"),
        (rule("burst = 99999999999999999999999"), "line 5, column 9: rule \"api\": burst: a whole number from 0, not"),
        (rule("revision = 4294967296"), "line 5, column 12: rule \"api\": revision: 0 to 4294967295"),
        (
            rule("mode = 'lokal'"),
            "line 5, column 8: rule \"api\": mode: one of local, leased, exact, buffered, not \"lokal\"",
        ),
        (rule("deadline = 5"), "line 5, column 12: rule \"api\": deadline: a time in quotes"),
        (rule("deadline = '5'"), "line 5, column 12: rule \"api\": deadline: a time such as"),
        (rule("deadline = '2min'"), "line 5, column 12: rule \"api\": deadline: 1ms to 60s, not 120s"),
        (rule("cold_credit = 11"), "line 5, column 15: rule \"api\": cold: a credit of 1 to 10"),
        (rule("delta_max = 1"), "line 5, column 13: rule \"api\": delta_max: only a `Buffered` rule"),
        (rule("utc_offset = '1h'"), "line 5, column 14: rule \"api\": utc_offset: an offset such as"),
        (rule("utc_offset = 60"), "line 5, column 14: rule \"api\": utc_offset: only fixed windows"),
        (rule("plain_key = '{key}'"), "line 5, column 13: rule \"api\": plain_key: a plain key is one number"),
        (rule("plain_key = 3"), "line 5, column 13: rule \"api\": plain_key: a string, not a whole number"),
        (rule("shadow = 'yes'"), "line 5, column 10: rule \"api\": shadow: true or false, not a string"),
        (rule("allow = 'a'"), "line 5, column 9: rule \"api\": allow: a list of strings, not a string"),
        (rule("allow = ['a',\n 3]"), "line 6, column 2: rule \"api\": allow: a list of strings, not a whole number"),
        (rule("deny = ['a',\n 'ü', 'b\\']"), "line 6, column 7: rule \"api\": deny: \"b\\\\\": a backslash"),
        (rule("override = 3"), "line 5, column 12: rule \"api\": override: a list of tables"),
        (rule("[[rules.api.override]]\nlimit = 3"), "line 5, column 1: rule \"api\": override: key: is missing"),
        (
            rule("[[rules.api.override]]\nkey = 'a'\nlimit = 0"),
            "line 7, column 9: rule \"api\": overrides: \"a\": rate: ",
        ),
        (
            rule("[[rules.api.override]]\nkey = 'a'\nmode = 'local'"),
            "line 7, column 1: rule \"api\": override: no field \"mode\"",
        ),
        (
            rule("[[rules.api.override]]\nkey = 'a'\n[[rules.api.override]]\nkey = 'a'"),
            "line 8, column 7: rule \"api\": overrides: \"a\": there are two overrides",
        ),
        (rule("limit = 3"), "line 5, column 1: duplicate key: \"limit\""),
        (rule("xyzzy = 3"), "line 5, column 1: rule \"api\": no field \"xyzzy\"; there are: algorithm, "),
        (
            "[rules.a]\nalgorithm = 'fixed_window'\nlimit = 0\nper = '1s'".to_owned(),
            "line 3, column 9: rule \"a\": limit: the number of tokens is zero",
        ),
        (
            "[rules.a]\nalgorithm = 'token_bucket'\nlimit = 0\nper = '1s'".to_owned(),
            "line 3, column 9: rule \"a\": rate: the number",
        ),
        (
            "[rules.a]\nalgorithm = 'token_bucket'\nlimit = 1\nper = '0s'".to_owned(),
            "line 4, column 7: rule \"a\": rate: the period",
        ),
        (
            "[rules.a]\nalgorithm = 'sliding_log'\nlimit = 1\nper = '999us'".to_owned(),
            "line 4, column 7: rule \"a\": window: ",
        ),
        (
            "[rules.a]\nalgorithm = 'unlimited'\nlimit = 1".to_owned(),
            "line 3, column 9: rule \"a\": limit: a rule of this",
        ),
        (
            "[rules.a]\nalgorithm = 'token_bucket'\nlimit = 2_000_000_000\nper = '1d'".to_owned(),
            "line 3, column 9: rule \"a\": burst: ",
        ),
        ("[rules.\"\"]\nalgorithm = 'unlimited'".to_owned(), "line 1, column 8: rule \"\": name: 1 to 128 bytes"),
    ];
    for (text, words) in table {
        let error = Rules::from_toml(&text).expect_err(&text);
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().starts_with(words), "{text}\n  is:     {error}\n  should: {words}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_names_it() {
    let missing = std::env::temp_dir().join("tollgate-no-such-file.toml");
    let error = Rules::from_file(&missing).expect_err("no such file");
    assert!(error.to_string().starts_with(&missing.display().to_string()), "{error}");
    assert!(Rules::from_file(std::env::temp_dir()).is_err(), "a folder is no file");
}

#[test]
fn an_error_about_a_text_of_a_megabyte_is_a_line_and_a_list_far_too_long_is_refused_at_its_end() {
    let long = "9".repeat(1 << 20);
    let rule = "[rules.r]\nalgorithm = 'fixed_window'\nlimit = 1\nper = '1s'\n";
    let many: String = (0..100_000).map(|n| format!("'k{n}*',")).collect();
    for text in [
        format!("[rules.r]\nalgorithm = 'fixed_window'\nlimit = 1\nper = '{long}'"),
        format!("[rules.{long}]\nlimit = 1"),
        format!("[rules]\n{long} = 1"),
        format!("[rules.r]\n{long} = 1"),
        format!("[rules.r]\nlimit = {long}\nalgorithm = 'fixed_window'"),
        format!("{rule}mode = '{long}'"),
        format!("{rule}deny = ['{long}']"),
        format!("{rule}deny = [{many}]"),
        format!("{rule}allow = [{many}]"),
    ] {
        let error = Rules::from_toml(&text).expect_err("far too long").to_string();
        assert!(error.starts_with("line ") && error.len() < 1_000, "{} bytes: {:.200}", error.len(), error);
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        let _ = Rules::from_toml(&text);
    }

    #[test]
    fn no_damage_to_a_good_file_makes_it_panic(
        at in 0..ALL.len(), length in 0..40_usize, put in prop_oneof![".{0,6}", "[\\[\\]{}=.,\"'0-9a-z\\n*\\\\-]{0,8}"],
    ) {
        let (start, end) = (at, (at + length).min(ALL.len()));
        let text = format!("{}{put}{}", &ALL[..start], &ALL[end..]);
        if let Err(error) = Rules::from_toml(&text) {
            let error = error.to_string();
            prop_assert!(error.starts_with("line ") && error.contains(", column "), "{}", error);
        }
    }

    #[test]
    fn a_good_file_that_was_cut_is_refused_or_holds_whole_rules(at in 0..ALL.len()) {
        if let Ok(rules) = Rules::from_toml(&ALL[..at]) {
            prop_assert!(rules.names().count() > 0);
        }
    }
}
