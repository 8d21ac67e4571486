//! `tidegate serve http`, and parts shared by HTTP services.

use std::path::PathBuf;
use std::time::Duration;

use tidegate::Policy;
use tidegate_services::http::http2;
use tidegate_services::{Http, HttpLimits, Page};

use super::how::{How, ServiceKind};
use super::stage::PlannedServer;
use crate::label::Label;
use crate::limits::{Given, Limits};
use crate::{Failure, usage};

/// Any service over HTTP.
pub const HTTP: ServiceKind = ServiceKind { schemes: ["http", "https"], path: "/", protocols: &["http/1.1"] };

/// The same by hyper.
pub const HTTP2: ServiceKind = ServiceKind { protocols: &["h2", "http/1.1"], ..HTTP };

/// Default idle timeout between two requests: longer than those of browsers and proxies (mostly 60 s), so that they
/// close first, and no request is sent on a connection that is being closed.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// Options of `serve http`.
#[derive(clap::Args)]
pub struct HttpArgs {
    /// File to serve instead of the built-in page of 4 KiB.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Serve HTTP/2, too: by ALPN with TLS, by prior knowledge without. Needs a build with the feature http2.
    #[arg(long)]
    http2: bool,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    limits: Given<HttpLimits>,
}

impl HttpArgs {
    pub fn plan(self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let policy = policy(&self.how.limits);
        let limits = request_limits(&self.limits, &policy)?;
        let page = self.page.as_deref().map_or_else(|| Ok(Page::default()), Page::read).map_err(usage)?;
        if self.http2 {
            let service = http2(page, limits).map_err(|e| usage(anyhow::anyhow!("--http2: {e}")))?;
            return self.how.plan(label, &HTTP2, policy, service);
        }
        self.how.plan(label, &HTTP, policy, Http::new(page, limits))
    }
}

/// The policy of any service over HTTP.
pub fn policy(limits: &Limits) -> Policy {
    let mut policy = limits.policy();
    limits.let_rest(&mut policy, KEEP_ALIVE);
    policy
}

/// Limits of requests under a policy: a default yields to a given value; two given limits may contradict.
pub fn request_limits(given: &Given<HttpLimits>, policy: &Policy) -> Result<HttpLimits, Failure> {
    let mut limits = HttpLimits::default();
    limits.head_bytes = limits.head_bytes.min(policy.input_bytes);
    given.apply(&mut limits);
    limits.check(policy).map_err(usage)?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::limits::Strategy;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        limits: Limits,
    }

    fn limits(options: &[&str]) -> Limits {
        TestArgs::try_parse_from([&["x"], options].concat()).unwrap_or_else(|e| panic!("{e}")).limits
    }

    #[test]
    fn a_connection_may_rest_for_so_long_and_no_longer() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (options, expected) in [
            (&[][..], seconds(75)),
            (&["--strategy", "throughput"], seconds(75)),
            (&["--idle-timeout", "none"], None),
            (&["--idle-timeout", "40s"], seconds(40)),
            (&["--first-byte-timeout", "100s"], seconds(100)),
            (&["--first-byte-timeout", "none"], seconds(75)),
        ] {
            let limits = limits(options);
            let policy = policy(&limits);
            assert_eq!(policy.idle_timeout, expected, "{options:?}");
            policy.check().unwrap();
            let changed = limits.changed_to(Strategy::Connections, &policy, tidegate::Model::Select);
            assert_eq!(changed.idle_timeout, expected, "{options:?}, with another strategy");
        }
        assert_eq!(limits(&[]).policy().idle_timeout, None, "other services have their own");
    }
}
