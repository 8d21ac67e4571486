//! Runs the programs of docs/sessions.md on every model that this system has.

mod ask;
mod forward;
mod prices;
mod room;
mod sum;
mod timers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use tidegate::{Availability, Client, Dial, Model, Running, Server, Service};

use ask::Ask;
use forward::Forward;
use prices::{Price, Prices};
use room::Room;
use sum::Sum;
use timers::Heartbeat;

/// A machine under load may take long.
const DEADLINE: Duration = Duration::from_secs(60);

fn on_every_model(check: impl Fn(Model)) {
    let works = |model: &Model| matches!(model.availability(), Availability::Available(_));
    Model::ALL.iter().copied().filter(works).for_each(check);
}

fn start(model: Model, service: impl Service) -> (Running, SocketAddr) {
    let running = Server::new(service).model(model).bind("127.0.0.1:0").unwrap().start().unwrap();
    let addr = running.local_addr().addr().expect("a TCP address");
    (running, addr)
}

fn stop(running: Running) {
    running.stop();
    running.join();
}

/// An address without a listener: no system assigns this port to a listener that asks for any.
fn nobody() -> SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}

fn connect(addr: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    BufReader::new(stream)
}

fn say(client: &BufReader<TcpStream>, text: &str) {
    client.get_ref().write_all(text.as_bytes()).unwrap();
}

fn line(client: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line
}

/// Sends everything, finishes sending, and receives until the server has finished, too.
fn exchange(addr: SocketAddr, text: &str) -> String {
    let mut client = connect(addr);
    say(&client, text);
    client.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_heartbeat_beats_until_the_client_was_silent_for_too_long() {
    on_every_model(|model| {
        let ms = Duration::from_millis;
        let (running, addr) = start(model, Heartbeat { beat: ms(10), patience: ms(100) });
        let mut said = String::new();
        connect(addr).read_to_string(&mut said).unwrap();
        assert!(said.starts_with("beat\n") && said.ends_with("\nbye\n"), "{model}: {said:?}");
        stop(running);
    });
}

#[test]
fn the_sum_comes_when_the_client_has_finished_sending() {
    on_every_model(|model| {
        let (running, addr) = start(model, Sum::default());
        assert_eq!(exchange(addr, "1\n20\n300\n"), "321\n", "{model}");
        assert_eq!(exchange(addr, "1\n"), "1\n", "{model}: a sum of its own");
        assert_eq!(exchange(addr, ""), "0\n", "{model}");
        let many: String = (0..1000).map(|n| format!("{n}\n")).collect();
        assert_eq!(exchange(addr, &many), "499500\n", "{model}");
        assert_eq!(exchange(addr, "1\nx\n"), "not a number, or too large\n", "{model}");
        stop(running);
    });
}

#[test]
fn a_client_asks_and_learns_the_outcome() {
    on_every_model(|model| {
        let (running, addr) = start(model, Sum::default());
        let (answers, received) = channel();
        // ANCHOR: dial
        let client = Client::new(Ask { question: b"4\n5\n".to_vec(), answers }).model(model).start().unwrap();
        client.dial(addr).unwrap(); // from here, or from any thread by a Dialler:
        client.dialler().dial(Dial::to(addr).tag(7)).unwrap();
        for _ in 0..2 {
            assert_eq!(received.recv_timeout(DEADLINE).unwrap().unwrap(), b"9\n");
        }
        // ANCHOR_END: dial
        stop(running);
        client.dial(nobody()).unwrap();
        let answer = received.recv_timeout(DEADLINE).unwrap();
        let Err(refused) = answer else { panic!("{model}: somebody is there: {answer:?}") };
        assert!(refused.to_string().contains(&nobody().to_string()), "{model}: {refused}");
        client.stop();
        client.join();
    });
}

#[test]
fn a_connection_is_passed_on_with_the_end_of_its_stream() {
    on_every_model(|model| {
        let (server, there) = start(model, Sum::default());
        let (running, addr) = start(model, Forward { to: there.into() });
        assert_eq!(exchange(addr, "1\n2\n"), "3\n", "{model}");
        stop(server);
        stop(running);
        let (running, addr) = start(model, Forward { to: nobody().into() });
        let mut client = connect(addr);
        assert!(client.read(&mut [0]).is_err(), "{model}: nobody is there, and the client is reset");
        stop(running);
    });
}

#[test]
fn mail_from_a_thread_reaches_its_session() {
    on_every_model(|model| {
        let (watchers, watching) = channel();
        let (running, addr) = start(model, Prices { watchers });
        let mut client = connect(addr);
        let mailbox = watching.recv_timeout(DEADLINE).unwrap();
        mailbox.send(Price { cents: 1999 }).unwrap();
        assert_eq!(line(&mut client), "19.99\n", "{model}");
        mailbox.send(Price { cents: 5 }).unwrap();
        assert_eq!(line(&mut client), "0.05\n", "{model}");
        stop(running);
    });
}

#[test]
fn all_in_a_room_get_what_one_says() {
    on_every_model(|model| {
        let (running, addr) = start(model, Room::default());
        let (mut anne, mut bert) = (connect(addr), connect(addr));
        // Who gets back what he said is in the room.
        say(&anne, "anne\n");
        assert_eq!(line(&mut anne), "anne\n", "{model}");
        say(&bert, "bert\n");
        assert_eq!((line(&mut bert), line(&mut anne)), ("bert\n".into(), "bert\n".into()), "{model}");
        drop(bert);
        say(&anne, "one\ntwo\n");
        assert_eq!((line(&mut anne), line(&mut anne)), ("one\n".into(), "two\n".into()), "{model}");
        stop(running);
    });
}
