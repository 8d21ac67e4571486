//! A load whose window begins when all its connections are established, and what the server used in it.

use std::time::Duration;

use tidegate_load::Report;

use super::generator::Generator;
use super::round::Length;
use super::{LoadResultFile, ServerProcess, TIMEOUT, check_it_lasted};
use crate::LabError;
use crate::process::{Process, shown};
use crate::sample::{Sampler, Usage};

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowLength {
    /// As long as this.
    Fixed(Duration),
    /// Until the load has ended, which takes about this long.
    Expected(Duration),
}

impl WindowLength {
    /// How long a load with so many connections may take until its window has ended. They take their time if they are
    /// very many.
    fn limit(self, connections: usize) -> Duration {
        let (Self::Fixed(time) | Self::Expected(time)) = self;
        Length::Time(time).limit() + opening(connections)
    }
}

/// How long it may take at most to open so many connections.
fn opening(connections: usize) -> Duration {
    Duration::from_millis(connections as u64)
}

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
    pub(super) length: WindowLength,
}

impl Windowed<'_> {
    /// Runs it. `within` is called in the middle of a window of fixed length, otherwise at its end.
    pub(super) fn run(self, within: impl FnOnce()) -> Result<(Usage, Report), LabError> {
        let Self { generator, mut server, args, connections, threads, length } = self;
        let file = LoadResultFile::new()?;
        let mut args = [vec!["load".to_owned()], args].concat();
        args.extend(["--json".to_owned(), file.path()]);
        args.extend(["--phases".to_owned(), "--tolerate-failures".to_owned()]);
        let (pid, threads) = (server.process.id().to_string(), threads.map(|threads| threads.to_string()));
        let own = ["--server-pid", &pid].into_iter().chain(threads.iter().flat_map(|n| ["--threads", n]));
        args.extend(generator.options(&own.collect::<Vec<_>>()));
        let name = shown(&args);
        let mut client = Process::start(generator.bench, &args)?;
        let limit = length.limit(connections);
        client.wait_for_line("phase connected", TIMEOUT + opening(connections))?;
        client.wait_for_line("phase measuring", TIMEOUT)?;
        let mut sampler = Sampler::start(server.process.id(), server.port)?;
        match length {
            WindowLength::Fixed(length) => {
                std::thread::sleep(length / 2);
                within();
                std::thread::sleep(length / 2); // the load measures for as long, and waits for its last answers then
                sampler.end_window();
                client.wait_for_line("phase done", limit)?;
            }
            WindowLength::Expected(_) => {
                client.wait_for_line("phase done", limit)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_take_longer_than_expected_and_connections_have_their_time_besides() {
        let time = Duration::from_secs(1_000);
        for length in [WindowLength::Fixed(time), WindowLength::Expected(time)] {
            assert_eq!(length.limit(50_000), time + TIMEOUT + Duration::from_secs(50));
        }
    }
}
