//! Options of the connection to the broker, shared by agents and their lead.

use std::path::PathBuf;

use anyhow::anyhow;
use tidegate_cluster::text::is_name;
use tidegate_cluster::{Auth, BrokerAccess, ClusterError};

use crate::{Failure, usage};

/// Maps errors of the broker connection to exit codes.
pub fn failure(e: ClusterError) -> Failure {
    if e.is_about_options() { usage(e) } else { Failure::Run(e.into()) }
}

/// The name of this process for others: `option`, the host name, or `otherwise`.
pub fn name_or_host(option: &str, given: Option<&str>, otherwise: &str) -> Result<String, Failure> {
    if let Some(name) = given.filter(|name| !is_name(name)) {
        let why = "a name has letters, digits, - _ and . only, and at most 64 bytes";
        return Err(Failure::Usage(anyhow!("{option} {name:?}: {why}")));
    }
    let host = || ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok());
    let name = given.map(str::to_owned).or_else(|| host().filter(|name| is_name(name)));
    Ok(name.unwrap_or_else(|| otherwise.to_owned()))
}

/// Credentials for the broker. Secrets are read from files or from the URL.
#[derive(clap::Args)]
pub struct NatsArgs {
    /// User name for the broker.
    #[arg(long, value_name = "NAME", requires = "nats_password_file")]
    nats_user: Option<String>,
    /// A file with the password of --nats-user.
    #[arg(long, value_name = "FILE", requires = "nats_user")]
    nats_password_file: Option<PathBuf>,
    /// A file with a token for the broker.
    #[arg(long, value_name = "FILE", conflicts_with = "nats_user")]
    nats_token_file: Option<PathBuf>,
    /// A credentials file (JWT and seed), as created by nsc.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nats_user", "nats_token_file"])]
    nats_creds: Option<PathBuf>,
    /// A file with the seed of an nkey.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nats_user", "nats_token_file", "nats_creds"])]
    nats_nkey: Option<PathBuf>,
    /// Encrypt, and trust the authorities in this PEM file for the broker's certificate.
    #[arg(long, value_name = "FILE")]
    nats_ca: Option<PathBuf>,
    /// Encrypt, with this client certificate.
    #[arg(long, value_name = "FILE", requires = "nats_key")]
    nats_cert: Option<PathBuf>,
    /// The key of --nats-cert.
    #[arg(long, value_name = "FILE", requires = "nats_cert")]
    nats_key: Option<PathBuf>,
}

impl NatsArgs {
    /// The URL of the broker, if given. Without it, credentials are an error.
    pub fn broker<'a>(&self, url: Option<&'a str>) -> Result<Option<&'a str>, Failure> {
        if url.is_none() && !self.words().is_empty() {
            return Err(Failure::Usage(anyhow!("options that begin with --nats- need --nats URL")));
        }
        Ok(url)
    }

    /// The same options as words, for a load that is started.
    pub fn words(&self) -> Vec<String> {
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let given = [
            ("--nats-user", self.nats_user.clone()),
            ("--nats-password-file", file(&self.nats_password_file)),
            ("--nats-token-file", file(&self.nats_token_file)),
            ("--nats-creds", file(&self.nats_creds)),
            ("--nats-nkey", file(&self.nats_nkey)),
            ("--nats-ca", file(&self.nats_ca)),
            ("--nats-cert", file(&self.nats_cert)),
            ("--nats-key", file(&self.nats_key)),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        given.flatten().collect()
    }

    /// Connection settings for the broker at this URL.
    pub fn access(&self, url: &str) -> BrokerAccess {
        let auth = match (&self.nats_user, &self.nats_password_file, &self.nats_token_file) {
            (Some(name), Some(password), _) => Auth::User { name: name.clone(), password: password.clone() },
            (_, _, Some(token)) => Auth::Token(token.clone()),
            _ => match (&self.nats_creds, &self.nats_nkey) {
                (Some(creds), _) => Auth::Credentials(creds.clone()),
                (None, Some(seed)) => Auth::Nkey(seed.clone()),
                (None, None) => Auth::Url,
            },
        };
        BrokerAccess {
            url: url.to_owned(),
            auth,
            ca: self.nats_ca.clone(),
            identity: self.nats_cert.clone().zip(self.nats_key.clone()),
        }
    }
}
