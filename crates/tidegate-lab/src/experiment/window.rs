//! A load whose window begins when all its connections are established, and what the server used in it.

use std::time::Duration;

use tidegate_load::Report;

use super::generator::Generator;
use super::{LoadResultFile, ServerProcess, TIMEOUT, check_it_lasted};
use crate::LabError;
use crate::process::{Process, shown};
use crate::sample::{Sampler, Usage};

/// Such a load.
pub(super) struct Windowed<'a> {
    pub(super) generator: Generator<'a>,
    /// Ended with the load.
    pub(super) server: ServerProcess,
    /// `echo` or `http`, the target, and the options that are its own.
    pub(super) args: Vec<String>,
    /// Its connections.
    pub(super) connections: usize,
    /// Its I/O threads, where a process of this machine carries it; `None` leaves them to it.
    pub(super) threads: Option<usize>,
    /// The length of the window; `None` until the load has ended.
    pub(super) length: Option<Duration>,
}

impl Windowed<'_> {
    /// Runs it. `within` is called in the middle of a window of known length, otherwise at its end.
    pub(super) fn run(self, within: impl FnOnce()) -> Result<(Usage, Report), LabError> {
        let Self { generator, mut server, args, connections, threads, length } = self;
        let file = LoadResultFile::new();
        let mut args = [vec!["load".to_owned()], args].concat();
        args.extend(["--json".to_owned(), file.path()]);
        args.extend(["--phases".to_owned(), "--tolerate-failures".to_owned()]);
        let (pid, threads) = (server.process.id().to_string(), threads.map(|threads| threads.to_string()));
        let own = ["--server-pid", &pid].into_iter().chain(threads.iter().flat_map(|n| ["--threads", n]));
        args.extend(generator.options(&own.collect::<Vec<_>>()));
        let name = shown(&args);
        let mut client = Process::start(generator.bench, &args)?;
        // They take their time if they are very many.
        let timeout = TIMEOUT + Duration::from_millis(connections as u64);
        client.wait_for_line("phase connected", timeout)?;
        client.wait_for_line("phase measuring", TIMEOUT)?;
        let mut sampler = Sampler::start(server.process.id(), server.port)?;
        match length {
            Some(length) => {
                std::thread::sleep(length / 2);
                within();
                std::thread::sleep(length / 2); // the load measures for as long, and waits for its last answers then
                sampler.end_window();
                client.wait_for_line("phase done", timeout)?;
            }
            None => {
                client.wait_for_line("phase done", timeout)?;
                sampler.end_window();
                within();
            }
        }
        let usage = sampler.stop();
        let load = file.read(&name)?; // written before it said so
        check_it_lasted(&mut server, Some(&load))?;
        // The server first: the side that closes first keeps the address pairs for a while (TIME_WAIT, RFC 9293,
        // section 3.4.1), and the load's ports are wanted again for the next row.
        drop(server);
        generator.end(client)?;
        if load.wrong > 0 {
            let why = load.first_error.unwrap_or_else(|| "bytes came back wrong".into());
            return Err(LabError::Process { what: name, why });
        }
        Ok((usage, load))
    }
}
