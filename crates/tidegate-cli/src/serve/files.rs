//! `tidegate serve files`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tidegate::Policy;
use tidegate::policy::WhenFull;
use tidegate::system;
use tidegate_services::{Coding, Files, FilesOptions, HttpLimits, Listing};

use super::how::How;
use super::http::{HTTP, policy, request_limits};
use super::stage::PlannedServer;
use crate::label::Label;
use crate::limits::{Given, count, set, size, time};
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
    /// Memory for cached small files; 0 disables the cache [default: 64MiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cache_bytes: Option<usize>,
    /// Files up to this size are cached in memory [default: 64KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    small_bytes: Option<usize>,
    /// Larger files that are kept open; each needs a descriptor [default: 1000, and at most a quarter of the
    /// descriptors].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    open_files: Option<usize>,
    /// How long a cached file is served without checking for changes; 0s checks each time [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    valid: Option<Duration>,
    /// Answer further connections with 503 while this many are open [default: 15/16 of max-connections where a full
    /// server refuses, as with --strategy throughput].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    busy_above: Option<usize>,
    /// Refused, with what to use instead.
    #[arg(long, hide = true)]
    http2: bool,
    #[command(flatten)]
    pub(super) how: How,
    #[command(flatten)]
    limits: Given<HttpLimits>,
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
    codings.collect::<Result<_, _>>().map(CodingList).map_err(|e: String| format!("{e}; or write none"))
}

impl FilesArgs {
    pub(super) fn plan(mut self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let policy = policy(&self.how.limits);
        let limits = request_limits(&self.limits, &policy)?;
        let options = self.options(&policy)?;
        self.how.limits.of_the_service = options.open_files;
        let files = Files::new(&self.dir, options, limits).map_err(usage)?;
        self.how.plan(label, &HTTP, policy, files)
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
        set(&mut options.cache_bytes, self.cache_bytes);
        // A default yields to a given value.
        options.small_bytes = options.small_bytes.min(options.cache_bytes);
        set(&mut options.small_bytes, self.small_bytes);
        // The limit is raised to the hard one when the server starts.
        let descriptors = usize::try_from(system::descriptor_limit().1).unwrap_or(usize::MAX);
        options.open_files = options.open_files.min(descriptors / 4);
        set(&mut options.open_files, self.open_files);
        set(&mut options.valid, self.valid);
        if self.http2 {
            return Err(usage(anyhow::anyhow!(
                "--http2: files are served over HTTP/1.1 only; leave the option out, or let a proxy in front speak HTTP/2"
            )));
        }
        let most = policy.max_connections;
        if let Some(above) = self.busy_above.filter(|above| *above >= most) {
            return Err(usage(anyhow::anyhow!(
                "busy_above ({above}) is not below max_connections ({most}): no connection is left for 503 responses; \
                 lower it, or raise max_connections"
            )));
        }
        let refuses = policy.when_full == WhenFull::Refuse;
        options.busy_above = self.busy_above.or_else(|| refuses.then(|| most - most.div_ceil(16)));
        Ok(options)
    }
}
