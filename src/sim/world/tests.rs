use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_world_is_the_same_run_each_time() {
    let world = World::builder()
        .instances(4)
        .rule(Rule::token_bucket(5_000, SECOND).burst(500))
        .traffic(Traffic::poisson(8_000.0).waits(0.5).costs(&[1, 1, 3]).zipf(50, 1.0))
        .network(Network::default().loss(0.02).repeat(0.02).slow(0.02, SECOND))
        .faults(Faults::none().crashes(SECOND, SECOND / 4).freezes(SECOND, SECOND / 4).stalls(SECOND, SECOND / 4))
        .span(5 * SECOND)
        .seed(11)
        .trace()
        .build()
        .expect("a fair world");
    let report = world.run();
    assert_eq!(report, world.run());
    assert!(report.holds(), "{report}");
    assert!(report.admitted() > 20_000, "{report}");
}

#[test]
fn a_world_that_makes_no_sense_is_refused_and_told_why() {
    let rule = || Rule::token_bucket(10, SECOND);
    let stray = |fault| World::builder().instances(2).rule(rule()).faults(Faults::none().at(SECOND / 2, fault));
    let table = [
        (World::builder(), "rule: "),
        (World::builder().instances(0).rule(rule()), "instances: "),
        (World::builder().rule(rule().burst(0)), "rule \"rule0\": burst: "),
        (stray(Fault::Crash { instance: 2, down: SECOND }), "faults: instance 2 is not there: 0 to 1"),
        (stray(Fault::Cut { instance: Some(3), span: SECOND }), "faults: instance 3 "),
        (World::builder().rule(Rule::fixed_window(10, SECOND)).audit(), "audit: "),
    ];
    for (builder, words) in table {
        let error = builder.build().expect_err(words);
        assert!(error.to_string().starts_with(words), "{error}, not {words}");
    }
    assert!(stray(Fault::Freeze { instance: 1, span: SECOND }).build().is_ok());
    assert!(stray(Fault::Cut { instance: None, span: SECOND }).build().is_ok());
}
