//! The options of `load`, and the plan made from them.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::{Availability, Endpoint, Model, ParseModelError};
use tidegate_cluster::{TlsOrder, TrustOrder};
use tidegate_load::{
    AfterResponse, Amount, HttpShape, LoadError, Plan, Protocol, Rate, Security, Target, TlsPlan, Trust,
};

use super::cluster::ClusterArgs;
use super::threshold::Threshold;
use crate::limits::{at_least_one, count, models, rate, size, time};
use crate::{Failure, usage};

/// Options of `load`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub kind: LoadKind,
}

#[derive(clap::Subcommand)]
pub enum LoadKind {
    /// Messages that must come back byte for byte.
    Echo(Box<EchoArgs>),
    /// HTTP/1.1 requests.
    Http(Box<HttpArgs>),
    /// Numbered datagrams: to an echo server, which has to send them back, or one way.
    Udp(Box<super::udp::UdpArgs>),
    /// Members of a messenger (`serve chat`), who check that each message arrives once and in order.
    Chat(super::chat::ChatArgs),
    /// One message at a time: the round-trip time, with sub-microsecond resolution.
    Ping(super::ping::PingArgs),
    /// Merge the JSON results of generators that ran at the same time.
    Merge(MergeArgs),
    /// Attack a server on this machine, to test that it survives: silent, trickling, flooding, half-open and resetting
    /// connections.
    Attack(super::attack::AttackArgs),
}

/// Options of `load merge`.
#[derive(clap::Args)]
pub struct MergeArgs {
    /// Files written by --json.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// Options of every load.
#[derive(clap::Args)]
pub struct LoadCommon {
    /// Target: http://HOST:PORT/PATH, tcp://HOST:PORT or HOST:PORT; https:// and tls:// for TLS; unix:SOCKET or
    /// unix:SOCKET:/PATH instead of HOST:PORT/PATH for a Unix socket.
    target: String,
    /// Concurrent connections, opened in blocks of 1,000; at most 16,777,216.
    #[arg(short, long, value_name = "COUNT", default_value = "100", value_parser = count::<usize>)]
    connections: usize,
    /// Stop after this many requests.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration", value_parser = count::<u64>)]
    requests: Option<u64>,
    /// Stop after this time: 10s, 1m, or plain seconds [default: 10s].
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Open loop: total requests per second, on an exact schedule; latency counts from when a request was due [default:
    /// closed loop, each response triggers the next request].
    #[arg(long, value_name = "COUNT_PER_S", value_parser = rate)]
    rate: Option<f64>,
    /// With --rate: start with this rate and increase it linearly within this time, for example 0:30s.
    #[arg(long, value_name = "FROM:TIME", requires = "rate", value_parser = ramp)]
    ramp_rate: Option<(f64, Duration)>,
    /// Warm-up before -d, which is not measured.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    warm_up: Duration,
    /// Open the connections evenly over this time; 0s means as fast as possible.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    ramp_connections: Duration,
    #[command(flatten)]
    pub output: Output,
    /// The I/O model of the generator, or auto.
    #[arg(long, default_value = "auto", value_parser = models())]
    model: String,
    /// I/O threads, at most 1,024 [default: one for each available processor].
    #[arg(short, long, value_name = "COUNT", value_parser = count::<usize>)]
    threads: Option<usize>,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Source addresses in 127.0.0.0/8 to spread over [default: as many as the ports need].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    sources: Option<usize>,
    /// Source addresses to use in turn: ADDRESS, FROM-TO or several with commas, for example 10.0.0.1-10.0.0.8.
    #[arg(long, value_name = "ADDR-RANGE", value_delimiter = ',', value_parser = addresses, conflicts_with = "sources")]
    source: Vec<SourceAddresses>,
    /// The server's process id, if it runs here: the verdict then includes its CPU time.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Connect timeout, and time limit for the last responses.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    timeout: Duration,
    /// Connect with Multipath TCP (RFC 8684); falls back to plain TCP if the server does not support it.
    #[arg(long)]
    mptcp: bool,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// TLS settings for a target with https:// or tls://.
#[derive(clap::Args)]
pub struct TlsArgs {
    /// Trust the authorities in this PEM file [default: those of the system].
    #[arg(long, value_name = "FILE", conflicts_with = "tls_insecure")]
    tls_ca: Option<PathBuf>,
    /// Accept any server certificate: for tests of your own server.
    #[arg(long)]
    tls_insecure: bool,
    /// Expected server name [default: the host of the target].
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Disable session resumption.
    #[arg(long)]
    tls_no_resumption: bool,
}

/// Destinations of results.
#[derive(clap::Args)]
pub struct Output {
    /// Write the result as JSON to this file, or to standard output for -.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the distribution of latencies to this file, as HdrHistogram percentiles in milliseconds.
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
    /// Write one row per second to this file.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write one line of JSON per second to standard output; the summary goes to standard error.
    #[arg(long, conflicts_with = "phases")]
    pub ndjson: bool,
    /// Exit with 1 if this condition is true, for example 'p99>5ms'; may be given several times. p50, p90, p99, p99.9,
    /// max and mean in us, ms or s; errors and rps are plain numbers.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Threshold>,
    /// Print to standard output when connections are established and when measuring begins and ends, and keep the
    /// connections open until a line arrives on standard input.
    #[arg(long)]
    pub phases: bool,
    /// Show no live view on the terminal.
    #[arg(short, long)]
    pub quiet: bool,
    /// Failed connections and requests are part of the result and not an error.
    #[arg(long)]
    pub tolerate_failures: bool,
}

/// Options of `load echo`.
#[derive(clap::Args)]
pub struct EchoArgs {
    #[command(flatten)]
    pub common: LoadCommon,
    /// Bytes per second that each block of 1,000 connections sends [default: unlimited].
    #[arg(short = 'r', long, value_name = "SIZE_PER_S", conflicts_with = "rate", value_parser = size)]
    block_rate: Option<usize>,
    /// Bytes of a message.
    #[arg(long, value_name = "SIZE", default_value_t = 4096, value_parser = size)]
    size: usize,
    /// Messages of each connection, which is idle afterwards; the run ends when all of them came back.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["requests", "duration"], value_parser = at_least_one::<u64>)]
    messages: Option<u64>,
    /// With --messages: finish sending (half-close) after the last one; all responses must still arrive.
    #[arg(long, requires = "messages")]
    half_close: bool,
    /// Messages in flight on each connection.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count::<usize>)]
    window: usize,
}

/// Options of `load http`.
#[derive(clap::Args)]
pub struct HttpArgs {
    /// A new connection for each request.
    #[arg(long)]
    no_keepalive: bool,
    /// With --no-keepalive: reset each connection after its response: easier for the server than an orderly close.
    #[arg(long, requires = "no_keepalive")]
    reset_on_close: bool,
    /// Request method [default: GET, with a body POST].
    #[arg(short, long, visible_short_alias = 'X', value_name = "NAME")]
    method: Option<String>,
    /// A header field, 'Name: value'; may be given several times. Replaces a default field of the same name.
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    headers: Vec<String>,
    /// The body of the requests.
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// A file with the body of the requests.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// A path to request instead of the target's; several are used in turn.
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<String>,
    /// A file with such paths, one on each line.
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    path_file: Option<PathBuf>,
    /// Expected statuses, for example 200, 2xx or 200,404.
    #[arg(long, value_name = "LIST", default_value = "2xx", value_delimiter = ',', value_parser = status)]
    check_status: Vec<RangeInclusive<u16>>,
    /// Text that the response body must contain.
    #[arg(long, value_name = "TEXT")]
    check_body_contains: Option<String>,
    /// Requests in flight on each connection.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count::<usize>)]
    pipeline: usize,
    /// Requests of each connection, which is idle afterwards; the run ends when all were answered.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["requests", "duration"])]
    #[arg(value_parser = at_least_one::<u64>)]
    requests_each: Option<u64>,
    #[command(flatten)]
    pub common: LoadCommon,
}

impl EchoArgs {
    /// Makes the plan.
    pub fn plan(&self) -> Result<Plan, Failure> {
        let target = Target::parse(&self.common.target).map_err(usage)?;
        let protocol = Protocol::Echo { size: self.size, window: self.window };
        let bounds = Bounds {
            block_rate: self.block_rate.map(|bytes| bytes as u64),
            messages: self.messages,
            half_close: self.half_close,
        };
        self.common.plan(&target, protocol, bounds)
    }
}

impl HttpArgs {
    /// Makes the plan.
    pub fn plan(&self) -> Result<Plan, Failure> {
        let target = Target::parse(&self.common.target).map_err(usage)?;
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) => std::fs::read(path)
                .with_context(|| format!("cannot read --body-file {}", path.display()))
                .map_err(usage)?,
            (None, None) => Vec::new(),
        };
        let has_body = self.body.is_some() || self.body_file.is_some();
        let mut shape = HttpShape::get(&*target.host, &*target.path);
        shape.method = self.method.clone().unwrap_or_else(|| if has_body { "POST" } else { "GET" }.into());
        shape.headers = self.headers.iter().map(|field| header(field)).collect::<Result<_, _>>()?;
        shape.body = body.into();
        shape.after_response = match (self.no_keepalive, self.reset_on_close) {
            (false, _) => AfterResponse::KeepAlive,
            (true, false) => AfterResponse::Close,
            (true, true) => AfterResponse::Reset,
        };
        shape.pipeline = self.pipeline;
        shape.right_status = self.check_status.clone();
        shape.body_contains = self.check_body_contains.clone().map(Into::into);
        if let Some(path) = &self.path_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read --path-file {}", path.display()))
                .map_err(usage)?;
            shape.paths = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        } else if !self.paths.is_empty() {
            shape.paths = self.paths.clone();
        }
        let bounds = Bounds { messages: self.requests_each, ..Bounds::default() };
        self.common.plan(&target, Protocol::Http(shape), bounds)
    }
}

/// Limits of each connection or block.
#[derive(Default)]
struct Bounds {
    /// Bytes per second of a block.
    block_rate: Option<u64>,
    /// Messages of each connection.
    messages: Option<u64>,
    /// Whether a connection finishes sending after its last message.
    half_close: bool,
}

impl LoadCommon {
    fn plan(&self, target: &Target, protocol: Protocol, bounds: Bounds) -> Result<Plan, Failure> {
        let all = bounds.messages.map(|each| each.saturating_mul(self.connections as u64));
        let amount = match (self.requests.or(all), self.duration) {
            (Some(n), _) => Amount::Requests(n),
            (None, Some(s)) => Amount::Time(s),
            (None, None) => Amount::Time(Duration::from_secs(10)),
        };
        let timeout = self.timeout;
        let tls = self.tls.plan(target, protocols(&protocol), timeout)?;
        let plan = Plan {
            target: self.endpoint(target)?,
            protocol,
            connections: self.connections,
            amount,
            rate_bytes_per_s_per_block: bounds.block_rate,
            messages_each: bounds.messages,
            half_close: bounds.half_close,
            rate: self.rate.map(|requests_per_s| Rate { requests_per_s, ramp: self.ramp_rate }),
            warm_up: self.warm_up,
            ramp_connections: self.ramp_connections,
            timeout,
            sources: self.sources,
            source_range: self.source.iter().flat_map(|range| range.0.iter().copied()).collect(),
            model: model(&self.model)?,
            threads: self.threads,
            server_pid: self.server_pid,
            tls,
            part: None,
        };
        plan.check().map_err(|e: LoadError| usage(e))?;
        Ok(plan)
    }
}

/// Protocols offered for ALPN.
fn protocols(protocol: &Protocol) -> &'static [&'static str] {
    if matches!(protocol, Protocol::Http(_)) { &["http/1.1"] } else { &[] }
}

impl LoadCommon {
    /// The TLS settings of the plan, in a serializable form.
    pub fn tls_order(&self, protocol: &Protocol) -> Result<Option<TlsOrder>, Failure> {
        let target = Target::parse(&self.target).map_err(usage)?;
        if target.security == Security::Plain {
            return Ok(None);
        }
        let timeout = self.timeout;
        self.tls.order(&target, protocols(protocol), timeout).map(Some)
    }

    fn endpoint(&self, target: &Target) -> Result<Endpoint, Failure> {
        match (self.mptcp, target.endpoint.addr()) {
            (false, _) => Ok(target.endpoint.clone()),
            (true, Some(addr)) => Ok(Endpoint::Mptcp(addr)),
            (true, None) => Err(usage(anyhow!("--mptcp needs an address: Unix sockets do not support it"))),
        }
    }
}

impl TlsArgs {
    fn order(&self, target: &Target, protocols: &[&str], timeout: Duration) -> Result<TlsOrder, Failure> {
        let trust = match &self.tls_ca {
            _ if self.tls_insecure => TrustOrder::Anything,
            Some(path) => {
                let text = std::fs::read_to_string(path);
                TrustOrder::Pem(
                    text.with_context(|| format!("{} cannot be read", path.display())).map_err(usage)?,
                )
            }
            None => TrustOrder::System,
        };
        Ok(TlsOrder {
            trust,
            name: self.tls_name.clone().unwrap_or_else(|| target.host_name().to_owned()),
            protocols: protocols.iter().map(|&name| name.to_owned()).collect(),
            no_resumption: self.tls_no_resumption,
            handshake_timeout: timeout,
        })
    }

    /// The TLS configuration for this target, if it is encrypted. `protocols` are offered for ALPN.
    pub fn plan(
        &self,
        target: &Target,
        protocols: &[&str],
        timeout: Duration,
    ) -> Result<Option<TlsPlan>, Failure> {
        if target.security == Security::Plain {
            let asked = self.tls_insecure
                || self.tls_no_resumption
                || self.tls_ca.is_some()
                || self.tls_name.is_some();
            return match asked {
                true => Err(usage(anyhow!(
                    "the target is not encrypted: use https://, wss:// or tls://, or leave --tls-… out"
                ))),
                false => Ok(None),
            };
        }
        let trust = match &self.tls_ca {
            _ if self.tls_insecure => Trust::anything(),
            Some(path) => Trust::file(path),
            None => Trust::system(),
        };
        let trust = trust.map_err(usage)?.protocols(protocols);
        let trust = if self.tls_no_resumption { trust.without_resumption() } else { trust };
        let name = self.tls_name.clone().unwrap_or_else(|| target.host_name().to_owned());
        Ok(Some(TlsPlan { trust, name, handshake_timeout: timeout }))
    }
}

/// Initial rate, and the time within which the target rate is reached.
fn ramp(text: &str) -> Result<(f64, Duration), String> {
    let parts = text.split_once(':').and_then(|(from, within)| Some((rate(from).ok()?, time(within).ok()?)));
    parts.ok_or_else(|| "not FROM:TIME, like 0:30s to increase the rate from 0 within 30 s".into())
}

fn header(field: &str) -> Result<(String, String), Failure> {
    match field.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.trim().to_owned())),
        None => Err(usage(anyhow!("-H {field:?} has no colon; write -H 'Name: value'"))),
    }
}

/// A status, or a class like `2xx`.
fn status(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("{text:?} is not a status like 200 or a class like 2xx");
    let (class, rest) = text.split_at_checked(1).ok_or_else(wrong)?;
    if rest.eq_ignore_ascii_case("xx") {
        let class: u16 = class.parse().ok().filter(|class| (1..=5).contains(class)).ok_or_else(wrong)?;
        return Ok(class * 100..=class * 100 + 99);
    }
    let status: u16 = text.parse().ok().filter(|status| (100..=599).contains(status)).ok_or_else(wrong)?;
    Ok(status..=status)
}

/// Source addresses, written as one argument.
#[derive(Clone, Debug)]
struct SourceAddresses(Vec<IpAddr>);

/// One address, or all from one to another.
fn addresses(text: &str) -> Result<SourceAddresses, String> {
    /// More source addresses than any machine needs.
    const MOST: u32 = 65_536;
    let wrong = |why: &str| format!("{why}; write ADDRESS or FROM-TO, for example 10.0.0.1-10.0.0.8");
    let Some((from, to)) = text.split_once('-') else {
        return text
            .trim()
            .parse()
            .map(|addr| SourceAddresses(vec![addr]))
            .map_err(|_| wrong("not an IP address"));
    };
    let ends = (from.trim().parse::<Ipv4Addr>(), to.trim().parse::<Ipv4Addr>());
    let (Ok(from), Ok(to)) = ends else { return Err(wrong("a range goes from one IPv4 address to another")) };
    let (from, to) = (u32::from(from), u32::from(to));
    if from > to || to - from >= MOST {
        return Err(wrong(&format!("a range goes upwards and holds at most {MOST} addresses")));
    }
    Ok(SourceAddresses((from..=to).map(|addr| Ipv4Addr::from(addr).into()).collect()))
}

pub fn model(name: &str) -> Result<Option<Model>, Failure> {
    if name == "auto" {
        return Ok(None);
    }
    let model: Model = name.parse().map_err(|e: ParseModelError| usage(e))?;
    match model.availability() {
        Availability::Available(_) => Ok(Some(model)),
        Availability::Unavailable(why) => Err(usage(anyhow!(
            "the model {model} is unavailable: {why}; tidegate doctor lists the models that are available"
        ))),
    }
}
