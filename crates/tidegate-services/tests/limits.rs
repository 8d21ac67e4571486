//! Limits of services are checked where a server is bound, whether or not the application has checked them.

use tidegate::{Policy, Server, Service, StartError};
use tidegate_services::http::{Access, Generated, Generates, Made};
use tidegate_services::layers::{ProxyLimits, ProxyProtocol};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};
use tidegate_services::{Chat, ChatLimits, Echo, Files, FilesLimits, FilesOptions, Http, HttpLimits, Page};

/// What `bind` says.
#[track_caller]
fn refused(service: impl Service, policy: Policy, names: &[&str]) {
    let Err(StartError::Policy(error)) = Server::new(service).policy(policy).bind("127.0.0.1:0") else {
        panic!("not refused for its limits: {names:?}");
    };
    let text = error.to_string();
    assert!(names.iter().all(|name| text.contains(&format!("`{name}`"))), "{text}: {names:?}");
}

#[track_caller]
fn bound(service: impl Service, policy: Policy) {
    let bound = Server::new(service).policy(policy).bind("127.0.0.1:0");
    assert!(bound.is_ok(), "{bound:?}");
}

fn files(limits: FilesLimits) -> Files {
    let options = FilesOptions { limits, ..FilesOptions::default() };
    Files::new(&std::env::temp_dir(), options, HttpLimits::default()).unwrap()
}

struct Nothing;

impl Generates for Nothing {
    fn page(&self, _: &str) -> Made {
        Made::line("200 OK", "")
    }
}

/// Room for so many bytes of input.
fn input(bytes: usize) -> Policy {
    Policy::default().input_bytes(bytes)
}

#[test]
fn a_head_has_to_fit_into_the_input() {
    let both = ["head_bytes", "input_bytes"];
    let page = |head_bytes| Http::new(Page::default(), HttpLimits::default().head_bytes(head_bytes));
    refused(Http::default(), input(8 << 10), &both);
    bound(page(8 << 10), input(8 << 10));
    refused(page(0), Policy::default(), &["head_bytes"]);
    refused(Generated::new(Nothing, HttpLimits::default(), Access::default()), input(8 << 10), &both);
    refused(files(FilesLimits::default()), input(8 << 10), &both);
    refused(files(FilesLimits::default()).http2().unwrap(), input(8 << 10), &both);
    refused(
        tidegate_services::http::http2(Page::default(), HttpLimits::default()).unwrap(),
        input(8 << 10),
        &both,
    );
}

#[test]
fn connections_may_be_fewer_than_those_above_which_all_are_answered_busy() {
    let limits = FilesLimits::default().busy_above(Some(100));
    let few = Policy::default().max_connections(100);
    assert!(limits.check(&few).is_err());
    bound(files(limits), few);
}

#[test]
fn a_message_has_to_fit_into_the_input() {
    let echo = || WebSocket::new(EchoMessages, WebSocketLimits::default().message_bytes(20_000));
    refused(echo(), input(20_000), &["websocket.message_bytes", "input_bytes"]);
    bound(echo(), input(20_256));
    let chat = || Chat::new(ChatLimits::default());
    refused(chat(), input(4_000), &["input_bytes"]);
    bound(chat(), Policy::default());
}

#[test]
fn a_layer_checks_itself_and_what_is_inside() {
    let layer =
        |header_bytes| ProxyProtocol::new(Http::default(), ProxyLimits::default().header_bytes(header_bytes));
    refused(layer(20_000), input(18_000), &["proxy_protocol.header_bytes", "input_bytes"]);
    refused(layer(1_000), input(8 << 10), &["head_bytes", "input_bytes"]);
    bound(layer(1_000), Policy::default());
    refused(std::sync::Arc::new(Http::default()), input(8 << 10), &["head_bytes"]);
    bound(Echo, input(1));
}
