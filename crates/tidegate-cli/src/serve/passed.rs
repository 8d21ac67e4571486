//! The sockets that a service manager passes, and the servers they are for.

use anyhow::anyhow;

use super::usage;
use crate::Failure;

/// A socket that was passed.
pub struct Passed<T> {
    /// What the service manager calls it (`LISTEN_FDNAMES`), if it says so.
    pub name: Option<String>,
    /// The socket.
    pub socket: T,
}

/// Gives each server the socket that has its name. One socket for one server needs no name.
///
/// # Errors
/// A socket is for no server, or a second one for the same.
pub fn assign<T>(servers: &[&str], passed: Vec<Passed<T>>) -> Result<Vec<Option<T>>, Failure> {
    let count = passed.len();
    let mut given: Vec<Option<T>> = servers.iter().map(|_| None).collect();
    for Passed { name, socket } in passed {
        let at = match &name {
            _ if (count, servers.len()) == (1, 1) => Some(0),
            Some(name) => servers.iter().position(|server| server == name),
            None => None,
        };
        let place = at.and_then(|at| given.get_mut(at)).filter(|place| place.is_none());
        let place = place.ok_or_else(|| stranger(count, name.as_deref(), servers))?;
        *place = Some(socket);
    }
    Ok(given)
}

#[cold]
fn stranger(count: usize, name: Option<&str>, servers: &[&str]) -> Failure {
    let name = name.map_or("has no name".to_owned(), |name| format!("is called {name}"));
    usage(anyhow!(
        "of the {count} sockets that were passed (LISTEN_FDS) one {name}, and the servers here are {}: pass one for each \
         server, with the name of that server as its FileDescriptorName=",
        servers.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(servers: &[&str], names: &[Option<&str>]) -> Option<Vec<Option<usize>>> {
        let name = |name: Option<&str>| name.map(str::to_owned);
        let passed = names.iter().enumerate().map(|(socket, n)| Passed { name: name(*n), socket });
        assign(servers, passed.collect()).ok()
    }

    #[test]
    fn one_socket_for_one_server_needs_no_name() {
        for name in [None, Some("tidegate.socket"), Some("http")] {
            assert_eq!(assigned(&["http"], &[name]), Some(vec![Some(0)]));
        }
        assert_eq!(assigned(&["http"], &[]), Some(vec![None]));
    }

    #[test]
    fn of_several_each_goes_to_the_server_with_its_name() {
        let servers = ["http", "inner", "echo"];
        assert_eq!(assigned(&servers, &[Some("echo"), Some("http")]), Some(vec![Some(1), None, Some(0)]));
        for names in [&[None][..], &[Some("other")], &[Some("http"), Some("http")], &[Some("http"), None]] {
            assert_eq!(assigned(&servers, names), None, "{names:?}");
        }
        assert_eq!(assigned(&["http"], &[Some("http"), Some("http")]), None);
    }
}
