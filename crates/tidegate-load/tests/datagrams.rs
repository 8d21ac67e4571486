//! The verdict on a load of datagrams is that of the time in which it sends.
#![cfg(target_os = "linux")]

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use tidegate::DatagramPath;
use tidegate_load::{Amount, Expect, Report, UdpPlan, run_udp};

/// A flow that sends all the time, to a socket that nobody reads.
fn busy_flow(expect: Expect, timeout: Duration) -> Report {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let plan = UdpPlan {
        target: receiver.local_addr().unwrap(),
        path: DatagramPath::Plain,
        size: 64,
        flows: 1,
        expect,
        amount: Amount::Time(Duration::from_millis(300)),
        rate: Some(1e9),
        timeout,
        batch: 1,
        segments: 1,
        socket_receive_buffer: None,
        server_pid: Some(std::process::id()),
    };
    run_udp(&Arc::default(), &plan, |_| {}).unwrap()
}

#[test]
fn the_thread_of_a_flow_is_seen_although_it_has_ended() {
    let report = busy_flow(Expect::Nothing, Duration::ZERO);
    let evidence = report.verdict.unwrap().evidence;
    // It ran, or waited for a processor, all the time.
    assert!(evidence.generator.unwrap().wanted() > 0.5, "{evidence:?}");
    assert!(report.server_cpu_s.unwrap() > 0.0);
}

#[test]
fn the_wait_for_lost_answers_is_no_rest_of_generator_or_server() {
    let report = busy_flow(Expect::Echo { window: 1 }, Duration::from_secs(4));
    assert_eq!(report.requests, 0);
    let evidence = report.verdict.unwrap().evidence;
    // The server, which is this process, is looked at by another thread, which may be late; not as late as the answers.
    for (share, least) in [(evidence.generator, 0.5), (evidence.server, 0.2)] {
        assert!(share.unwrap().wanted() > least, "{evidence:?}");
    }
}
