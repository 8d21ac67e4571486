use tidegate::{Running, Server};
use tidegate_services::Echo;

use super::*;

fn server() -> Running {
    let server = Server::new(Echo).model(Model::Poll);
    server.bind("127.0.0.1:0").unwrap().start().unwrap()
}

fn plan(target: impl Into<Endpoint>) -> PingPlan {
    PingPlan {
        target: target.into(),
        size: 64,
        connections: 1,
        amount: Amount::Requests(100),
        warm_up: Duration::ZERO,
        wait: Wait::Block,
        fast_path: None,
        model: Some(Model::Poll),
        timeout: Duration::from_secs(30),
        server_pid: None,
    }
}

#[test]
fn every_size_comes_back_right_and_is_counted_once() {
    let server = server();
    for (size, connections) in [(8, 1), (64, 3), (4097, 2), (300_000, 1)] {
        let plan = PingPlan { size, connections, amount: Amount::Requests(90), ..plan(server.local_addr()) };
        let before = server.stats().bytes_in;
        let report = ping(&AtomicBool::new(false), &plan, |_| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.round_trips, report.connected), (90, connections));
        // Those that went before the others were connected are not among the 90.
        assert!(server.stats().bytes_in - before >= 90 * size as u64, "some of them are counted twice");
        assert!(report.round_trip.min_us > 0.0 && report.round_trip.min_us <= report.round_trip.max_us);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_message_larger_than_all_buffers_on_its_way_comes_back() {
    let fast_path = Some(FastPath::default().ring_bytes(4096));
    let policy = Policy::default().fast_path(fast_path);
    let server = Server::new(Echo).model(Model::Poll).policy(policy);
    let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let plan = plan(server.local_addr().clone());
    let report = ping(
        &AtomicBool::new(false),
        &PingPlan { size: 1 << 20, amount: Amount::Requests(3), fast_path, ..plan },
        |_| (),
    )
    .unwrap();
    assert!(report.is_clean() && report.fast_paths == 1, "{report:?}");
}

#[test]
fn a_target_that_is_not_there_is_said() {
    let gone = server().local_addr().clone(); // it has stopped again
    let report = ping(&AtomicBool::new(false), &plan(gone), |_| ()).unwrap();
    assert!(!report.is_clean());
    assert!(report.first_error.unwrap().contains("nothing listens there"));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let plan = plan(std::net::SocketAddr::from(([127, 0, 0, 1], 9)));
    assert!(PingPlan { size: 7, ..plan.clone() }.check().is_err());
    assert!(PingPlan { connections: 0, ..plan.clone() }.check().is_err());
    assert!(PingPlan { connections: 3, amount: Amount::Requests(2), ..plan }.check().is_err());
}

#[test]
fn jitter_below_a_percentile_leaves_the_outliers_out() {
    let mut nanos = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    for n in 0..2000 {
        nanos.record(100 + n % 2 * 10).unwrap();
    }
    nanos.record(50_000_000).unwrap();
    let trip = RoundTrip::of(&nanos);
    assert!((trip.jitter.below_p99_9_us - 0.005).abs() < 0.0005, "{trip:?}");
    assert!(trip.jitter.all_us > 100.0, "{trip:?}");
}
