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
