//! `tidegate cert`: what it writes serves and is trusted, and nothing is overwritten by mistake.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

/// A server with the certificate of a folder, killed when dropped.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(folder: &Path, at: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "http", "--listen", at, "--model", "select", "--tls-cert"]);
        command.arg(folder.join("cert.pem")).arg("--tls-key").arg(folder.join("key.pem"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(url: &str, ca: &Path, more: &[&str]) -> Output {
    let fixed = ["load", "http", url, "-c", "1", "-n", "5", "--tls-ca", ca.to_str().unwrap()];
    tidegate(&[&fixed, more].concat())
}

#[test]
fn a_server_with_it_is_trusted_under_its_names_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("tls");
    let made = tidegate(&["cert", dir.to_str().unwrap(), "--name", "server.example", "--days", "2"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let ca = dir.join("ca.pem");
    let server = Server::start(&dir, "127.0.0.1:0");
    let url = format!("https://127.0.0.1:{}/", server.port);
    for (name, code) in [("127.0.0.1", 0), ("localhost", 0), ("server.example", 0), ("other.example", 1)] {
        let loaded = load(&url, &ca, &["--tls-name", name]);
        assert_eq!(loaded.status.code(), Some(code), "{name}: {loaded:?}");
    }
    let untrusted = tidegate(&["load", "http", &url, "-c", "1", "-n", "1"]);
    assert_eq!(untrusted.status.code(), Some(1), "{untrusted:?}");
    let of_another = tempfile::tempdir().unwrap();
    assert!(tidegate(&["cert", of_another.path().to_str().unwrap()]).status.success());
    assert_eq!(load(&url, &of_another.path().join("ca.pem"), &[]).status.code(), Some(1));
}

#[test]
fn nothing_is_replaced_without_force_and_the_key_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let key = folder.path().join("key.pem");
    let mode = || fs::metadata(&key).unwrap().permissions().mode() & 0o777;
    assert!(tidegate(&["cert", dir]).status.success());
    assert_eq!(mode(), 0o600);
    let first = fs::read(&key).unwrap();
    for name in ["ca.pem", "cert.pem", "key.pem"] {
        let alone = tempfile::tempdir().unwrap();
        fs::write(alone.path().join(name), "mine").unwrap();
        let refused = tidegate(&["cert", alone.path().to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(2) && said.contains(name) && said.contains("--force"),
            "{said}"
        );
        assert_eq!(fs::read(alone.path().join(name)).unwrap(), b"mine");
        assert_eq!(fs::read_dir(alone.path()).unwrap().count(), 1);
    }
    assert_eq!(tidegate(&["cert", dir]).status.code(), Some(2));
    assert_eq!(fs::read(&key).unwrap(), first);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(tidegate(&["cert", dir, "--force"]).status.success());
    assert_ne!(fs::read(&key).unwrap(), first);
    assert_eq!(mode(), 0o600);
}

#[test]
fn what_is_no_name_is_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for args in [["--name", "a b"], ["--name", "http://a"], ["--days", "0"], ["--days", "99999"]] {
        let refused = tidegate(&[&["cert", dir][..], &args].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
