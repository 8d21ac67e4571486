//! Connection settings and credentials for the broker.

use std::path::PathBuf;

/// Credentials. Secrets are read from files, so that they do not appear in process lists.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    /// Those of the URL, or none.
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
    /// A credentials file (JWT and seed), as created by `nsc`.
    Credentials(PathBuf),
    /// The file with the seed of an nkey.
    Nkey(PathBuf),
}

/// Address and credentials of the broker.
#[derive(Clone, Debug)]
pub struct BrokerAccess {
    /// `nats://HOST:PORT`, or `tls://HOST:PORT` to require encryption; several brokers of one cluster separated by
    /// commas.
    pub url: String,
    /// Our credentials.
    pub auth: Auth,
    /// Trust the authorities in this file; `None` is those of the system.
    pub ca: Option<PathBuf>,
    /// Our client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl BrokerAccess {
    /// The addresses without user and password, for display.
    #[must_use]
    pub fn shown(&self) -> String {
        let hide = |url: &String| match url.rsplit_once('@') {
            Some((before, host)) => {
                let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
                if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
            }
            None => url.clone(),
        };
        // A comma with no scheme behind it may be one of a password.
        let mut urls: Vec<String> = Vec::new();
        for part in self.url.split(',') {
            match urls.last_mut() {
                Some(last) if !part.contains("://") => *last = format!("{last},{part}"),
                _ => urls.push(part.to_owned()),
            }
        }
        urls.iter().map(hide).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("nats://a:4222", "nats://a:4222"),
            ("nats://user:secret@a:4222,tls://t@b", "nats://a:4222,tls://b"),
            ("nats://user:se,cret@a:4222,tls://t@b", "nats://a:4222,tls://b"),
            ("nats://a:4222,b:4222", "nats://a:4222,b:4222"),
            ("user:p@ss@a", "a"),
        ] {
            let access = BrokerAccess { url: url.into(), auth: Auth::Url, ca: None, identity: None };
            assert_eq!(access.shown(), shown);
        }
    }
}
