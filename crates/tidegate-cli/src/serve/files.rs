//! `tidegate serve files`.

use std::path::PathBuf;

use clap::ValueEnum;
use tidegate::Policy;
use tidegate::policy::WhenFull;
use tidegate::system;
use tidegate_services::{Coding, Files, FilesLimits, FilesOptions, HttpLimits, Listing, ParseCodingError};

use super::how::How;
use super::http::{HTTP, HTTP2, policy, request_limits};
use super::stage::PlannedServer;
use crate::label::Label;
use crate::limits::{Given, set};
use crate::{Failure, usage};

/// Options of `serve files`.
#[derive(clap::Args)]
pub struct FilesArgs {
    /// Directory to serve. Hidden files are not served, and no path can escape from it.
    dir: PathBuf,
    /// Index files of a directory, in order of preference [default: index.html].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    index: Option<Vec<String>>,
    /// Response for a directory without an index: a listing, or 403 [default: off].
    #[arg(long, value_name = "WHAT")]
    listing: Option<DirectoryListing>,
    /// Use precompressed files next to a file, in these formats: gz, br, zst, or none [default: gz,br,zst].
    #[arg(long, value_name = "LIST", value_parser = codings)]
    precompressed: Option<CodingList>,
    /// Serve HTTP/2, too: by ALPN with TLS, by prior knowledge without. Needs a build with the feature http2.
    #[arg(long)]
    http2: bool,
    #[command(flatten)]
    pub(super) how: How,
    #[command(flatten)]
    limits: Given<FilesLimits>,
    #[command(flatten)]
    request_limits: Given<HttpLimits>,
}

/// The response for directories without an index.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DirectoryListing {
    /// A listing.
    On,
    /// 403.
    Off,
}

#[derive(Clone, Debug)]
struct CodingList(Vec<Coding>);

fn codings(text: &str) -> Result<CodingList, String> {
    if text == "none" {
        return Ok(CodingList(Vec::new()));
    }
    let codings = text.split(',').map(|name| name.trim().parse());
    codings
        .collect::<Result<_, _>>()
        .map(CodingList)
        .map_err(|e: ParseCodingError| format!("{e}; or write none"))
}

impl FilesArgs {
    pub(super) fn plan(mut self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let policy = policy(&self.how.limits);
        let limits = request_limits(&self.request_limits, &policy)?;
        let options = self.options(&policy)?;
        // All addresses share them.
        self.how.limits.of_the_service = options.limits.open_files.div_ceil(self.how.addresses());
        let files = Files::new(&self.dir, options, limits).map_err(usage)?;
        // Connections are counted where they are limited: at each address.
        let each = move || files.for_another_server();
        let plan = if self.http2 {
            each().http2().map_err(|e| usage(anyhow::anyhow!("--http2: {e}")))?;
            let each = move || each().http2().expect("it is in this build");
            self.how.stream_plan_each(label, &HTTP2, policy, each)
        } else {
            self.how.stream_plan_each(label, &HTTP, policy, each)
        };
        Ok(Box::new(plan?))
    }

    fn options(&self, policy: &Policy) -> Result<FilesOptions, Failure> {
        let mut options = FilesOptions::default();
        set(&mut options.index, self.index.clone());
        set(
            &mut options.listing,
            self.listing.map(|listed| match listed {
                DirectoryListing::On => Listing::On,
                DirectoryListing::Off => Listing::Off,
            }),
        );
        set(&mut options.precompressed, self.precompressed.clone().map(|codings| codings.0));
        options.limits = self.limits(policy)?;
        Ok(options)
    }

    /// A default yields to a given value; two given limits may contradict.
    fn limits(&self, policy: &Policy) -> Result<FilesLimits, Failure> {
        let mut limits = FilesLimits::default();
        // The limit is raised to the hard one when the server starts.
        let descriptors = usize::try_from(system::descriptor_limit().1).unwrap_or(usize::MAX);
        limits.open_files = limits.open_files.min(descriptors / 4);
        let most = policy.max_connections;
        // With one connection there is none left for a 503.
        let served = Some(most - most.div_ceil(16)).filter(|&served| served > 0);
        limits.busy_above = served.filter(|_| policy.when_full == WhenFull::Refuse);
        self.limits.apply(&mut limits);
        if !self.limits.has("small_bytes") {
            limits.small_bytes = limits.small_bytes.min(limits.cache_bytes);
        }
        limits.check(policy).map_err(usage)?;
        Ok(limits)
    }
}
