//! Memory that a crowd had goes back to the system when the crowd has left.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use tidegate_sys::process::held;

use crate::kit::{DEADLINE, Server};

const CLIENTS: usize = 500;
/// What the flood has to be worth before it ends, beside what an idle server has.
const FLOOD_BYTES: u64 = 20 << 20;
/// What may be left of it, with the pool of receive buffers that `uring` has.
const LEFT_BYTES: u64 = 8 << 20;

/// Sends without reading until the server has that much memory.
fn flood(server: &Server, enough: u64) {
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let client = server.connect();
            rustix::net::sockopt::set_socket_recv_buffer_size(&client, 4096).unwrap();
            client.set_nonblocking(true).unwrap();
            client
        })
        .collect();
    let (start, piece) = (Instant::now(), vec![7; 64 << 10]);
    while held(server.pid()).unwrap().user_bytes < enough {
        let held = held(server.pid()).unwrap().user_bytes;
        assert!(start.elapsed() < DEADLINE, "a flood came to {held} bytes only");
        for mut client in &clients {
            match client.write(&piece) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => panic!("the server closed a connection: {e}"),
            }
        }
    }
}

fn gives_back(model: &str) {
    let few = ["--threads", "1", "--socket-send-buffer", "4096"];
    let few = if ["blocking", "pool"].contains(&model) { &few[2..] } else { &few };
    let mut args = vec!["serve", "echo", "--listen", "127.0.0.1:0", "--model", model];
    args.extend(few);
    let server = Server::start(&args);
    let mut first = server.connect();
    first.write_all(b"hello").unwrap();
    first.read_exact(&mut [0; 5]).unwrap();
    let idle = held(server.pid()).unwrap().user_bytes;
    flood(&server, idle + FLOOD_BYTES);
    let start = Instant::now();
    loop {
        let now = held(server.pid()).unwrap().user_bytes;
        assert!(now > 0, "{model} has ended");
        if now <= idle + LEFT_BYTES {
            return;
        }
        // Before the watchdog ends the server.
        assert!(start.elapsed() < DEADLINE / 2, "{model} had {idle} bytes, and keeps {now} of a flood");
        std::thread::yield_now();
    }
}

#[test]
fn the_memory_of_a_flood_is_given_back_on_every_model() {
    for model in tidegate::Model::available() {
        gives_back(&model.to_string());
    }
}
