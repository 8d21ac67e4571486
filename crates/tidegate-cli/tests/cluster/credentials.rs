//! Who one is to the broker: with the right word agents and their lead work, with a wrong one both say what to do, and end.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa};
use tempfile::TempDir;

use crate::kit::{Broker, TIDEGATE, agent, finish, load, report, server, stderr};

/// Files with secrets.
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
}

/// An agent and its lead both get to the broker with these arguments, and carry a load.
fn taken(url: &str, args: &[&str]) {
    let (_server, addr) = server("echo");
    let _agent = agent(url, "a", args);
    let output = load("echo", &addr, url, &[&["--agents", "1", "-c", "1", "-n", "3"][..], args].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    assert_eq!(report(&output).requests, 3);
}

/// Neither an agent nor a lead gets anywhere with these arguments; both say why, say nothing secret, and end.
fn refused(url: &str, args: &[&str], parts: &[&str]) {
    let lead = ["load", "echo", "127.0.0.1:9", "--agents", "1", "-c", "1", "-n", "1"];
    for words in [&lead[..], &["agent"]] {
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
        assert_eq!(output.status.code(), Some(1), "{words:?} {args:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{words:?} {args:?}: no {part:?} in: {text}");
        }
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn a_user_with_a_password() {
    let Some(broker) = Broker::start(&["--user", "tide", "--pass", "s3cret/@"]) else { return };
    let papers = Papers::new();
    let (right, wrong) = (papers.write("right", "s3cret/@\n"), papers.write("wrong", "s3cret-too"));
    taken(&broker.url, &["--nats-user", "tide", "--nats-password-file", &right]);
    let in_url = broker.url.replace("nats://", "nats://tide:s3cret%2F%40@");
    taken(&in_url, &[]);

    let args = ["--nats-user", "tide", "--nats-password-file", &wrong];
    refused(&broker.url, &args, &["authorization violation", "does not know us by these credentials"]);
    refused(&broker.url, &[], &["authorization violation", "give --nats-user"]);
    refused(&in_url.replace("tide:", "other:"), &[], &["authorization violation"]);
    let (empty, none) = (papers.write("empty", " \n"), papers.path("none"));
    refused(&broker.url, &["--nats-user", "tide", "--nats-password-file", &empty], &[&empty, "it is empty"]);
    let none = none.to_str().unwrap();
    refused(&broker.url, &["--nats-user", "tide", "--nats-password-file", none], &[none, "can not be read"]);
}

#[test]
fn a_token() {
    let Some(broker) = Broker::start(&["--auth", "s3cret"]) else { return };
    let papers = Papers::new();
    let (right, wrong) = (papers.write("right", "s3cret\n"), papers.write("wrong", "s3cret-too"));
    taken(&broker.url, &["--nats-token-file", &right]);
    taken(&broker.url.replace("nats://", "nats://s3cret@"), &[]);
    refused(&broker.url, &["--nats-token-file", &wrong], &["authorization violation", "these credentials"]);
    refused(&broker.url, &[], &["authorization violation", "--nats-token-file"]);
}

#[test]
fn an_nkey() {
    let papers = Papers::new();
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}\n", user.public_key());
    let config = papers.write("nats.conf", &users);
    let Some(broker) = Broker::start(&["-c", &config]) else { return };
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

#[test]
fn a_file_of_credentials() {
    let papers = Papers::new();
    let (operator, account, user) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let operator_jwt = signed(&operator, &operator, "operator", r#"{"type":"operator","version":2}"#);
    let limits = r#"{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1}"#;
    let account_claim = format!(r#"{{"limits":{limits},"type":"account","version":2}}"#);
    let account_jwt = signed(&operator, &account, "account", &account_claim);
    let user_claim = r#"{"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#;
    let config = papers.write(
        "nats.conf",
        &format!(
            "operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {}: {account_jwt} }}\n",
            account.public_key()
        ),
    );
    let Some(broker) = Broker::start(&["-c", &config]) else { return };
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

#[test]
fn an_encrypted_broker_with_an_authority_of_its_own() {
    let papers = Papers::new();
    let [ca, cert, key] = authority(&papers, "our");
    let [other_ca, ..] = authority(&papers, "other");
    let Some(broker) = Broker::start(&["--tls", "--tlscert", &cert, "--tlskey", &key]) else { return };
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

#[test]
fn a_broker_that_asks_for_a_certificate() {
    let papers = Papers::new();
    let [ca, cert, key] = authority(&papers, "our");
    let [_, other_cert, other_key] = authority(&papers, "other");
    let args = ["--tlsverify", "--tlscacert", &ca, "--tlscert", &cert, "--tlskey", &key];
    let Some(broker) = Broker::start(&args) else { return };
    taken(&broker.url, &["--nats-ca", &ca, "--nats-cert", &cert, "--nats-key", &key]);
    let strange = ["--nats-ca", &ca, "--nats-cert", &other_cert, "--nats-key", &other_key];
    for args in [&["--nats-ca", &ca][..], &strange] {
        refused(&broker.url, args, &["give --nats-cert and --nats-key"]);
    }
}

#[test]
fn what_is_no_broker_is_not_waited_for_for_ever() {
    let papers = Papers::new();
    let [ca, ..] = authority(&papers, "our");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("nats://{}", silent.local_addr().unwrap());
    refused(&silent, &[], &[&silent, "see that it is nats-server, and that it runs"]);
    let (_server, addr) = server("http");
    refused(&format!("nats://{addr}"), &["--nats-ca", &ca], &[&addr, "see that it is nats-server"]);
    refused("nats://", &[], &["write nats://HOST:PORT"]);
    let Some(plain) = Broker::start(&[]) else { return };
    refused(&plain.url, &["--nats-ca", &ca], &["and encrypts"]);
}
