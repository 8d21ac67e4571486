//! Through real sockets, on every model.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::{CloseReason, Model, Policy, Server};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};

use crate::frames::{CLOSE, FIN, TEXT, UPGRADE, frame, server_frames, text};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn every_model_echoes_messages_and_closes_in_order() {
    for model in Model::available() {
        let limits = WebSocketLimits::default();
        let server = Server::new(WebSocket::new(EchoMessages, limits)).model(model).policy(Policy::default());
        let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let long = "tide".repeat(10_000);
        stream.write_all(UPGRADE.as_bytes()).unwrap();
        for part in
            [text(&long), text("end"), frame(FIN | CLOSE, 1001_u16.to_be_bytes())].concat().chunks(7777)
        {
            stream.write_all(part).unwrap();
        }
        let mut output = Vec::new();
        stream.read_to_end(&mut output).unwrap();
        let expected = [
            (FIN | TEXT, long.into_bytes()),
            (FIN | TEXT, b"end".to_vec()),
            (FIN | CLOSE, 1001_u16.to_be_bytes().to_vec()),
        ];
        assert!(server_frames(&output) == expected, "{model}");
        drop(stream);
        server.stop();
        assert_eq!(server.join().closed_by(CloseReason::Finished), 1, "{model}");
    }
}

#[test]
fn a_stop_is_said_with_1001_on_every_model() {
    for model in Model::available() {
        let server = Server::new(WebSocket::new(EchoMessages, WebSocketLimits::default())).model(model);
        let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(UPGRADE.as_bytes()).unwrap();
        stream.write_all(&text("tide")).unwrap();
        let mut output = Vec::new();
        while !output.ends_with(b"tide") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            output.push(byte[0]);
        }
        server.stop();
        stream.read_to_end(&mut output).unwrap();
        let frames = server_frames(&output);
        let (first, payload) = frames.last().unwrap();
        assert_eq!((*first, &payload[..2]), (FIN | CLOSE, &1001_u16.to_be_bytes()[..]), "{model}");
        assert_eq!(server.join().closed_by(CloseReason::Finished), 1, "{model}");
    }
}
