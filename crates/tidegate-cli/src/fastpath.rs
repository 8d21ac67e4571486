//! `tidegate fastpath`: the TCP connections that unchanged programs on this host have with one another go through a map
//! of sockets.

use std::path::PathBuf;

/// Options of `fastpath`.
#[derive(clap::Args)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "there is nothing to do with them"))]
pub struct Args {
    /// The control group (version 2) whose programs take part; made, and removed at the end, if it is not there
    /// [default: a new one].
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Connections in the map at most; further ones stay with TCP.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    connections: u32,
    /// A command to run in the group, for as long as it runs; its exit code is returned. Without one, this goes on
    /// until SIGINT or SIGTERM. Connections that are in the map then stay there until they end.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

#[cfg(target_os = "linux")]
pub use linux::{run, shared_memory, sockmap};
#[cfg(not(target_os = "linux"))]
pub use other::{run, shared_memory, sockmap};

#[cfg(target_os = "linux")]
mod linux {
    use std::process::{Child, Command, ExitCode, ExitStatus};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use anyhow::{Context, anyhow};
    use tidegate::fastpath::layout::Rings;
    use tidegate::fastpath::sockmap::{Group, Sockmap};
    use tidegate::policy::FastPath;
    use tidegate::system as sys;

    use super::Args;
    use crate::log::note;
    use crate::out::say;
    use crate::system::signals;
    use crate::{Failure, Outcome};

    /// How often signals and the command are looked at.
    const LOOK: Duration = Duration::from_millis(50);

    /// Runs the command.
    pub fn run(args: Args) -> Outcome {
        let stopping = signals::flag_of_the_first()?;
        // In this order: what is refused for lack of rights leaves no group behind.
        let mut map = Sockmap::load(args.connections).map_err(|e| Failure::Run(e.into()))?;
        let group = match &args.cgroup {
            Some(path) => Group::at(path),
            None => Group::own(),
        };
        let group = group.map_err(|e| Failure::Run(e.into()))?;
        map.attach(&group).map_err(|e| Failure::Run(e.into()))?;
        let Some((program, rest)) = args.command.split_first() else {
            say!("fast path on {}", group.path().display())?;
            note("fast-path", "a program takes part if it is started in the group: echo $$ > …/cgroup.procs");
            while !stopping.load(SeqCst) {
                std::thread::sleep(LOOK);
            }
            summary(&map)?;
            return Ok(ExitCode::SUCCESS);
        };
        let mut command = Command::new(program);
        command.args(rest);
        let processes = group.processes().context("the control group takes nobody")?;
        sys::start_in_group(&mut command, processes).context("no command can start in a control group")?;
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()));
        let status = wait(child.map_err(Failure::Usage)?, &stopping)?;
        summary(&map)?;
        code(status)
    }

    /// Whether memory can be shared here.
    pub fn shared_memory() -> Result<(), String> {
        let least = FastPath::default().ring_bytes;
        Rings::create(least)
            .map(drop)
            .map_err(|e| format!("no memory that can be shared (memfd_create): {e}"))
    }

    /// Whether there can be a map of sockets here. Tried with a control group, which is removed again.
    pub fn sockmap() -> Result<(), String> {
        let mut map = Sockmap::load(1).map_err(|e| e.to_string())?;
        Group::own().and_then(|group| map.attach(&group)).map_err(|e| e.to_string())
    }

    /// Until the command has ended. A signal is passed on to it, once.
    fn wait(mut child: Child, stopping: &AtomicBool) -> anyhow::Result<ExitStatus> {
        let mut told = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if stopping.load(SeqCst) && !std::mem::replace(&mut told, true) {
                let _ = sys::ask_to_end(child.id()); // it may have ended just now
            }
            std::thread::sleep(LOOK);
        }
    }

    fn summary(map: &Sockmap) -> anyhow::Result<()> {
        let carried = map.carried()?;
        let text = format!("{} messages went by the map, {} by TCP", carried.by_map, carried.by_tcp);
        note("fast-path", &text);
        Ok(())
    }

    /// As a shell has it: 128 and the number of the signal.
    fn code(status: ExitStatus) -> Outcome {
        use std::os::unix::process::ExitStatusExt as _;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        let code = code.and_then(|code| u8::try_from(code).ok());
        code.map(ExitCode::from).ok_or_else(|| Failure::Run(anyhow!("the command ended as {status}")))
    }
}

/// There are no maps of sockets.
#[cfg(not(target_os = "linux"))]
mod other {
    use anyhow::anyhow;

    use super::Args;
    use crate::{Failure, Outcome};

    pub fn shared_memory() -> Result<(), String> {
        Err("it is for Linux".into())
    }

    pub fn sockmap() -> Result<(), String> {
        Err("it is for Linux".into())
    }

    pub fn run(_: Args) -> Outcome {
        Err(Failure::Usage(anyhow!("fastpath is for Linux: this system has no maps of sockets")))
    }
}
