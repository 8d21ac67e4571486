//! The other end of a connection without a network.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, Error};

use crate::wire::TestConnection;

/// A client that speaks TLS with a [`TestConnection`].
pub struct TestClient {
    pub tls: ClientConnection,
    /// What was said to it.
    pub heard: Vec<u8>,
    /// The server has said that it ends.
    pub clean_end: bool,
    /// Bytes that it sends at a time.
    pub step: usize,
}

impl TestClient {
    pub fn new(config: &Arc<ClientConfig>) -> Self {
        let tls = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
        Self { tls, heard: Vec::new(), clean_end: false, step: usize::MAX }
    }

    /// Lets both speak until neither has anything to say.
    pub fn talk(&mut self, wire: &mut TestConnection) -> Result<(), Error> {
        loop {
            let said = self.says();
            said.chunks(self.step).for_each(|piece| wire.send(piece));
            let answer = std::mem::take(&mut wire.output);
            if said.is_empty() && answer.is_empty() {
                return Ok(());
            }
            self.hears(&answer)?;
        }
    }

    /// Hears what there is, and says nothing.
    pub fn talk_once(&mut self, wire: &mut TestConnection) {
        let answer = std::mem::take(&mut wire.output);
        self.hears(&answer).unwrap();
    }

    /// What it has to send.
    pub fn says(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut said).unwrap();
        }
        said
    }

    /// Takes in what was said to it.
    pub fn hears(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).unwrap();
            self.tls.process_new_packets()?;
            match self.tls.reader().read_to_end(&mut self.heard) {
                Ok(_) => self.clean_end = true,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
        Ok(())
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.tls.set_buffer_limit(None);
        self.tls.writer().write_all(bytes).unwrap();
    }

    /// Said, sent and answered.
    pub fn exchange(&mut self, bytes: &[u8], wire: &mut TestConnection) -> Vec<u8> {
        self.say(bytes);
        self.talk(wire).unwrap();
        std::mem::take(&mut self.heard)
    }
}
