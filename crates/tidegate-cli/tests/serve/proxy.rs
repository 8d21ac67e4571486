//! `--proxy-protocol`.

use std::io::{ErrorKind, Read, Write};

use tidegate::Model;

use crate::kit::Server;

#[test]
fn behind_a_proxy_every_connection_brings_a_header_on_every_model() {
    for model in Model::available() {
        for what in ["http", "echo"] {
            let server = Server::start(&[
                "serve",
                what,
                "--proxy-protocol",
                "--model",
                model.name(),
                "--listen",
                "127.0.0.1:0",
            ]);
            let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let mut stream = server.connect();
            stream
                .write_all(format!("PROXY TCP4 192.0.2.7 127.0.0.1 4660 80\r\n{request}").as_bytes())
                .unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            match what {
                "http" => assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{model}: {answer}"),
                _ => assert_eq!(answer, request, "{model}"),
            }
            let mut bare = server.connect();
            bare.write_all(request.as_bytes()).unwrap();
            let heard = bare.read_to_end(&mut Vec::new()).map_err(|e| e.kind()); // makes an interrupted call again
            assert_eq!(heard, Err(ErrorKind::ConnectionReset), "{what}, {model}");
        }
    }
}
