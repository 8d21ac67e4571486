//! How the broker is reached.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, ServerAddr};

use crate::error::ClusterError;

/// How one says who one is. Secrets come from files, so that they are in no list of processes.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    /// As the URL says, or not at all.
    #[default]
    Url,
    /// User and password.
    User {
        /// The user.
        name: String,
        /// The file with the password.
        password: PathBuf,
    },
    /// The file with a token.
    Token(PathBuf),
    /// A file of credentials (JWT and seed), as `nsc` makes it.
    Credentials(PathBuf),
    /// The file with the seed of an nkey.
    Nkey(PathBuf),
}

/// Where the broker is and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Access {
    /// `nats://HOST:PORT`, or `tls://HOST:PORT` for one that must encrypt; several brokers of one cluster with commas.
    pub url: String,
    /// Who we are.
    pub auth: Auth,
    /// Trust the authorities in this file; `None` is those of the system.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key, for a broker that asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Time for one attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);

impl Access {
    /// The addresses without user and password, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        let hide = |url: &str| match url.rsplit_once('@') {
            Some((before, host)) => {
                let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
                if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
            }
            None => url.to_owned(),
        };
        self.url.split(',').map(hide).collect::<Vec<_>>().join(",")
    }

    /// Connects; the client connects again by itself when it loses the broker.
    ///
    /// # Errors
    /// The broker does not answer or does not know us, or a file can not be read.
    pub async fn connect(&self, name: &str) -> Result<Client, ClusterError> {
        let broker = |why: String| ClusterError::Broker { url: self.shown(), why };
        let parsed = self.url.split(',').map(|url| url.trim().parse::<ServerAddr>());
        let addrs = parsed.collect::<Result<Vec<_>, _>>().map_err(|e| broker(e.to_string()))?;
        let mut options = self.options().await?.name(name).connection_timeout(CONNECT);
        // Beats go to and fro each half second anyway; this finds a broker that takes bytes and does nothing.
        options = options.ping_interval(Duration::from_secs(2));
        options.connect(addrs).await.map_err(|e| broker(e.to_string()))
    }

    async fn options(&self) -> Result<ConnectOptions, ClusterError> {
        let options = ConnectOptions::new();
        let mut options = match &self.auth {
            Auth::Url => options,
            Auth::User { name, password } => options.user_and_password(name.clone(), secret(password)?),
            Auth::Token(file) => options.token(secret(file)?),
            Auth::Nkey(file) => options.nkey(secret(file)?),
            Auth::Credentials(file) => options
                .credentials_file(file)
                .await
                .map_err(|error| ClusterError::File { path: file.clone(), error })?,
        };
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.identity {
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }
}

fn secret(path: &PathBuf) -> Result<String, ClusterError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| ClusterError::File { path: path.clone(), error })?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("nats://a:4222", "nats://a:4222"),
            ("nats://user:secret@a:4222,tls://t@b", "nats://a:4222,tls://b"),
            ("user:p@ss@a", "a"),
        ] {
            let access = Access { url: url.into(), auth: Auth::Url, ca: None, identity: None };
            assert_eq!(access.shown(), shown);
        }
    }
}
