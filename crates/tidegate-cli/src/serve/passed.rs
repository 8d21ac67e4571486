//! Sockets inherited from a service manager, and their servers.

use anyhow::anyhow;

use crate::system::Passed;
use crate::{Failure, usage};

/// Assigns the sockets to servers by name. A single server gets all of them.
///
/// # Errors
/// A socket matches no server.
pub fn assign<T>(servers: &[&str], passed: Vec<Passed<T>>) -> Result<Vec<Vec<T>>, Failure> {
    let count = passed.len();
    let mut given: Vec<Vec<T>> = servers.iter().map(|_| Vec::new()).collect();
    for Passed { name, socket } in passed {
        let at = match &name {
            _ if servers.len() == 1 => Some(0),
            Some(name) => servers.iter().position(|server| server == name),
            None => None,
        };
        let place = at.and_then(|at| given.get_mut(at));
        place.ok_or_else(|| stranger(count, name.as_deref(), servers))?.push(socket);
    }
    Ok(given)
}

#[cold]
fn stranger(count: usize, name: Option<&str>, servers: &[&str]) -> Failure {
    let name = name.map_or("has no name".to_owned(), |name| format!("is called {name}"));
    usage(anyhow!(
        "one of the {count} inherited sockets (LISTEN_FDS) {name}, and the servers are {}: give each socket \
         the name of its server as its FileDescriptorName=",
        servers.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(servers: &[&str], names: &[Option<&str>]) -> Option<Vec<Vec<usize>>> {
        let name = |name: Option<&str>| name.map(str::to_owned);
        let passed = names.iter().enumerate().map(|(socket, n)| Passed { name: name(*n), socket });
        assign(servers, passed.collect()).ok()
    }

    #[test]
    fn sockets_for_one_server_need_no_name() {
        for name in [None, Some("tidegate.socket"), Some("http")] {
            assert_eq!(assigned(&["http"], &[name]), Some(vec![vec![0]]));
            assert_eq!(assigned(&["http"], &[name, None]), Some(vec![vec![0, 1]]));
        }
        assert_eq!(assigned(&["http"], &[]), Some(vec![vec![]]));
    }

    #[test]
    fn of_several_each_goes_to_the_server_with_its_name() {
        let servers = ["http", "inner", "echo"];
        assert_eq!(
            assigned(&servers, &[Some("echo"), Some("http"), Some("echo")]),
            Some(vec![vec![1], vec![], vec![0, 2]])
        );
        for names in [&[None][..], &[Some("other")], &[Some("http"), None]] {
            assert_eq!(assigned(&servers, names), None, "{names:?}");
        }
    }
}
