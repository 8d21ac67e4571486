//! The serialized form of a plan: the same fields as [`Plan`], and the sources of its TLS configuration.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tidegate::{Availability, Endpoint, Model};
use tidegate_load::{AfterResponse, Amount, HttpShape, Plan, Protocol, Rate, TlsPlan, Trust};

/// Longest time in an order.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Most threads that one part has an agent start.
const MOST_THREADS: usize = 256;

/// Most connections of a whole load, and parts of it.
const MOST_CONNECTIONS: usize = 100_000_000;

/// Most source addresses of an agent.
const MOST_SOURCES: usize = 65_536;

/// Most names of protocols for ALPN.
const MOST_PROTOCOLS: usize = 16;

/// A part of a load for one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkOrder {
    target: String,
    protocol: ProtocolOrder,
    connections: usize,
    amount: Amount,
    rate_bytes_per_s_per_block: Option<u64>,
    messages_each: Option<u64>,
    #[serde(default)]
    half_close: bool,
    rate: Option<Rate>,
    warm_up: Duration,
    ramp_connections: Duration,
    timeout: Duration,
    sources: Option<usize>,
    source_range: Vec<IpAddr>,
    model: Option<String>,
    threads: Option<usize>,
    tls: Option<TlsOrder>,
    /// Which part of how many; the numbers above are of the whole.
    part: (usize, usize),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ProtocolOrder {
    Echo { size: usize, window: usize },
    Http(Box<HttpOrder>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HttpOrder {
    host: String,
    paths: Vec<String>,
    method: String,
    headers: Vec<(String, String)>,
    /// Base64.
    body: String,
    after_response: AfterResponse,
    pipeline: usize,
    right_status: Vec<RangeInclusive<u16>>,
    /// Base64.
    body_contains: Option<String>,
}

/// How a load is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsOrder {
    /// Which certificates the server may have.
    pub trust: TrustOrder,
    /// Expected server name.
    pub name: String,
    /// Protocols that are offered for ALPN.
    pub protocols: Vec<String>,
    /// Make every handshake a full one.
    pub no_resumption: bool,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
}

/// Trusted server certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrustOrder {
    /// Those that the agent's system trusts.
    System,
    /// Every one.
    Anything,
    /// Those signed by authorities in this PEM text.
    Pem(String),
}

impl TlsOrder {
    /// What a plan needs of it.
    ///
    /// # Errors
    /// No usable certificates, in words.
    pub fn plan(&self) -> Result<TlsPlan, tidegate_load::TlsError> {
        let trust = match &self.trust {
            TrustOrder::System => Trust::system(),
            TrustOrder::Anything => Trust::anything(),
            TrustOrder::Pem(text) => Trust::pem(text),
        }?;
        let protocols: Vec<&str> = self.protocols.iter().map(String::as_str).collect();
        let trust = trust.protocols(&protocols);
        let trust = if self.no_resumption { trust.without_resumption() } else { trust };
        Ok(TlsPlan { trust, name: self.name.clone(), handshake_timeout: self.handshake_timeout })
    }
}

impl WorkOrder {
    /// Part `part.0` of `part.1` of a plan; `tls` is the source of the plan's own `tls`.
    #[must_use]
    pub fn of(plan: &Plan, tls: Option<TlsOrder>, part: (usize, usize)) -> Self {
        Self {
            target: plan.target.to_string(),
            protocol: match &plan.protocol {
                &Protocol::Echo { size, window } => ProtocolOrder::Echo { size, window },
                Protocol::Http(shape) => ProtocolOrder::Http(Box::new(HttpOrder::of(shape))),
            },
            connections: plan.connections,
            amount: plan.amount,
            rate_bytes_per_s_per_block: plan.rate_bytes_per_s_per_block,
            messages_each: plan.messages_each,
            half_close: plan.half_close,
            rate: plan.rate,
            warm_up: plan.warm_up,
            ramp_connections: plan.ramp_connections,
            timeout: plan.timeout,
            sources: plan.sources,
            source_range: plan.source_range.clone(),
            model: plan.model.map(|model| model.to_string()),
            threads: plan.threads,
            tls,
            part,
        }
    }

    /// Where the load goes.
    ///
    /// # Errors
    /// Not a valid address.
    pub fn target(&self) -> Result<Endpoint, String> {
        self.target.parse::<Endpoint>().map_err(|e| format!("{:?} is no target: {e}", self.target))
    }

    /// Checks the bounds of an order; relations between its fields are checked by the plan.
    fn check(&self) -> Result<(), String> {
        let rate = self.rate.and_then(|rate| rate.ramp).map(|(_, time)| time);
        let amount = match self.amount {
            Amount::Time(time) => Some(time),
            Amount::Requests(_) => None,
        };
        let handshake = self.tls.as_ref().map(|tls| tls.handshake_timeout);
        let times =
            [Some(self.warm_up), Some(self.ramp_connections), Some(self.timeout), rate, amount, handshake];
        if times.into_iter().flatten().any(|time| time > LONGEST) {
            return Err("a time in it is longer than a year: give a shorter one".into());
        }
        let within = |what: &str, value: usize, most: usize| match value > most {
            true => Err(format!("{value} {what} are more than an agent takes ({most})")),
            false => Ok(()),
        };
        within("threads", self.threads.unwrap_or(0), MOST_THREADS)?;
        within("connections", self.connections, MOST_CONNECTIONS)?;
        within("source addresses", self.source_range.len(), MOST_SOURCES)?;
        within("parts", self.part.1, MOST_CONNECTIONS)?;
        let Some(tls) = &self.tls else { return Ok(()) };
        within("protocols", tls.protocols.len(), MOST_PROTOCOLS)?;
        match tls.protocols.iter().find(|name| name.is_empty() || name.len() > 255) {
            Some(odd) => Err(format!("{odd:?} is no protocol: a name has from 1 to 255 bytes (RFC 7301)")),
            None => Ok(()),
        }
    }

    /// Converts it to a plan.
    ///
    /// # Errors
    /// Why that is not possible on this machine.
    pub fn plan(&self) -> Result<Plan, String> {
        self.check()?;
        let plan = Plan {
            target: self.target()?,
            protocol: match &self.protocol {
                &ProtocolOrder::Echo { size, window } => Protocol::Echo { size, window },
                ProtocolOrder::Http(order) => Protocol::Http(order.shape()?),
            },
            connections: self.connections,
            amount: self.amount,
            rate_bytes_per_s_per_block: self.rate_bytes_per_s_per_block,
            messages_each: self.messages_each,
            half_close: self.half_close,
            rate: self.rate,
            warm_up: self.warm_up,
            ramp_connections: self.ramp_connections,
            timeout: self.timeout,
            sources: self.sources,
            source_range: self.source_range.clone(),
            model: self.model.as_deref().map(model).transpose()?,
            threads: self.threads.map(|threads| threads.max(1)),
            server_pid: None,
            tls: self.tls.as_ref().map(TlsOrder::plan).transpose().map_err(|e| e.to_string())?,
            part: None,
        };
        plan.check().map_err(|e| e.to_string())?;
        let (index, of) = self.part;
        plan.part(index, of).map_err(|e| e.to_string())
    }
}

fn model(name: &str) -> Result<Model, String> {
    let model: Model = name.parse().map_err(|e: tidegate::ParseModelError| e.to_string())?;
    match model.availability() {
        Availability::Available(_) => Ok(model),
        Availability::Unavailable(why) => Err(format!("the model {model} is unavailable here: {why}")),
    }
}

impl HttpOrder {
    fn of(shape: &HttpShape) -> Self {
        Self {
            host: shape.host.clone(),
            paths: shape.paths.clone(),
            method: shape.method.clone(),
            headers: shape.headers.clone(),
            body: STANDARD.encode(&shape.body),
            after_response: shape.after_response,
            pipeline: shape.pipeline,
            right_status: shape.right_status.clone(),
            body_contains: shape.body_contains.as_ref().map(|text| STANDARD.encode(text)),
        }
    }

    fn shape(&self) -> Result<HttpShape, String> {
        let bytes = |text: &str| STANDARD.decode(text).map_err(|e| format!("a body is no base64: {e}"));
        Ok(HttpShape {
            host: self.host.clone(),
            paths: self.paths.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: bytes(&self.body)?.into(),
            after_response: self.after_response,
            pipeline: self.pipeline,
            right_status: self.right_status.clone(),
            body_contains: self.body_contains.as_deref().map(bytes).transpose()?.map(Into::into),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan(protocol: Protocol) -> Plan {
        Plan {
            target: "127.0.0.1:80".parse().unwrap(),
            protocol,
            connections: 10,
            amount: Amount::Requests(100),
            rate_bytes_per_s_per_block: None,
            messages_each: None,
            half_close: false,
            rate: Some(Rate { requests_per_s: 5.5, ramp: Some((1.0, Duration::from_secs(3))) }),
            warm_up: Duration::ZERO,
            ramp_connections: Duration::from_millis(1),
            timeout: Duration::from_secs(10),
            sources: Some(3),
            source_range: Vec::new(),
            model: Some(Model::Poll),
            threads: Some(2),
            server_pid: None,
            tls: None,
            part: None,
        }
    }

    #[test]
    fn what_is_sent_is_what_was_planned() {
        let mut shape = HttpShape::get("h", "/a");
        shape.body = vec![0, 255, 10].into();
        shape.body_contains = Some("ok".into());
        shape.right_status = vec![200..=299, 404..=404];
        for protocol in [Protocol::Http(shape), Protocol::Echo { size: 7, window: 3 }] {
            let plan = plan(protocol);
            let order = WorkOrder::of(&plan, None, (1, 3));
            let text = serde_json::to_string(&order).unwrap();
            let there = serde_json::from_str::<WorkOrder>(&text).unwrap().plan().unwrap();
            // A plan holds things that cannot be compared; its text has every field.
            assert_eq!(format!("{there:?}"), format!("{:?}", plan.part(1, 3).unwrap()));
        }
    }

    #[test]
    fn an_order_that_makes_no_sense_is_refused_in_words() {
        let order = WorkOrder::of(&plan(Protocol::Echo { size: 1, window: 1 }), None, (0, 2));
        for (order, part) in [
            (WorkOrder { target: "nowhere".into(), ..order.clone() }, "no target"),
            (WorkOrder { part: (2, 2), ..order.clone() }, "part 2 of 2"),
            (WorkOrder { connections: 0, ..order.clone() }, "at least one connection"),
            (WorkOrder { connections: usize::MAX, ..order.clone() }, "more than an agent takes"),
            (
                WorkOrder { threads: Some(usize::MAX), ..order.clone() },
                "threads are more than an agent takes",
            ),
            (WorkOrder { timeout: Duration::MAX, ..order.clone() }, "longer than a year"),
            (WorkOrder { warm_up: Duration::MAX, ..order.clone() }, "longer than a year"),
            (WorkOrder { amount: Amount::Time(Duration::MAX), ..order.clone() }, "longer than a year"),
            (WorkOrder { model: Some("magic".into()), ..order.clone() }, "magic"),
        ] {
            let why = order.plan().unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
    #[test]
    fn a_host_that_would_end_its_line_is_no_host() {
        let shape = HttpShape::get("a", "/");
        let order = WorkOrder::of(&plan(Protocol::Http(shape.clone())), None, (0, 2));
        assert!(order.plan().is_ok());
        for host in ["a\r\n\r\nGET /admin HTTP/1.1\r\nHost: a", "a\nX: y", "a b", ""] {
            let shape = HttpOrder::of(&HttpShape { host: host.into(), ..shape.clone() });
            let order = WorkOrder { protocol: ProtocolOrder::Http(Box::new(shape)), ..order.clone() };
            let why = order.plan().unwrap_err();
            assert!(why.contains("the host"), "{why}");
        }
    }
}
