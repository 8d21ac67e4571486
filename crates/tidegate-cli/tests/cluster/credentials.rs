//! Who one is to the broker: with the right word agents, their lead and nodes of the messenger work, with a wrong one
//! all say what to give, and end.

use crate::harness;
use libtest_mimic::Trial;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa};
use tempfile::TempDir;

use crate::kit::{Broker, TIDEGATE, agent, finish, load, report, server, server_with, stderr};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            a_user_with_a_password,
            a_token,
            an_nkey,
            a_file_of_credentials,
            an_encrypted_broker_with_an_authority_of_its_own,
            a_broker_that_asks_for_a_certificate,
            what_is_no_broker_is_not_waited_for_for_ever
        ],
    )
}

/// Files with secrets, and what the broker keeps.
struct Papers(TempDir);

impl Papers {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A broker with these further arguments that keeps messages, too; none if there is no nats-server.
    fn broker(&self, args: &[&str]) -> Option<Broker> {
        let folder = self.path("kept");
        Broker::start(&[&["-js", "-sd", folder.to_str().unwrap()], args].concat())
    }
}

/// An agent and its lead get to the broker with these arguments and carry a load, and a node of the messenger gets to
/// its stream.
fn taken(url: &str, args: &[&str]) {
    let (_server, addr) = server("echo");
    let (_node, room) = server_with("chat", &[&["--nats", url], args].concat());
    let output = load_chat(&room);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    let _agent = agent(url, "a", args);
    let output = load("echo", &addr, url, &[&["--agents", "1", "-c", "1", "-n", "3"][..], args].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    assert_eq!(report(&output).requests, 3);
}

/// A member of the messenger there says something and hears it.
fn load_chat(addr: &str) -> std::process::Output {
    let mut command = Command::new(TIDEGATE);
    command.args(["load", "chat", addr, "-c", "2", "-n", "2", "--rate", "5"]);
    finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Nobody gets anywhere with these arguments: that is bad usage.
fn refused(url: &str, args: &[&str], parts: &[&str]) {
    fails(2, url, args, parts);
}

/// Neither an agent nor a lead nor a node gets anywhere with these arguments; all say why, say nothing secret, and end.
fn fails(code: i32, url: &str, args: &[&str], parts: &[&str]) {
    let lead = ["load", "echo", "127.0.0.1:9", "--agents", "1", "-c", "1", "-n", "1"];
    for words in
        [&lead[..], &["agent", "--allow", "127.0.0.1"], &["serve", "chat", "--listen", "127.0.0.1:0"]]
    {
        let child = Command::new(TIDEGATE)
            .args(words)
            .args(["--nats", url])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = finish(child);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?} {args:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{words:?} {args:?}: no {part:?} in: {text}");
        }
        assert!(!text.contains("s3cret"), "{text}");
    }
}

fn a_user_with_a_password() {
    let papers = Papers::new();
    let broker = papers.broker(&["--user", "tide", "--pass", "s3cret/@"]).expect("nats-server");
    let (right, wrong) = (papers.write("right", "s3cret/@\n"), papers.write("wrong", "s3cret-too"));
    taken(&broker.url, &["--nats-user", "tide", "--nats-password-file", &right]);
    let in_url = broker.url.replace("nats://", "nats://tide:s3cret%2F%40@");
    taken(&in_url, &[]);

    let args = ["--nats-user", "tide", "--nats-password-file", &wrong];
    refused(&broker.url, &args, &["authorization violation", "rejects these credentials"]);
    refused(&broker.url, &[], &["authorization violation", "give --nats-user"]);
    refused(&in_url.replace("tide:", "other:"), &[], &["authorization violation"]);
    let (empty, none) = (papers.write("empty", " \n"), papers.path("none"));
    refused(&broker.url, &["--nats-user", "tide", "--nats-password-file", &empty], &[&empty, "it is empty"]);
    let none = none.to_str().unwrap();
    refused(&broker.url, &["--nats-user", "tide", "--nats-password-file", none], &[none, "cannot read"]);
}

fn a_token() {
    let papers = Papers::new();
    let broker = papers.broker(&["--auth", "s3cret"]).expect("nats-server");
    let (right, wrong) = (papers.write("right", "s3cret\n"), papers.write("wrong", "s3cret-too"));
    taken(&broker.url, &["--nats-token-file", &right]);
    taken(&broker.url.replace("nats://", "nats://s3cret@"), &[]);
    refused(&broker.url, &["--nats-token-file", &wrong], &["authorization violation", "these credentials"]);
    refused(&broker.url, &[], &["authorization violation", "--nats-token-file"]);
}

fn an_nkey() {
    let papers = Papers::new();
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}\n", user.public_key());
    let config = papers.write("nats.conf", &users);
    let broker = papers.broker(&["-c", &config]).expect("nats-server");
    let right = papers.write("right", &user.seed().unwrap());
    let wrong = papers.write("wrong", &stranger.seed().unwrap());
    let nonsense = papers.write("nonsense", "s3cret");
    taken(&broker.url, &["--nats-nkey", &right]);
    refused(&broker.url, &["--nats-nkey", &wrong], &["authorization violation", "these credentials"]);
    refused(&broker.url, &["--nats-nkey", &nonsense], &[&nonsense, "no seed of an nkey", "SU"]);
}

/// A claim as `nsc` signs it: a JWT by the key of its issuer (NATS ADR-14).
fn signed(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: &str) -> String {
    let (by, of) = (issuer.public_key(), subject.public_key());
    let head = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let claim = format!(
        r#"{{"jti":"{name}","iat":1700000000,"iss":"{by}","sub":"{of}","name":"{name}","nats":{nats}}}"#
    );
    let text = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claim));
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

/// A file of credentials.
fn credentials(jwt: &str, user: &KeyPair) -> String {
    let seed = user.seed().unwrap();
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

fn a_file_of_credentials() {
    let papers = Papers::new();
    let (operator, account, user) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let system = KeyPair::new_account(); // without one it keeps no messages
    let operator_jwt = signed(&operator, &operator, "operator", r#"{"type":"operator","version":2}"#);
    let limits = r#"{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1,"mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1}"#;
    let account_claim = format!(r#"{{"limits":{limits},"type":"account","version":2}}"#);
    let account_jwt = signed(&operator, &account, "account", &account_claim);
    let system_jwt = signed(&operator, &system, "system", r#"{"type":"account","version":2}"#);
    let (account_key, system_key) = (account.public_key(), system.public_key());
    let user_claim = r#"{"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#;
    let config = papers.write(
        "nats.conf",
        &format!(
            "operator: {operator_jwt}\nsystem_account: {system_key}\nresolver: MEMORY\n\
             resolver_preload: {{ {account_key}: {account_jwt}, {system_key}: {system_jwt} }}\n"
        ),
    );
    let broker = papers.broker(&["-c", &config]).expect("nats-server");
    let right = papers.write("right", &credentials(&signed(&account, &user, "user", user_claim), &user));
    taken(&broker.url, &["--nats-creds", &right]);

    let stranger = KeyPair::new_account();
    let by_a_stranger = credentials(&signed(&stranger, &user, "user", user_claim), &user);
    let wrong = papers.write("wrong", &by_a_stranger);
    refused(&broker.url, &["--nats-creds", &wrong], &["authorization violation", "these credentials"]);
    let nonsense = papers.write("nonsense", "s3cret");
    refused(&broker.url, &["--nats-creds", &nonsense], &[&nonsense, "JWT and seed"]);
    refused(&broker.url, &[], &["authorization violation", "--nats-creds"]);
}

/// An authority, and a certificate by it for this machine: `NAME-ca`, `NAME-cert` and `NAME-key`.
fn authority(papers: &Papers, name: &str) -> [String; 3] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let file = |what: &str, text: String| papers.write(&format!("{name}-{what}"), &text);
    [file("ca", ca.pem()), file("cert", certificate.pem()), file("key", key.serialize_pem())]
}

fn an_encrypted_broker_with_an_authority_of_its_own() {
    let papers = Papers::new();
    let [ca, cert, key] = authority(&papers, "our");
    let [other_ca, ..] = authority(&papers, "other");
    let broker = papers.broker(&["--tls", "--tlscert", &cert, "--tlskey", &key]).expect("nats-server");
    taken(&broker.url, &["--nats-ca", &ca]);
    taken(&broker.url.replace("nats://", "tls://"), &["--nats-ca", &ca]);
    for args in [&["--nats-ca", &other_ca][..], &[]] {
        refused(&broker.url, args, &["peer certificate", "--nats-ca"]);
    }
    // The certificate is for the address only.
    let by_name = broker.url.replace("127.0.0.1", "localhost");
    refused(&by_name, &["--nats-ca", &ca], &["peer certificate", "its host as the certificate does"]);
    let nonsense = papers.write("nonsense", "s3cret");
    refused(&broker.url, &["--nats-ca", &nonsense], &[&nonsense, "no PEM text"]);
}

fn a_broker_that_asks_for_a_certificate() {
    let papers = Papers::new();
    let [ca, cert, key] = authority(&papers, "our");
    let [_, other_cert, other_key] = authority(&papers, "other");
    let args = ["--tlsverify", "--tlscacert", &ca, "--tlscert", &cert, "--tlskey", &key];
    let broker = papers.broker(&args).expect("nats-server");
    taken(&broker.url, &["--nats-ca", &ca, "--nats-cert", &cert, "--nats-key", &key]);
    let strange = ["--nats-ca", &ca, "--nats-cert", &other_cert, "--nats-key", &other_key];
    for args in [&["--nats-ca", &ca][..], &strange] {
        refused(&broker.url, args, &["give --nats-cert and --nats-key"]);
    }
}

fn what_is_no_broker_is_not_waited_for_for_ever() {
    let papers = Papers::new();
    let [ca, ..] = authority(&papers, "our");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("nats://{}", silent.local_addr().unwrap());
    fails(1, &silent, &[], &[&silent, "check that nats-server runs there"]);
    let (_server, addr) = server("http");
    fails(1, &format!("nats://{addr}"), &["--nats-ca", &ca], &[&addr, "check that nats-server runs there"]);
    refused("nats://", &[], &["write nats://HOST:PORT"]);
    let plain = Broker::start(&[]).expect("nats-server");
    fails(1, &plain.url, &["--nats-ca", &ca], &["with TLS"]);
}
