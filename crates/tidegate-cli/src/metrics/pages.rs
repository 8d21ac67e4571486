//! The listeners of `--metrics`: one for each address, shared by servers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::system::descriptor::OwnedFd;
use tidegate::{Running, StartError};
use tidegate_services::http::access::Host;

use super::board::{Board, Entry};
use crate::label::Label;
use crate::log::note;

/// All pages of this process.
#[derive(Default)]
pub struct MetricsPages(Vec<MetricsPage>);

struct MetricsPage {
    addr: SocketAddr,
    entries: Vec<Entry>,
    /// Accepted host names.
    hosts: Vec<Host>,
    inherited: Option<OwnedFd>,
    /// Once it is open; and a second descriptor of its socket, for successors.
    open: Option<(Running, io::Result<OwnedFd>)>,
}

impl MetricsPages {
    /// Registers a server at this address; its listening socket may have been inherited.
    pub fn add(
        &mut self,
        addr: SocketAddr,
        hosts: &[Host],
        inherited: Option<OwnedFd>,
        label: &Label,
    ) -> Entry {
        let entry = Entry::of(label);
        match self.0.iter_mut().find(|page| page.addr == addr) {
            Some(page) => {
                page.inherited = page.inherited.take().or(inherited);
                page.entries.push(entry.clone());
                page.hosts.extend_from_slice(hosts);
            }
            None => {
                let (entries, hosts) = (vec![entry.clone()], hosts.to_vec());
                self.0.push(MetricsPage { addr, entries, hosts, inherited, open: None });
            }
        }
        entry
    }

    /// Starts serving.
    pub fn open(&mut self) -> Result<(), StartError> {
        for page in &mut self.0 {
            let board = Arc::new(Board(page.entries.clone()));
            let open = super::serve(page.addr, page.inherited.take(), board, page.hosts.clone())?;
            note("metrics", &format!("metrics on http://{}/metrics", open.0.local_addr()));
            page.open = Some(open);
        }
        Ok(())
    }

    /// A descriptor of the listening socket at this address, for a successor.
    pub fn share(&self, addr: Option<SocketAddr>) -> Option<io::Result<OwnedFd>> {
        let page = self.0.iter().find(|page| Some(page.addr) == addr)?;
        let (_, shared) = page.open.as_ref()?;
        Some(match shared {
            Ok(socket) => socket.try_clone(),
            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
        })
    }
}
