//! What the programs have in common: where to listen and on which model.
#![forbid(unsafe_code)]

#[cfg(feature = "grpc")]
pub mod greeter;
pub mod web;

use std::io::Write;
use std::num::NonZeroUsize;

use anyhow::Context;
use clap::Parser;
use tidegate::{Availability, Endpoint, Model, Policy, Server, Service};

/// Where to listen and on which model.
#[derive(Parser)]
pub struct Args {
    /// Address to listen on; port 0 lets the system choose one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub listen: Endpoint,
    /// I/O model, such as epoll or uring [default: the best one available].
    #[arg(long, value_name = "MODEL", value_parser = |name: &str| name.parse::<Model>())]
    pub model: Option<Model>,
    /// Only say which models are available, and why others are not.
    #[arg(long)]
    pub models: bool,
    /// I/O threads [default: as many as the model takes].
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
}

/// Serves until SIGINT (Ctrl-C), SIGTERM or SIGHUP; then requests in flight are answered.
pub fn serve(service: impl Service) -> anyhow::Result<()> {
    serve_with(service, std::env::args())
}

/// The same, for a program that has read some of its arguments itself; the first is its name.
pub fn serve_with(service: impl Service, arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let args = Args::parse_from(arguments);
    if args.models {
        for &model in Model::ALL {
            match model.availability() {
                Availability::Available(how) => println!("{model:<13} yes  {how}"),
                Availability::Unavailable(why) => println!("{model:<13} no   {why}"),
            }
        }
        return Ok(());
    }
    let policy = Policy::default().threads(args.threads);
    let server = Server::new(service).policy(policy);
    let server = match args.model {
        Some(model) => server.model(model),
        None => server,
    };
    let running = server.bind(args.listen)?.start()?;
    let handle = running.handle();
    ctrlc::set_handler(move || handle.stop())?;
    println!("listening on {}", running.local_addr());
    std::io::stdout().flush()?;
    running.join();
    Ok(())
}

/// The server behind this one, `--to ADDR:PORT` in front of the other arguments, and those with the program's name.
pub fn to() -> anyhow::Result<(Endpoint, impl Iterator<Item = String>)> {
    let mut arguments = std::env::args();
    let program = arguments.next();
    let (flag, to) = (arguments.next(), arguments.next());
    let usage = "say where to pass connections on, first: --to ADDR:PORT [--listen ADDR:PORT ...]";
    let to = to.filter(|_| flag.as_deref() == Some("--to")).context(usage)?;
    let to = to.parse().with_context(|| format!("--to {to}"))?;
    Ok((to, program.into_iter().chain(arguments)))
}
