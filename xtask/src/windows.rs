//! `cargo xtask windows`: the workspace on Windows, under Wine.
//!
//! On Windows itself plain `cargo test` does the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

const TARGET: &str = "x86_64-pc-windows-gnu";
const LINKER: &str = "x86_64-w64-mingw32-gcc-posix";

/// Packages whose tests run there. Those of the command itself speak with signals and `/proc`.
const PACKAGES: [&str; 4] = ["tidegate-os", "tidegate", "tidegate-async", "tidegate-services"];

/// The case that takes Wine minutes (docs/models/windows.md says why): the whole run has it, alone and at its end.
const LONGEST: &str = "thousands_of_connections_are_served::tokio";

/// How much longer than elsewhere a case may take, because every system call goes through one server process there.
const TIMEOUT: u32 = 10;
const TIMEOUT_WITH_THE_LONGEST: u32 = 60;

/// What async code runs on in a brief run: the models that Linux has not.
const OF_WINDOWS: &str = "iocp,overlapped,event-select,async-select";

/// How a script says that what it needs is missing.
const LEFT_OUT: i32 = 77;

/// Connections of a row of the bench: those of the source would take Wine an hour.
const BENCH_CONNECTIONS: &str = "200";

/// Options of `windows`.
#[derive(clap::Args)]
pub struct Args {
    /// Only say what is missing.
    #[arg(long)]
    check: bool,
    /// Only build and run tests whose name contains this.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only the wrappers, the library's own tests, async code, what every model promises about datagrams and the
    /// loopback fast path, and the conformance suite but for its longest case and for models that also run on Linux
    /// (pool, poll, tokio).
    #[arg(long, conflicts_with = "only")]
    brief: bool,
    /// Only the programs of examples/apps, on iocp and event-select, against clients of this system.
    #[arg(long, conflicts_with_all = ["only", "brief"])]
    apps: bool,
    /// A client that is missing for that fails.
    #[arg(long, requires = "apps")]
    strict: bool,
    /// Leave bench and tune out.
    #[arg(long)]
    no_bench: bool,
}

/// Runs the chore.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let missing = missing();
    ensure!(missing.is_empty(), "missing here:\n  {}", missing.join("\n  "));
    println!("everything that is needed is here");
    if args.check {
        return Ok(());
    }
    let wine = Wine::prepare(args.brief)?;
    if args.apps {
        return wine.apps(if args.strict { &["--strict"] } else { &[] });
    }
    if args.brief {
        wine.test(&["-p", "tidegate-os", "--lib", "--tests"], &[], TIMEOUT)?;
        wine.test(&["-p", "tidegate-async", "--lib", "--tests"], &[], TIMEOUT)?;
        wine.test(&["-p", "tidegate", "--lib", "--test", "loopback", "--test", "datagrams"], &[], TIMEOUT)?;
        let conformance = ["-p", "tidegate", "--test", "conformance"];
        let skipped = [LONGEST, "::pool", "::poll", "::tokio"].map(|name| ["--skip", name]);
        wine.test(&conformance, skipped.as_flattened(), TIMEOUT)?;
    } else if let Some(name) = args.only.as_deref() {
        wine.test(&everything(), &[name], TIMEOUT_WITH_THE_LONGEST)?;
    } else {
        wine.test(&everything(), &["--skip", LONGEST], TIMEOUT)?;
        let longest = [LONGEST, "--exact"];
        wine.test(&["-p", "tidegate", "--test", "conformance"], &longest, TIMEOUT_WITH_THE_LONGEST)?;
        wine.apps(&["--all"])?;
    }
    if !args.no_bench && args.only.is_none() {
        wine.bench()?;
    }
    Ok(())
}

/// What of the workspace is tested there, as options of cargo.
fn everything() -> Vec<&'static str> {
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    packages.chain(["--lib", "--tests"]).collect()
}

/// What has to be installed, and how.
fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !has_standard_library() {
        missing.push(format!("Rust's standard library for Windows: rustup target add {TARGET}"));
    }
    for (program, package) in
        [(LINKER, "g++-mingw-w64-x86-64-posix"), ("wine", "wine wine64"), ("wineserver", "wine wine64")]
    {
        if find(program).is_none() {
            missing.push(format!("{program}: on Debian, apt-get install --no-install-recommends {package}"));
        }
    }
    missing
}

fn has_standard_library() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    printed.is_ok_and(|out| Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
}

/// A program on the search path, or where Debian keeps Wine's own.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/lib/wine".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A Wine of its own, below the folder of what is built.
struct Wine {
    prefix: PathBuf,
    target: PathBuf,
    brief: bool,
}

impl Wine {
    /// Makes it, unless it is there from last time.
    fn prepare(brief: bool) -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
        std::fs::create_dir_all(&target)?;
        let target = target.canonicalize()?;
        let wine = Self { prefix: target.join("wine"), target, brief };
        let system = wine.prefix.join("drive_c/windows/system32");
        if !system.is_dir() {
            println!("making a Wine prefix in {}", wine.prefix.display());
            wine.quiet("wine").args(["wineboot", "--init"]).run()?;
        }
        ensure!(system.is_dir(), "wineboot made no {}", system.display());
        let random = system.join("bcryptprimitives.dll");
        if !random.is_file() {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bcryptprimitives.c");
            Command::new(LINKER)
                .args(["-shared", "-O2", "-o"])
                .args([&random, &source])
                .arg("-ladvapi32")
                .run()?;
        }
        Ok(wine)
    }

    /// A program with the surroundings of this Wine, which says only what matters.
    fn quiet(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let linker = "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER";
        let runner = "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER";
        command.env("WINEPREFIX", &self.prefix).env("WINEDEBUG", "-all");
        command.env(linker, LINKER).env(runner, "wine");
        command
    }

    fn cargo(&self) -> Command {
        let mut cargo = self.quiet(env!("CARGO"));
        cargo.env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// Runs tests; all of them, or those with such names.
    fn test(&self, of: &[&str], names: &[&str], timeout: u32) -> anyhow::Result<()> {
        let mut cargo = self.cargo();
        cargo.env("TIDEGATE_PATIENCE", timeout.to_string());
        if self.brief {
            cargo.env("TIDEGATE_MODELS", OF_WINDOWS);
        }
        cargo.args(["test", "--target", TARGET, "--no-fail-fast"]).args(of).arg("--").args(names);
        cargo.run()
    }

    /// The programs of examples/apps, against clients of this system.
    fn apps(&self, options: &[&str]) -> anyhow::Result<()> {
        let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/apps/check");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = self.quiet(&check.to_string_lossy());
        command.env("CARGO_TARGET_DIR", &self.target).env("PATH", format!("{path}:/usr/lib/wine"));
        command.arg("--wine").args(options);
        println!("$ {command:?}");
        let status = command.stdin(Stdio::null()).status().context("cannot run examples/apps/check")?;
        if status.code() == Some(LEFT_OUT) {
            return Ok(()); // it has said why
        }
        ensure!(status.success(), "examples/apps/check: {status}");
        Ok(())
    }

    fn bench(&self) -> anyhow::Result<()> {
        // As the tests are built, whose parts it shares: what is measured under Wine is Wine.
        self.cargo().args(["build", "--target", TARGET, "--profile", "test", "-p", "tidegate-cli"]).run()?;
        let program = self.target.join(TARGET).join("debug/tidegate.exe");
        let out = self.target.join("windows-bench");
        self.quiet("wine").arg(&program).arg("doctor").run()?;
        // The answer with few connections and requests: that it ends well, and not what it says.
        let answer =
            ["bench", "--quick", "--connections", "8", "--requests", "200", "--repeats", "1", "--out"];
        self.quiet("wine").arg(&program).args(answer).arg(&out).run()?;
        let models = ["models", "--connections", BENCH_CONNECTIONS];
        let latency = ["latency", "--models", "iocp"];
        for experiment in [models.as_slice(), &latency] {
            let bench = ["bench", "--quick", "--repeats", "1", "--out"];
            self.quiet("wine").arg(&program).args(bench).arg(&out).args(experiment).run()?;
        }
        // What it finds says nothing of Windows either; the knobs of a loop that Linux has not are turned.
        let tune = ["tune", "--goal", "connections", "--quick", "--budget", "1h", "--models", "iocp"];
        let tune = [&tune[..], &["-c", "3", "--caps", "3"]].concat();
        let settings = self.target.join("windows-tune.toml");
        self.quiet("wine").arg(&program).args(tune).args(["--force", "--out"]).arg(&settings).run()
    }
}

/// Says what it runs, and fails if that does.
trait Run {
    fn run(&mut self) -> anyhow::Result<()>;
}

impl Run for Command {
    fn run(&mut self) -> anyhow::Result<()> {
        println!("$ {self:?}");
        let status = self.stdin(Stdio::null()).status().with_context(|| format!("cannot run {self:?}"))?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    }
}
