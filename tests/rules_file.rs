//! A file of rules, from the disk to the gate.
#![cfg(feature = "rules-file")]

use std::{fs, path::Path};
use tollgate::{ErrorKind, Rules, Source, Tollgate};

fn example() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules.toml"))
}

#[tokio::test]
async fn the_example_file_makes_a_gate() {
    let rules = Rules::from_file(example()).expect("a good file");
    assert_eq!(rules.names().collect::<Vec<_>>(), ["api", "login", "export", "beta"]);
    let gate = Tollgate::builder().rules(rules).build().await.expect("fair rules");
    let [api, login, beta] = ["api", "login", "beta"].map(|name| gate.limiter(name).expect("its rule"));
    let limits =
        [("user", 2_000), ("partner-7", 10_000), ("internal", u64::MAX), ("bot-1", 0), ("health-check", u64::MAX)];
    for (key, limit) in limits {
        assert_eq!(api.check(key).await.limit(), limit, "{key}");
    }
    assert_eq!(login.check("user").await.source(), Source::Authority);
    assert!(beta.check_now("staff-1").is_allowed() && beta.check_now("guest").is_never());
}

#[test]
fn an_error_has_the_files_name_and_the_place() {
    let path = std::env::temp_dir().join(format!("tollgate-rules-{}.toml", std::process::id()));
    let told = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        let error = Rules::from_file(&path).expect_err("a bad file");
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string().replace(&path.display().to_string(), "FILE")
    };
    let good = fs::read_to_string(example()).expect("the example");
    let bad = good.replace("burst = 2_000 ", "burst = 0 ");
    assert_eq!(told(bad.as_bytes()), "FILE:9:9: rule \"api\": burst: 1 to 1000000000 tokens, not 0 (given)");
    assert_eq!(told(b"[rules.a]\nalgorithm = \"\xFF\""), "FILE:2:14: not UTF-8");
    assert_eq!(told(b""), "FILE:1:1: there are no rules; each is a table such as [rules.api]");
    fs::remove_file(&path).expect("removed");
}
