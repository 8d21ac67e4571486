//! `tidegate fastpath`: accelerates local TCP between unmodified programs (eBPF sockmap).

use std::path::PathBuf;

use crate::limits::count_in;

/// Options of `fastpath`.
#[derive(clap::Args)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "unused on other systems"))]
pub struct Args {
    /// The control group (version 2) whose processes use the sockmap; created, and removed at the end, if it does not
    /// exist [default: a new one].
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Maximum connections in the map; further ones use plain TCP.
    #[arg(long, value_name = "COUNT", default_value_t = 16_384, value_parser = count_in::<u32>(1..=1 << 20))]
    connections: u32,
    /// A command to run in the group; its exit code is returned. Without one, runs until SIGINT or SIGTERM. Connections
    /// already in the map stay there until they end.
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
    use tidegate::fastpath::sockmap::{ControlGroup, Sockmap};
    use tidegate::policy::FastPath;

    use super::Args;
    use crate::log::note;
    use crate::out::say;
    use crate::system::signals;
    use crate::{CommandResult, Failure};

    /// How often signals and the command are checked.
    const LOOK: Duration = Duration::from_millis(50);

    /// Runs the command.
    pub fn run(args: Args) -> CommandResult {
        let stopping = signals::flag_of_the_first()?;
        // In this order: a permission error leaves no group behind.
        let mut map = Sockmap::load(args.connections).map_err(|e| Failure::Run(e.into()))?;
        let group = match &args.cgroup {
            Some(path) => ControlGroup::at(path),
            None => ControlGroup::own(),
        };
        let group = group.map_err(|e| Failure::Run(e.into()))?;
        map.attach(&group).map_err(|e| Failure::Run(e.into()))?;
        let Some((program, rest)) = args.command.split_first() else {
            say!("fast path on {}", group.path().display())?;
            note("fast-path", "programs started in the group use it: echo $$ > …/cgroup.procs");
            while !stopping.load(SeqCst) {
                std::thread::sleep(LOOK);
            }
            summary(&map)?;
            return Ok(ExitCode::SUCCESS);
        };
        let mut command = Command::new(program);
        command.args(rest);
        let processes = group.processes().context("cannot add processes to the control group")?;
        tidegate_os::process::start_in_group(&mut command, processes)
            .context("cannot start a command in a control group")?;
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()));
        let status = wait(child.map_err(Failure::Usage)?, &stopping)?;
        summary(&map)?;
        code(status)
    }

    /// Whether memory can be shared here.
    pub fn shared_memory() -> Result<(), String> {
        let least = FastPath::default().ring_bytes;
        Rings::create(least).map(drop).map_err(|e| format!("cannot create shared memory (memfd_create): {e}"))
    }

    /// Whether a sockmap can be created here. Tested with a control group, which is removed again.
    pub fn sockmap() -> Result<(), String> {
        let mut map = Sockmap::load(1).map_err(|e| e.to_string())?;
        ControlGroup::own().and_then(|group| map.attach(&group)).map_err(|e| e.to_string())
    }

    /// Waits until the command has ended; forwards a signal to it, once.
    fn wait(mut child: Child, stopping: &AtomicBool) -> anyhow::Result<ExitStatus> {
        let mut reported = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if stopping.load(SeqCst) && !std::mem::replace(&mut reported, true) {
                let _ = tidegate_os::process::ask_to_end(child.id()); // it may have ended just now
            }
            std::thread::sleep(LOOK);
        }
    }

    fn summary(map: &Sockmap) -> anyhow::Result<()> {
        let carried = map.carried()?;
        let text = format!("{} messages by sockmap, {} by TCP", carried.by_map, carried.by_tcp);
        note("fast-path", &text);
        Ok(())
    }

    /// As shells do: 128 plus the signal number.
    fn code(status: ExitStatus) -> CommandResult {
        use std::os::unix::process::ExitStatusExt as _;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        let code = code.and_then(|code| u8::try_from(code).ok());
        code.map(ExitCode::from).ok_or_else(|| Failure::Run(anyhow!("the command ended with {status}")))
    }
}

/// There are no maps of sockets.
#[cfg(not(target_os = "linux"))]
mod other {
    use anyhow::anyhow;

    use super::Args;
    use crate::{CommandResult, Failure};

    pub fn shared_memory() -> Result<(), String> {
        Err("it requires Linux".into())
    }

    pub fn sockmap() -> Result<(), String> {
        Err("it requires Linux".into())
    }

    pub fn run(_: Args) -> CommandResult {
        Err(Failure::Usage(anyhow!("fastpath requires Linux: this system has no sockmap")))
    }
}
