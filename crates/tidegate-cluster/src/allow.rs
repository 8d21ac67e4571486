//! The allow-list of targets, which keeps an agent from being used against other hosts.

use std::net::{IpAddr, ToSocketAddrs};

use ipnet::IpNet;
use tidegate::Endpoint;

/// Networks that loads may target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowList {
    nets: Vec<IpNet>,
    unix: bool,
}

impl AllowList {
    /// Parses the allow-list: networks (`10.0.0.0/8`), addresses, host names, which are resolved now and not later, and
    /// `unix`.
    ///
    /// # Errors
    /// The list is empty or has an invalid entry. Nothing is allowed by default, not even this machine: services on its
    /// loopback interface often trust every local client.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, String> {
        if words.is_empty() {
            let why = "no target is allowed: give the allowed ones with --allow";
            return Err(format!("{why}, like --allow 10.0.0.0/8, or --allow 127.0.0.0/8 for this machine"));
        }
        let mut list = Self { nets: Vec::new(), unix: false };
        for word in words {
            list.add(word.as_ref())?;
        }
        Ok(list)
    }

    fn add(&mut self, word: &str) -> Result<(), String> {
        if word == "unix" {
            self.unix = true;
        } else if let Ok(net) = word.parse::<IpNet>() {
            self.nets.push(net);
        } else if let Ok(ip) = word.parse::<IpAddr>() {
            self.nets.push(ip.into());
        } else {
            let wrong = |why: String| {
                format!(
                    "--allow {word:?}: {why}; write a network like 10.0.0.0/8, an address, a host name, or unix"
                )
            };
            if word.is_empty() || word.contains(['/', ' ']) {
                return Err(wrong("not a network".into()));
            }
            let found = (word, 0).to_socket_addrs().map_err(|e| wrong(format!("cannot resolve it: {e}")))?;
            self.nets.extend(found.map(|addr| IpNet::from(addr.ip())));
        }
        Ok(())
    }

    /// Whether a load may target this address.
    #[must_use]
    pub fn allows(&self, target: &Endpoint) -> bool {
        match target.addr() {
            // ::ffff:10.0.0.1 is 10.0.0.1 (RFC 4291, section 2.5.5.2).
            Some(addr) => self.nets.iter().any(|net| net.contains(&addr.ip().to_canonical())),
            None => self.unix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(list: &AllowList, target: &str) -> bool {
        list.allows(&target.parse().unwrap())
    }

    #[test]
    fn without_a_word_nothing_is_allowed() {
        let why = AllowList::parse::<&str>(&[]).unwrap_err();
        assert!(why.contains("--allow 10.0.0.0/8"), "{why}");
    }

    #[test]
    fn one_network_is_no_other_however_it_is_written() {
        let list = AllowList::parse(&["127.0.0.0/8", "::1"]).unwrap();
        for target in
            ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "mptcp:127.0.0.1:80", "[::ffff:127.0.0.1]:1"]
        {
            assert!(allows(&list, target), "{target}");
        }
        for target in
            ["10.0.0.1:80", "192.168.1.1:80", "8.8.8.8:80", "[fe80::1]:80", "[::ffff:8.8.8.8]:1", "unix:/a"]
        {
            assert!(!allows(&list, target), "{target}");
        }
    }

    #[test]
    fn words_allow_what_they_name_and_nothing_else() {
        let list = AllowList::parse(&["10.1.0.0/16", "192.0.2.7", "localhost", "unix"]).unwrap();
        for target in ["10.1.2.3:80", "192.0.2.7:1", "127.0.0.1:1", "unix:/a"] {
            assert!(allows(&list, target), "{target}");
        }
        for target in ["10.2.0.1:80", "192.0.2.8:1", "127.0.0.2:1"] {
            assert!(!allows(&list, target), "{target}");
        }
        for word in ["", "10.0.0.0/33", "no such host"] {
            let why = AllowList::parse(&[word]).unwrap_err();
            assert!(why.contains("--allow"), "{why}");
        }
    }
}
