//! `tidegate serve`: one service or, from a file, several, in one process.

mod chat;
mod echo;
mod files;
mod how;
mod http;
mod nodes;
mod passed;
mod process;
mod processors;
mod proxy;
mod stage;
mod stream;
mod udp;

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Subcommand;

use crate::label::{self, Label};
use crate::limits::{OptionSource, in_users_words};
use crate::{CommandResult, Failure};
use how::ServerCommon;
use stage::PlannedServer;

/// Options of `serve`.
#[derive(clap::Args)]
pub struct Args {
    /// Read service and options from this file (docs/config.md); command-line options override it.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    what: Box<What>,
}

#[derive(Subcommand)]
enum What {
    /// Send everything received back (RFC 862).
    Echo(echo::EchoArgs),
    /// Answer every HTTP request with the same page.
    Http(http::HttpArgs),
    /// A messenger: rooms, history and presence, over lines and WebSocket, with a page (docs/chat.md).
    Chat(Box<chat::ChatArgs>),
    /// Serve the files of a directory over HTTP.
    Files(files::FilesArgs),
    /// Proxy connections to upstream servers (docs/proxy.md).
    Proxy(proxy::ProxyArgs),
    /// Echo or discard datagrams.
    Udp(udp::UdpArgs),
}

impl What {
    /// The service, and the options every server has.
    fn common(&self) -> (&'static str, &ServerCommon) {
        match self {
            Self::Echo(args) => ("echo", &args.how.common),
            Self::Http(args) => ("http", &args.how.common),
            Self::Chat(args) => ("chat", &args.how.common),
            Self::Files(args) => ("files", &args.how.common),
            Self::Proxy(args) => ("proxy", &args.how.common),
            Self::Udp(args) => ("udp", &args.common),
        }
    }

    fn plan(self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        match self {
            Self::Echo(args) => args.plan(label),
            Self::Http(args) => args.plan(label),
            Self::Chat(args) => args.plan(label),
            Self::Files(args) => args.plan(label),
            Self::Proxy(args) => args.plan(label),
            Self::Udp(args) => args.plan(label),
        }
    }
}

/// Runs the command. `more` are the other servers of a file with several.
pub fn run(args: Args, more: impl Iterator<Item = Args>) -> CommandResult {
    let source = if args.config.is_some() { OptionSource::File } else { OptionSource::CommandLine };
    let in_users_words = |e: anyhow::Error| anyhow!("{}", in_users_words(&format!("{e:#}"), source));
    serve(args, more).map_err(|failure| match failure {
        Failure::Usage(e) => Failure::Usage(in_users_words(e)),
        Failure::Run(e) => Failure::Run(in_users_words(e)),
    })
}

fn serve(args: Args, more: impl Iterator<Item = Args>) -> CommandResult {
    let file = args.config.clone();
    if let Some(path) = &args.config {
        tracing::info!(path = %path.display(), "options are also read from a file");
    }
    let all: Vec<What> = std::iter::once(args).chain(more).map(|args| *args.what).collect();
    let names: Vec<_> = all.iter().map(What::common).map(|(what, how)| (what, how.name.as_deref())).collect();
    let labels = label::labels(&names)?;
    let mut plans = Vec::new();
    for (what, label) in all.into_iter().zip(labels) {
        let plan = what.plan(label.clone());
        plans.push(plan.map_err(|e| in_file(label.blame(e), file.as_deref(), &label))?);
    }
    process::run(plans)
}

/// What is wrong with options, with the file and the table they come from.
fn in_file(failure: Failure, file: Option<&Path>, label: &Label) -> Failure {
    match (failure, file) {
        (Failure::Usage(e), Some(file)) if label.is_alone() => {
            Failure::Usage(e.context("[[server]]").context(file.display().to_string()))
        }
        (Failure::Usage(e), Some(file)) => Failure::Usage(e.context(file.display().to_string())),
        (failure, _) => failure,
    }
}
